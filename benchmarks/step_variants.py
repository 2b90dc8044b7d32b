"""Steps that differ from `kernels.step.graph.Step` in what surrounds attention, or in where their tensors lie.

Each variant is a pair: a step with attention and one with a stand-in, built to be replayed in turns (benchmarks/neighbours.py).
"""

# h = hidden_size, T = query tokens, I = inner size of the MLP on one GPU

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from kernels.step.graph import Attention, Step, stand_in
from kernels.step.layer import Layer, norm

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor

    from kernels.adapter import Adapter
    from kernels.device import Device
    from orchestrator.worker.shared_step import SharedStep

Body = Callable[[Layer, "Tensor", Callable[[], object], "Tensor"], None]  # a layer, its residual, attention and its output
Watch = Callable[[str], "AbstractContextManager[object]"]
PLACES = (0, 24 * 2**20 + 37 * 4096)  # two places in `Bench.arena`; the second is at no multiple of 64 KiB
ARENA_BYTES = 64 * 2**20
ALIGNED = 2**21
PRODUCT = "gate_up"  # the weights of the product that changes


class ChangedStep(Step):
    """A step whose layers run `body`."""

    def __init__(
        self,
        layers: Sequence[Layer],
        hidden_size: int,
        attention: Sequence[Attention],
        body: Body,
        shares_with: Step | None = None,
    ) -> None:
        self.body = body
        super().__init__(layers, hidden_size, attention, shares_with)

    def _run(self) -> None:
        self.residual.copy_(self.embedded)
        for layer, (attend, out) in zip(self.layers, self.attention, strict=True):
            self.body(layer, self.residual, attend, out)


def usual(layer: Layer, x: Tensor, attend: Callable[[], object], out: Tensor) -> None:
    layer.before(x)
    attend()
    layer.after(x, out)


def mlp_before(layer: Layer, x: Tensor, attend: Callable[[], object], out: Tensor) -> None:
    """Attention follows a product of the MLP instead of the KV append."""
    layer.before(x)
    layer.add_mlp(x)
    attend()
    layer.add_output(x, out)


def mlp_after(layer: Layer, x: Tensor, attend: Callable[[], object], out: Tensor) -> None:
    """Attention is followed by the MLP instead of the product of its output."""
    layer.before(x)
    attend()
    layer.add_mlp(x)
    layer.add_output(x, out)


def copies_around(layer: Layer, x: Tensor, attend: Callable[[], object], out: Tensor) -> None:
    """A copy of the queries just before attention, and one of its output just after it."""
    layer.before(x)
    layer.inputs.q.clone()
    attend()
    layer.after(x, out.clone())


def read_before_mlp(read: Callable[[], None], layer: Layer, x: Tensor, attend: Callable[[], object], out: Tensor) -> None:
    """The L2 is filled with other data before the norm and the products of the MLP."""
    layer.before(x)
    attend()
    layer.add_output(x, out)
    read()
    layer.add_mlp(x)


def in_buffers(place: tuple[Tensor, Tensor], layer: Layer, x: Tensor, attend: Callable[[], object], out: Tensor) -> None:
    """The first product of the MLP reads [T, h] and writes [T, 2 I] at `place`."""
    import torch
    from torch.nn.functional import silu

    layer.before(x)
    attend()
    layer.add_output(x, out)
    inputs, products = place
    inputs.copy_(norm(x))
    torch.mm(inputs, layer.weights[PRODUCT].T, out=products)
    gate, value = products.chunk(2, dim=-1)
    x.add_(torch.matmul(silu(gate) * value, layer.weights["mlp_down"].T))


def reading_stand_in(layer: Layer) -> Attention:
    """A stand-in that also reads as many bytes of the layer's cache as attention has to."""
    import torch

    copied, out = stand_in(layer)
    views = [_flat(cache) for cache in _allocations(layer)]
    part = layer.inputs.problem.kv_bytes / sum(view.nbytes for view in views)  # without the slots that hold no token
    views = [view[: int(len(view) * min(part, 1.0))] for view in views]
    largest = [torch.zeros((), dtype=torch.int64, device=out.device) for _ in views]

    def call() -> None:
        for view, into in zip(views, largest, strict=True):
            torch.amax(view, 0, out=into)
        copied()

    return call, out


def _allocations(layer: Layer) -> list[Tensor]:
    """The tensors that own the memory of a layer's cache: one, or keys and values apart."""
    caches = layer.inputs.kv[:1] if layer.inputs.problem.latent else layer.inputs.kv
    whole = [cache if cache._base is None else cache._base for cache in caches]
    return whole[:1] if len(whole) == 2 and whole[0] is whole[1] else whole


def _flat(tensor: Tensor) -> Tensor:
    """A tensor's memory as 64-bit integers."""
    import torch

    whole = tensor.view(torch.uint8).flatten()
    return whole[: len(whole) // 8 * 8].view(torch.int64)


@dataclass
class Pair:
    """A step with attention, and one with a stand-in. `reads`: what this stand-in takes counts as a part of attention's cost."""

    step: Step
    stand_in: Step
    reads: bool = False


@dataclass
class Bench:
    """What the variants of one point are made of. `read` fills the L2; `watch` surrounds the making of a graph that it is told."""

    shared: SharedStep
    attention: list[Attention]
    adapter: Adapter
    device: Device
    read: Callable[[], None]
    watch: Watch = lambda _: nullcontext()
    arena: Tensor | None = field(default=None, repr=False)

    @property
    def layers(self) -> list[Layer]:
        return self.shared.layers

    def copies(self) -> list[Attention]:
        return [stand_in(layer) for layer in self.layers]

    def step(self, graph: str, attention: list[Attention], body: Body = usual, shares_with: Step | None = None) -> Step:
        with self.watch(graph):
            return ChangedStep(self.layers, self.shared.shape.hidden_size, attention, body, shares_with)

    def pair(
        self, body: Body = usual, *, of_stand_in: Body | None = None, copies: list[Attention] | None = None, shared: bool = True
    ) -> Pair:
        """The stand-in's step, and then that with attention in the same memory, as a worker makes them."""
        first = self.step("stand-in", copies or self.copies(), of_stand_in or body)
        return Pair(self.step("attention", self.attention, body, first if shared else None), first)

    def place(self, number: int) -> Body:
        """A body whose product of the MLP lies at one of `PLACES`. Raises RuntimeError for an MLP of experts."""
        import torch

        if "router" in self.layers[0].weights:
            raise RuntimeError("this variant needs a dense MLP")
        x = self.layers[0].inputs
        if self.arena is None:
            self.arena = torch.zeros(ARENA_BYTES, dtype=torch.uint8, device=x.device)
        tokens, weights = x.problem.num_q_tokens, self.layers[0].weights[PRODUCT]
        inputs = _cut(self.arena, PLACES[number], (tokens, weights.shape[1]))
        products = _cut(self.arena, PLACES[number] + ALIGNED, (tokens, weights.shape[0]))
        return partial(in_buffers, (inputs, products))


def _cut(arena: Tensor, start: int, size: tuple[int, int]) -> Tensor:
    import torch

    return arena[start : start + 2 * size[0] * size[1]].view(torch.bfloat16).view(size)


def _attention_first(bench: Bench) -> Pair:
    first = bench.step("attention", bench.attention)
    return Pair(first, bench.step("stand-in", bench.copies(), shares_with=first))


def _copy_twice(bench: Bench) -> Pair:
    first = bench.step("stand-in", bench.copies())
    return Pair(bench.step("attention", bench.copies(), shares_with=first), first)


def _weights_elsewhere(bench: Bench) -> Pair:
    """The product's weights move: those of a layer into new memory, and each other layer's to where the one before it had them."""
    for layer in bench.layers:
        layer.weights[PRODUCT] = layer.weights[PRODUCT].clone()
    return bench.pair()


def _with_pdl(on: bool, bench: Bench) -> Pair:
    """The same backend, told to use programmatic dependent launch or not. Raises RuntimeError if it takes no such word."""
    problem = bench.layers[0].inputs.problem.model_copy(update={"enable_pdl": on})
    if not bench.adapter.takes_pdl_in(problem, bench.device):
        raise RuntimeError("the backend does not take enable_pdl")
    layers = [copy.copy(layer) for layer in bench.layers]
    for layer in layers:
        layer.inputs = replace(layer.inputs, problem=problem)
    told = replace(bench.shared, layers=layers)
    runners, _ = told.prepare(bench.adapter, bench.adapter.prepare(layers[0].inputs, bench.device), bench.device)
    other = replace(bench, attention=[(runner, runner.out) for runner in runners])
    return other.pair()


NEIGHBOURS: dict[str, Callable[[Bench], Pair]] = {
    "captured again": Bench.pair,
    "MLP before attention": lambda bench: bench.pair(mlp_before),
    "MLP after attention": lambda bench: bench.pair(mlp_after),
    "copies around it": lambda bench: bench.pair(copies_around),
    "stand-in reads the cache": lambda bench: replace(
        bench.pair(copies=[reading_stand_in(layer) for layer in bench.layers]), reads=True
    ),
    "PDL on": partial(_with_pdl, True),
    "PDL off": partial(_with_pdl, False),
}
CAUSES: dict[str, Callable[[Bench], Pair]] = {
    "copy twice": _copy_twice,
    "attention captured first": _attention_first,
    "memory of its own": lambda bench: bench.pair(shared=False),
    "product at A in both": lambda bench: bench.pair(bench.place(0)),
    "product at B in both": lambda bench: bench.pair(bench.place(1)),
    "product at A, with the copy at B": lambda bench: bench.pair(bench.place(0), of_stand_in=bench.place(1)),
    "product at B, with the copy at A": lambda bench: bench.pair(bench.place(1), of_stand_in=bench.place(0)),
    "L2 read before the MLP": lambda bench: bench.pair(partial(read_before_mlp, bench.read)),
    "weights elsewhere": _weights_elsewhere,  # last: the earlier graphs read the old ones
}
EVERY = NEIGHBOURS | CAUSES

"""Wrong ways to split a batch into two calls, beside a right one: `adapters=[tests.backends.splitting]`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kernels.adapter import Adapter, Need, QueryLengths, Runner
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.problem import Problem
from kernels.split import Split
from kernels.split.adapter import Ordered, PartInputs, part_of
from kernels.split.batch import Halves

Parts = Callable[[Inputs, Halves, Ordered], tuple[PartInputs, PartInputs]]


@dataclass(frozen=True, kw_only=True)
class WrongSplit(Split):
    """A split whose calls get other inputs than they should, or whose runner says something else."""

    wrong_parts: Parts | None = None
    wrong_runner: Callable[[Runner], Runner] | None = None

    def parts(self, inputs: Inputs, halves: Halves, batch: Ordered) -> tuple[PartInputs, PartInputs]:
        return (self.wrong_parts or super().parts)(inputs, halves, batch)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right = super().prepare(inputs, device)
        return right if self.wrong_runner is None else self.wrong_runner(right)


@dataclass(frozen=True, kw_only=True)
class LeavesScale(TorchSdpa):
    """An honest backend that leaves a factor of 4 to its caller, as FlashInfer's wrappers leave the scale of the values."""

    name: str = "leaves_scale"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right = super().prepare(inputs, device)

        def launch() -> None:
            right()
            right.out.mul_(0.25)

        return replace(right, launch=launch, caller_scale=4.0)


@dataclass(frozen=True, kw_only=True)
class ByOracle(Adapter):
    """The reference as a backend: right for any lengths, on a CPU too."""

    name: str = "by_oracle"
    query_lengths: QueryLengths = "varlen"
    distributions: tuple[str, ...] = ("torch",)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from kernels.check.oracle import reference

        out = inputs.empty_output()
        return Runner(lambda: out.copy_(reference(inputs)), out, "oracle", inputs.problem.q_dtype)


def right_parts(inputs: Inputs, halves: Halves, batch: Ordered) -> tuple[PartInputs, PartInputs]:
    return _right().parts(inputs, halves, batch)


def decode_lengths(inputs: Inputs, halves: Halves, batch: Ordered) -> tuple[PartInputs, PartInputs]:
    """The prefill requests get the KV length of the decode requests."""
    decode, prefill = right_parts(inputs, halves, batch)
    short = Problem.model_validate({**halves.prefill.model_dump(), "s_kv": halves.decode.s_kv})
    return decode, replace(prefill, problem=short, kv_lens=decode.kv_lens[: short.batch_size])


def last_forgotten(inputs: Inputs, halves: Halves, batch: Ordered) -> tuple[PartInputs, PartInputs]:
    """The decode call leaves out its last request."""
    _, prefill = right_parts(inputs, halves, batch)
    fewer = halves.decode_requests[:-1]
    less = Problem.model_validate({**halves.decode.model_dump(), "batch_size": len(fewer)})
    return part_of(inputs, less, fewer, batch, 0), prefill


def pages_of_the_first(inputs: Inputs, halves: Halves, batch: Ordered) -> tuple[PartInputs, PartInputs]:
    """The prefill call takes the first rows of the batch's page table, which are those of the decode requests."""
    decode, prefill = right_parts(inputs, halves, batch)
    return decode, replace(prefill, page_table=decode.page_table[: prefill.problem.batch_size])


def exchanged(inputs: Inputs, halves: Halves, batch: Ordered) -> tuple[PartInputs, PartInputs]:
    """Each answer of the decode call is written where that of its neighbour belongs."""
    decode, prefill = right_parts(inputs, halves, batch)
    tokens = halves.decode.s_qo
    q = decode.q.view(-1, tokens, *decode.q.shape[1:])
    return replace(decode, q=q.roll(1, 0).flatten(0, 1), page_table=decode.page_table.roll(1, 0)), prefill


def queries_copied(inputs: Inputs, halves: Halves, batch: Ordered) -> tuple[PartInputs, PartInputs]:
    """The prefill call reads a copy of its queries from the preparation."""
    decode, prefill = right_parts(inputs, halves, batch)
    return decode, replace(prefill, q=prefill.q.clone())


def unordered(right: Runner) -> Runner:
    """Says that its rows lie as the problem's do, though the decode requests come first."""
    return replace(right, rows=None)


def first_call_alone(right: Runner) -> Runner:
    """Writes in its first call and never again."""
    calls: list[int] = []

    def launch() -> None:
        calls.append(1)
        if len(calls) == 1:
            right()

    return replace(right, launch=launch)


def _right() -> Split:
    return Split.from_parts("paged_decode", "right", TorchSdpa(routine="paged_decode"), TorchSdpa(routine="paged_prefill"), None)


def _wrong_parts(fault: Parts) -> WrongSplit:
    return _named(fault.__name__, wrong_parts=fault)


def _wrong_runner(fault: Callable[[Runner], Runner]) -> WrongSplit:
    return _named(fault.__name__, wrong_runner=fault)


def _named(name: str, **fault: Any) -> WrongSplit:
    right = _right()
    own = {name: getattr(right, name) for name in ("routine", "decode", "prefill", "distributions", "copies_cache")}
    return WrongSplit(name=name, **own, **fault)


ADAPTERS = (
    *map(_wrong_parts, (right_parts, decode_lengths, last_forgotten, pages_of_the_first, exchanged, queries_copied)),
    *map(_wrong_runner, (unordered, first_call_alone)),
    LeavesScale(routine="paged_prefill"),
    ByOracle(routine="paged_decode"),
    ByOracle(routine="paged_prefill"),
    ByOracle(routine="mla"),
)

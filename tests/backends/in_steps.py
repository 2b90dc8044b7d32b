"""Backends that are right alone and wrong in a step, for `adapters=[tests.backends.in_steps]`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kernels.adapter import Adapter, Need, QueryLengths, Runner
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.problem import Problem

Fault = Callable[[list[Inputs], list[Runner]], Runner]


@dataclass(frozen=True, kw_only=True)
class InSteps(Adapter):
    """A right backend, which `fault` changes knowing all that was prepared for this problem so far, its own runner last."""

    fault: Fault
    routine: str = "paged_decode"
    query_lengths: QueryLengths = "uniform"
    skips_unused: bool = True
    copies_cache: bool = True

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        seen, made = _prepared.setdefault((self.name, id(inputs.page_table)), ([], []))
        seen.append(inputs)
        made.append(TorchSdpa(routine="paged_decode").prepare(inputs, device))
        return self.fault(seen, made)


_prepared: dict[tuple[str, int], tuple[list[Inputs], list[Runner]]] = {}
_early: dict[int, Inputs] = {}  # inputs with queries of their own, by a layer's runner


def right(seen: list[Inputs], made: list[Runner]) -> Runner:
    return made[-1]


def wrong_in_layer_2(seen: list[Inputs], made: list[Runner]) -> Runner:
    """Adds to one head in the second layer alone."""
    last = made[-1]

    def launch() -> None:
        last()
        last.out[:, 1] += 1

    return replace(last, launch=launch) if len(made) == 2 else last


def forgets_a_page_in_layer_3(seen: list[Inputs], made: list[Runner]) -> Runner:
    """Answers with a little more of every value in the third layer: by less than a row's tolerance."""
    last = made[-1]

    def launch() -> None:
        last()
        last.out.mul_(1.02)

    return replace(last, launch=launch) if len(made) == 3 else last


def first_layer_s_cache(seen: list[Inputs], made: list[Runner]) -> Runner:
    """Reads the first layer's cache in every layer, as a library that keeps its plan by shape."""
    return TorchSdpa(routine="paged_decode").prepare(replace(seen[-1], kv=seen[0].kv), _cpu())


def writes_to_the_next_cache(seen: list[Inputs], made: list[Runner]) -> Runner:
    """Damages a key of the layer before it."""
    last = made[-1]

    def launch() -> None:
        last()
        seen[max(0, len(seen) - 2)].kv[0][0, 0, 0] = 3.0

    return replace(last, launch=launch) if len(made) == 3 else last


def reads_queries_too_early(seen: list[Inputs], made: list[Runner]) -> Runner:
    """Takes a layer's queries while the layer before it runs, when they are not there yet."""
    here = len(seen) - 1
    early = replace(seen[here], q=seen[here].q.clone())
    _early[id(made[here])] = early
    last = TorchSdpa(routine="paged_decode").prepare(early, _cpu())

    def launch() -> None:
        if here == 0:
            early.q.copy_(seen[0].q)
        if here + 1 < len(seen):
            _early[id(made[here + 1])].q.copy_(seen[here + 1].q)
        last()

    return replace(last, launch=launch)


def raises_in_layer_2(seen: list[Inputs], made: list[Runner]) -> Runner:
    if len(made) == 2:
        raise RuntimeError("no second workspace")
    return made[-1]


def another_kernel_in_layer_3(seen: list[Inputs], made: list[Runner]) -> Runner:
    return replace(made[-1], resolved_backend="another") if len(made) == 3 else made[-1]


def _cpu() -> Device:
    from orchestrator.machines import cpu

    return cpu()


FAULTS = (
    right,
    wrong_in_layer_2,
    forgets_a_page_in_layer_3,
    first_layer_s_cache,
    writes_to_the_next_cache,
    reads_queries_too_early,
    raises_in_layer_2,
    another_kernel_in_layer_3,
)
ADAPTERS = tuple(InSteps(name=fault.__name__, fault=fault) for fault in FAULTS)

"""Backends with a plan of once a step: a right one, and ones whose plan or whose word on it is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kernels.adapter import Adapter, Need, PlanStep, QueryLengths, Runner, nothing_to_plan
from kernels.check.oracle import reference
from kernels.conformance.checks import with_lengths
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.inputs.step_lengths import HostLengths
from kernels.problem import Problem

PLAN_S = 0.001

Lengths = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Planned(Adapter):
    """Attends to the lengths that `read` gives: those of its last plan, or those in the inputs' tensors."""

    routine: str = "paged_decode"
    query_lengths: QueryLengths = "uniform"
    plan: Callable[[dict[str, Lengths], HostLengths], None] | None
    reads_tensors: bool = False

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        p, out = inputs.problem, inputs.empty_output()
        state = {"lengths": p.kv_lens}

        def launch() -> None:
            read = tuple(inputs.kv_lens.tolist()) if self.reads_tensors else state["lengths"]
            problem = p if read == p.kv_lens else with_lengths(p, read)
            out.copy_(reference(replace(inputs, problem=problem)))

        return Runner(launch, out, "reference", p.q_dtype, plan_step=self._plan_step(state))

    def _plan_step(self, state: dict[str, Lengths]) -> PlanStep | None:
        if self.plan is None or self.plan is nothing_to_plan:
            return self.plan  # type: ignore[return-value]
        plan: Any = self.plan
        return lambda lengths: plan(state, lengths)


def takes_lengths(state: dict[str, Lengths], lengths: HostLengths) -> None:
    time.sleep(PLAN_S)
    state["lengths"] = tuple(lengths.kv_lens.tolist())


def keeps_the_shortest(state: dict[str, Lengths], lengths: HostLengths) -> None:
    """Right for each step that is shorter than all before it."""
    state["lengths"] = tuple(map(min, state["lengths"], lengths.kv_lens.tolist()))


def ignores(state: dict[str, Lengths], lengths: HostLengths) -> None:
    """Plans nothing, so the first lengths stay."""


def raises(state: dict[str, Lengths], lengths: HostLengths) -> None:
    raise RuntimeError("the plan found no room")


ADAPTERS = (
    Planned(name="planned", plan=takes_lengths),
    Planned(name="keeps_the_shortest", plan=keeps_the_shortest),
    Planned(name="ignores", plan=ignores),
    Planned(name="raises_in_plan", plan=raises),
    Planned(name="without_plan", plan=nothing_to_plan, reads_tensors=True),  # type: ignore[arg-type]
    Planned(name="wrongly_without_plan", plan=nothing_to_plan),  # type: ignore[arg-type]
    Planned(name="says_nothing", plan=None),
)

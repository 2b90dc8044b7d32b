"""Backends that are right, judged as the drawn faults made of them are: each one that is called wrong is a false alarm.

`mode=check_power check.draws=N` runs them at every point, beside the faults and on more seeds of inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernels.adapter import Runner
from kernels.mutants import victims
from kernels.mutants.mutant import Mutant
from kernels.mutants.reference_case import ReferenceCase
from kernels.problem import ROUTINES

if TYPE_CHECKING:
    from kernels.device import Device
    from kernels.inputs import Inputs

NAME = "no_fault"


@dataclass(frozen=True, kw_only=True)
class NoFault(Mutant):
    """What a mutant is made of, at the same tolerance, with nothing wrong in it. `resolved_backend` says so."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right, _, _ = self.prepare_right(inputs, device)
        runner = self._runner(right.launch, right, inputs.problem)
        return replace(runner, resolved_backend=f"right output of {right.resolved_backend}")


ADAPTERS = tuple(
    NoFault(routine=routine, name=NAME, about="nothing is wrong", wrong=ReferenceCase.answer, applies=victims.always)
    for routine in ROUTINES
)

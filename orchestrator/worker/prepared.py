"""A point between its preparation and its row: what will be timed, and the check of its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.adapter import Adapter, Runner
from kernels.inputs import Inputs
from kernels.timing.series import Series
from orchestrator.storage.row import Row
from orchestrator.worker.messages import Task

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.check.oracle import Verdict


@dataclass
class SharedInputs:
    """Inputs and reference that all points on one problem share. Without a reference nothing is checked."""

    inputs: Inputs
    reference: Tensor | None
    device_bytes: int


@dataclass
class PreparedBackend:
    """A backend that is ready to be timed, its task, and its row so far."""

    task: Task
    adapter: Adapter
    runner: Runner
    series: Series
    shared: SharedInputs
    row: Row
    verdict: Verdict | None = None  # of the last check

    def check(self) -> Verdict | None:
        """Runs once exactly what is timed, on an output full of NaN, and writes the result of the check into the row.

        Unused slots are filled again before every check: backends tolerate different fill values there,
        and the backend that was checked last has left its own.
        """
        from kernels.check import oracle
        from kernels.inputs import generate

        if self.shared.reference is None:
            self.row["check"] = "not_checked: check.enabled is false"
            return None
        inputs, runner = self.shared.inputs, self.runner
        generate.spoil_unused(inputs, float("nan") if self.adapter.skips_unused_in(inputs.problem) else generate.UNUSED_SLOT)
        runner.out.fill_(float("nan"))
        self.series.timer.replay()
        how = (runner.compute_dtype, runner.caller_scale)
        verdict = oracle.judge(runner.out, self.shared.reference, inputs.problem, *how, sum_dtype=runner.sum_dtype)
        if self.verdict is None or not verdict.passed:  # the row keeps the first verdict unless a later one fails
            self.row |= _columns(verdict) | {"oracle": oracle.NAME}
        self.verdict = verdict
        return verdict


def _columns(verdict: Verdict) -> Row:
    return {
        "check": "passed" if verdict.passed else "failed",
        "rel_err": verdict.rel_err,
        "max_abs_err": verdict.max_abs_err,
        "tolerance": verdict.tolerance,
        "err_over_tolerance": verdict.of_tolerance,
    }

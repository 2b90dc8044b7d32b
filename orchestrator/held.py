"""A point between its preparation and its row: what will be measured, and the judgement of its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.adapter import Adapter, Runner
from kernels.inputs import Inputs
from kernels.timing import Series
from orchestrator.row import Row

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.oracle import Verdict


@dataclass
class Group:
    """Inputs and reference that the points of a group share. Without a reference nothing is checked."""

    inputs: Inputs
    reference: Tensor | None
    device_bytes: int


@dataclass
class Held:
    """A prepared backend, what is timed of it, and its row so far."""

    adapter: Adapter
    runner: Runner
    series: Series
    group: Group
    row: Row
    verdict: Verdict | None = None  # of the last check

    def check(self) -> Verdict | None:
        """Runs once exactly what is timed, on an output full of NaN, and writes into the row what came of it.

        What nobody may read is spoiled anew each time: backends of a group differ in what they bear there, and the last to be
        checked has left its own.
        """
        from kernels import drawing, oracle

        if self.group.reference is None:
            self.row["check"] = "not_checked: check.enabled is false"
            return None
        inputs, runner = self.group.inputs, self.runner
        drawing.spoil_unused(inputs, float("nan") if self.adapter.skips_unused else drawing.UNUSED_SLOT)
        runner.out.fill_(float("nan"))
        self.series.timer.replay()
        how = (runner.compute_dtype, runner.caller_scale)
        verdict = oracle.judge(runner.out, self.group.reference, inputs.problem, *how, sum_dtype=runner.sum_dtype)
        if self.verdict is None or not verdict.passed:  # the row keeps the first, unless a later one fails
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

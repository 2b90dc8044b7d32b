"""A point between its preparation and its row: the call to time, and the check of its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.adapter import Runner
from kernels.timing.series import Series
from orchestrator.storage.row import Row
from orchestrator.worker.messages import Task
from orchestrator.worker.output_check import OutputCheck
from orchestrator.worker.shared_inputs import SharedInputs
from orchestrator.worker.step_part import StepPart

if TYPE_CHECKING:
    from kernels.check.oracle import Verdict


@dataclass(eq=False)
class PreparedBackend:
    """A backend that is ready to be timed, its task, and its row so far.

    `measured_as` is the backend whose time it is credited with, since its call is the same. `rivals` are those that it races.
    """

    task: Task
    runner: Runner
    series: Series
    shared: SharedInputs
    outputs: OutputCheck
    row: Row
    verdict: Verdict | None = None  # of the last check
    step: StepPart | None = None  # with timing.context=step
    measured_as: PreparedBackend | None = None
    rivals: Sequence[PreparedBackend] = ()

    @property
    def decided_by(self) -> PreparedBackend | None:
        """The rival that is certainly faster; None if it was measured to full precision."""
        return next((one for one in self.rivals if one.series is self.series.decided_by), None)

    def check(self) -> Verdict | None:
        """Checks the first output, before anything is timed, and writes the result into the row."""
        return self._note(self.outputs.judge_first())

    def check_again(self) -> Verdict | None:
        """Checks all launches since then: a kernel may be right at first and wrong later, or wrong only in some launches."""
        verdict = self._note(self.outputs.judge_all())
        return verdict if verdict is None or not verdict.passed or self.step is None else self._note(self.step.outputs.judge_all())

    def check_step(self) -> Verdict | None:
        """Checks attention in every layer of the step, if there is one. Otherwise the last verdict."""
        return self.verdict if self.step is None else self._note(self.step.outputs.judge_first())

    def inputs_were_damaged(self) -> None:
        """Tells the checks to ignore outputs that were left while backends were timed."""
        self.outputs.inputs_were_damaged = True
        if self.step is not None:
            self.step.outputs.inputs_were_damaged = True

    def check_more_inputs(self, most: int) -> None:
        """Checks outputs for several inputs together, if that shows what one could not. The row then says what they show."""
        if self.verdict and self.verdict.passed and (verdict := self.outputs.judge_more_inputs(most)):
            self._note(verdict, replaces=True)

    def _note(self, verdict: Verdict | None, replaces: bool = False) -> Verdict | None:
        """Writes a verdict into the row. One that passed leaves the first there, unless it `replaces` it."""
        from kernels.check import oracle

        self.row |= {"launches_checked": self.outputs.launches, "inputs_checked": self.outputs.inputs if verdict else None}
        if verdict is None:
            self.row["check"] = "not_checked: check.enabled is false"
        elif self.verdict is None or replaces or not verdict.passed:
            self.row |= _columns(verdict) | {"oracle": oracle.NAME}
            self.row["lse_base"] = None if verdict.lse_err is None else self.runner.lse_base
        self.verdict = verdict
        return verdict


def _columns(verdict: Verdict) -> Row:
    return {
        "check": "passed" if verdict.passed else "failed",
        "rel_err": verdict.rel_err,
        "max_abs_err": verdict.max_abs_err,
        "tolerance": verdict.tolerance,
        "err_over_tolerance": verdict.of_tolerance,
        "weight_over_limit": verdict.weight_over_limit,
        "check_min_tokens": verdict.min_tokens,
        "check_pairs_covered": verdict.pairs_covered,
        "lse_err": verdict.lse_err,
        "lse_tolerance": verdict.lse_tolerance,
    }

"""The check of one backend's outputs: of the first, of what its timed launches leave, and of more launches after them."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernels.adapter import Adapter
from kernels.timing.timers import Timer
from orchestrator.worker.shared_inputs import SharedInputs

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.check.judgement import Precision
    from kernels.check.launches import LaunchLog
    from kernels.check.oracle import Verdict

LAUNCHES = 72  # a fault of one launch in 16 is among so many with probability 0.99
LAUNCH_SECONDS = 0.015  # for launches that are checked and not timed, so that long calls do not cost more than their measurement
MIN_LAUNCHES = 4  # of these, however long they take
WROTE_INPUTS = "it wrote to the inputs, which it may only read"
WROTE_OUTSIDE = "it wrote outside its output"


@dataclass
class OutputCheck:
    """One backend's outputs. `judge_first` comes first; then `look` after each timed block, and `judge_all` at the end."""

    shared: SharedInputs
    adapter: Adapter
    timer: Timer
    _coin: random.Random
    inputs: int = 1  # how many were judged
    inputs_were_damaged: bool = False  # while it was timed, by itself or another: what it left then says nothing
    _log: LaunchLog | None = None
    _lse_log: LaunchLog | None = None  # of the log-sum-exp, if the problem asks for one and the backend gives it
    _first: Verdict | None = None

    def judge_first(self) -> Verdict | None:
        """Runs once exactly what is timed, on an output full of NaN. None if nothing is checked."""
        from kernels.check.launches import LaunchLog

        if self.shared.answer is None:
            return None
        self._launch(poisoned=True)
        lse = self._lse()
        self._first = self._blamed(self._judge(self.timer.runner.out, lse))
        self._log = LaunchLog(self.timer.runner.without_padding(self.timer.runner.out))
        self._lse_log = None if lse is None else LaunchLog(self.timer.runner.without_padding(lse))
        return self._first

    def look(self) -> None:
        """Compares what the last timed launch left with the first output, then spoils the output before every other block."""
        if self._log is None:
            return
        self._look()
        if self._coin.random() < 0.5:
            self._poison()

    def judge_all(self) -> Verdict | None:
        """Launches more, poisoned or not by chance, and judges the output that differs most from the first. None: not checked."""
        if self._log is None or self._first is None:
            return None
        self.shared.fill_unused(self.adapter)
        if self.inputs_were_damaged:
            self._launch(poisoned=True, fill=False)
            self._log.restart()
            if self._lse_log is not None and (lse := self._lse()) is not None:
                self._lse_log.restart(self.timer.runner.without_padding(lse))
        began, before = time.perf_counter(), self._log.count
        while self._log.count < LAUNCHES or self._log.count - before < MIN_LAUNCHES:
            if self._log.count - before >= MIN_LAUNCHES and time.perf_counter() - began > LAUNCH_SECONDS:
                break
            self._launch(poisoned=self._coin.random() < 0.5, fill=False)
            self._look()
        furthest = self._log.furthest()
        lse = None if self._lse_log is None else self._lse_log.furthest()
        if furthest is None and lse is None:
            return self._blamed(self._first)
        out = self.timer.runner.out if furthest is None else furthest  # if all are equal, that of now is the first one
        return self._blamed(self._judge(out, self._lse() if lse is None else lse))

    def judge_more_inputs(self, most: int) -> Verdict | None:
        """Judges outputs for several inputs together, if the first alone could not show a lost page and at most so many can.

        None if it is not done. It costs a draw, a reference and a launch for each input.
        """
        from kernels.check.pooling import MAX_KEYS, Pooled

        shared, runner = self.shared, self.timer.runner
        problem = shared.inputs.problem
        needed = None if self._first is None else self._first.inputs_needed
        if needed is None or not 1 < needed <= most or problem.num_kv_tokens * problem.stored_kv_heads > MAX_KEYS:
            return None
        pooled = Pooled(problem, self._precision())
        try:
            for number in range(needed):
                answer = shared.with_other_values(number) if number else shared.answer
                assert answer is not None  # `_first` came from it
                runner.refresh()
                self._launch(poisoned=True)
                pooled.add(runner.as_asked(runner.out), shared.inputs, answer, self._lse())
        finally:
            shared.draw_again()
            runner.refresh()
        self.inputs = pooled.inputs
        return self._blamed(pooled.verdict())

    @property
    def launches(self) -> int | None:
        """How many launches' outputs were looked at."""
        return None if self._log is None else self._log.count

    def _launch(self, poisoned: bool, fill: bool = True) -> None:
        if fill:
            self.shared.fill_unused(self.adapter)
        if poisoned:
            self._poison()
        self.timer.replay()

    def _poison(self) -> None:
        self.timer.runner.out.fill_(float("nan"))
        if (lse := self._lse()) is not None:
            lse.fill_(float("nan"))

    def _look(self) -> None:
        assert self._log is not None  # made by the first check
        self._log.look()
        if self._lse_log is not None and (lse := self._lse()) is not None:
            self._lse_log.look(self.timer.runner.without_padding(lse))

    def __post_init__(self) -> None:
        # What the graph was captured with: a library that makes a new tensor in each call may be captured again, for a step.
        self._captured_lse = self.timer.runner.written_lse() if self.timer.cuda_graph else None

    def _lse(self) -> Tensor | None:
        if not self.shared.inputs.problem.return_lse:
            return None
        return self.timer.runner.written_lse() if self._captured_lse is None else self._captured_lse

    def _judge(self, out: Tensor, lse: Tensor | None) -> Verdict:
        from kernels.check.judgement import judge_whole

        runner, shared = self.timer.runner, self.shared
        assert shared.answer is not None  # nothing is judged without one
        lse = None if lse is None else runner.without_padding(lse)
        return judge_whole(runner.as_asked(out), shared.inputs, shared.answer, self._precision(), lse)

    def _precision(self) -> Precision:
        from kernels.check.judgement import Precision

        runner = self.timer.runner
        return Precision(runner.compute_dtype, runner.caller_scale, runner.sum_dtype, runner.lse_base)

    def _blamed(self, verdict: Verdict) -> Verdict:
        """The verdict, unless the backend wrote where it may not. Damaged inputs are drawn again."""
        from kernels.inputs.guards import guards_are_intact

        wrote = [WROTE_INPUTS] if self.shared.restore_if_changed() else []
        lse = self.timer.runner.lse
        outputs = (self.timer.runner.out, *(() if lse is None or callable(lse) else (lse,)))
        if not all(bool(guards_are_intact(output)) for output in outputs):
            wrote.append(WROTE_OUTSIDE)
        return replace(verdict, passed=False, reason="; ".join(wrote)) if wrote else verdict

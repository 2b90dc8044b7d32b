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
    from kernels.check.oracle import Verdict
    from kernels.timed_call import Outputs

LAUNCHES = 72  # a fault of one launch in 16 is among so many with probability 0.99
LAUNCH_SECONDS = 0.015  # for launches that are checked and not timed, so that long calls do not cost more than their measurement
MIN_LAUNCHES = 4  # of these, however long they take
WROTE_INPUTS = "it wrote to the inputs, which it may only read"
WROTE_OUTSIDE = "it wrote outside its output"
AFTER_CHANGE = "wrong after a token of the cache had changed between two launches"


@dataclass
class OutputCheck:
    """One backend's outputs. `judge_first` comes first; then `look` after each timed block, and `judge_all` at the end.

    `outputs` may lie in the process of another environment: what is judged here is what came from there.
    """

    shared: SharedInputs
    adapter: Adapter
    timer: Timer
    outputs: Outputs
    _coin: random.Random
    inputs: int = 1  # how many were judged
    inputs_were_damaged: bool = False  # while it was timed, by itself or another: what it left then says nothing
    _first: Verdict | None = None

    def judge_first(self) -> Verdict | None:
        """Runs once exactly what is timed, on an output full of NaN. None if nothing is checked."""
        if self.shared.answer is None:
            return None
        self._launch(poisoned=True)
        self._first = self._blamed(self._judge(*self.outputs.now()))
        self.outputs.begin()
        return self._first

    def look(self) -> None:
        """Compares what the last timed launch left with the first output, then poisons the output before every other block."""
        if self.outputs.count is None:
            return
        self.outputs.look()
        if self._coin.random() < 0.5:
            self.outputs.poison()

    def judge_all(self) -> Verdict | None:
        """Launches more, poisoned or not by chance, and judges the output that differs most from the first. None: not checked."""
        before = self.outputs.count
        if before is None or self._first is None:
            return None
        self.shared.fill_unused(self.adapter)
        if self.inputs_were_damaged:
            self._launch(poisoned=True, fill=False)
            # Others are compared with this one: if it were the wrong one, the furthest from it would be right.
            self._first = self._judge(*self.outputs.now())
            if not self._first.passed:
                return self._blamed(self._first)
            self.outputs.begin_again()
            before = 1
        began, count = time.perf_counter(), before
        while count < LAUNCHES or count - before < MIN_LAUNCHES:
            if count - before >= MIN_LAUNCHES and time.perf_counter() - began > LAUNCH_SECONDS:
                break
            self._launch(poisoned=self._coin.random() < 0.5, fill=False)
            self.outputs.look()
            count += 1
        out, lse = self.outputs.furthest()
        verdict = self._first
        if out is not None or lse is not None:
            out_now, lse_now = self.outputs.now()  # if all are equal, that of now is the first one
            verdict = self._judge(out_now if out is None else out, lse_now if lse is None else lse)
        return self._blamed(self._judge_after_change(verdict) if verdict.passed else verdict)

    def _judge_after_change(self, verdict: Verdict) -> Verdict:
        """The verdict, unless the backend is wrong after a token of the cache has changed since the last launch.

        The output still holds the answer of before. Who returns early, or answers from what it kept, is wrong then.
        """
        from kernels.check.changed_token import choose_token
        from kernels.check.judgement import judge_rows

        shared, runner = self.shared, self.timer.runner
        assert shared.answer is not None  # there was a verdict
        changed = choose_token(shared.inputs, shared.answer, verdict.tolerance, self._coin)
        if changed is None:
            return verdict
        shared.flip_token(changed.request, changed.position)
        try:
            runner.refresh()
            self.outputs.launch()
            out, _ = self.outputs.now()
        finally:
            shared.flip_token(changed.request, changed.position)
            runner.refresh()
        assert out is not None  # there is always one
        found = judge_rows(out[changed.rows], changed.answer, shared.inputs.problem, self._precision())
        if found.passed:
            return verdict
        reason = f"{AFTER_CHANGE}: {found.reason}"
        return replace(verdict, passed=False, rel_err=found.rel_err, max_abs_err=found.max_abs_err, reason=reason)

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
                out, lse = self.outputs.now()
                assert out is not None  # there is always one
                pooled.add(out, shared.inputs, answer, lse)
        finally:
            shared.draw_again()
            runner.refresh()
        self.inputs = pooled.inputs
        return self._blamed(pooled.verdict())

    @property
    def launches(self) -> int | None:
        """How many launches' outputs were looked at."""
        return self.outputs.count

    def _launch(self, poisoned: bool, fill: bool = True) -> None:
        if fill:
            self.shared.fill_unused(self.adapter)
        if poisoned:
            self.outputs.poison()
        self.outputs.launch()

    def _judge(self, out: Tensor | None, lse: Tensor | None) -> Verdict:
        from kernels.check.judgement import judge_whole

        assert out is not None and self.shared.answer is not None  # nothing is judged without one
        return judge_whole(out, self.shared.inputs, self.shared.answer, self._precision(), lse)

    def _precision(self) -> Precision:
        from kernels.check.judgement import Precision

        runner = self.timer.runner
        return Precision(runner.compute_dtype, runner.caller_scale, runner.accumulator_dtype, runner.lse_base)

    def _blamed(self, verdict: Verdict) -> Verdict:
        """The verdict, unless the backend wrote where it may not. Damaged inputs are drawn again."""
        wrote = [WROTE_INPUTS] if self.shared.restore_if_changed() else []
        if not self.outputs.are_intact():
            wrote.append(WROTE_OUTSIDE)
        return replace(verdict, passed=False, reason="; ".join(wrote)) if wrote else verdict

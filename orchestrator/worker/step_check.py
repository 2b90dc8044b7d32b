"""The check of attention inside a step: of every layer's output in the replayed graph, before, while and after it is timed."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kernels.adapter import Adapter, Runner
from kernels.step.timer import StepTimer
from orchestrator.worker.output_check import LAUNCH_SECONDS, LAUNCHES, MIN_LAUNCHES, WROTE_INPUTS, WROTE_OUTSIDE
from orchestrator.worker.shared_inputs import SharedInputs

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.check.launches import LaunchLog
    from kernels.check.oracle import Verdict


@dataclass
class StepCheck:
    """One backend's outputs in a step. Like `OutputCheck`: `judge_first`, then `look` after each block, `judge_all` at the end.

    The rows of every layer are compared with the reference. The first layer is judged in whole, and so is the one whose output
    differs most from it: a right kernel's layers differ by rounding alone.
    """

    shared: SharedInputs
    adapter: Adapter
    timer: StepTimer
    runners: list[Runner]
    _coin: random.Random
    inputs_were_damaged: bool = False  # while steps were timed, by this backend or another: what it left then says nothing
    _logs: list[LaunchLog] = field(default_factory=list)
    _lse_logs: list[LaunchLog] = field(default_factory=list)  # empty if the problem asks for no log-sum-exp

    def judge_first(self) -> Verdict | None:
        """Replays the step once with outputs full of NaN, and judges every layer. None if nothing is checked."""
        from kernels.check.launches import LaunchLog

        if self.shared.answer is None:
            return None
        self._launch(poisoned=True)
        lses = self._lses()
        verdict = self._blamed(self._judge([runner.out for runner in self.runners], lses))
        self._logs = [LaunchLog(runner.out) for runner in self.runners]
        self._lse_logs = [LaunchLog(lse) for lse in lses if lse is not None]
        return verdict

    def look(self) -> None:
        """Compares what the last timed step left with the first outputs, then poisons the outputs before every other block."""
        self._look()
        if self._logs and self._coin.random() < 0.5:
            self._poison()

    def judge_all(self) -> Verdict | None:
        """Replays more steps, and judges all layers with the outputs that differ most from the first ones. None: not checked."""
        if not self._logs:
            return None
        self.shared.fill_unused(self.adapter)
        if self.inputs_were_damaged:
            self._launch(poisoned=True, fill=False)
            self._restart()
        began = time.perf_counter()
        for launches in range(LAUNCHES):
            if launches >= MIN_LAUNCHES and time.perf_counter() - began > LAUNCH_SECONDS:
                break
            self._launch(poisoned=self._coin.random() < 0.5, fill=False)
            self._look()
        # An output that never changed is as it is now.
        outs = [log.out if (other := log.furthest()) is None else other for log in self._logs]
        lses = [log.out if (other := log.furthest()) is None else other for log in self._lse_logs]
        return self._blamed(self._judge(outs, lses or self._lses()))

    def _look(self) -> None:
        for log in self._logs:
            log.look()
        for log, lse in zip(self._lse_logs, self._lses(), strict=False):
            log.look(lse)

    def _restart(self) -> None:
        for log in self._logs:
            log.restart()
        for log, lse in zip(self._lse_logs, self._lses(), strict=False):
            log.restart(lse)

    def _lses(self) -> list[Tensor | None]:
        """The log-sum-exp that each layer's last call wrote; None for each layer if the problem asks for none."""
        return [runner.written_lse() if self.shared.inputs.problem.return_lse else None for runner in self.runners]

    def _launch(self, poisoned: bool, fill: bool = True) -> None:
        if fill:
            self.shared.fill_unused(self.adapter)
        if poisoned:
            self._poison()
            self._spoil_what_a_step_writes()
        self.timer.replay()

    def _spoil_what_a_step_writes(self) -> None:
        """Of its inputs: queries and new keys, which attention must not read before the step has written them."""
        assert self.shared.step is not None  # whoever is checked in a step has one
        for layer in self.shared.step.layers:
            layer.planted.poison()

    def _poison(self) -> None:
        for runner in self.runners:
            runner.out.fill_(float("nan"))
            if (lse := runner.written_lse()) is not None:
                lse.fill_(float("nan"))

    def _judge(self, outs: list[Tensor], lses: Sequence[Tensor | None]) -> Verdict:
        """The verdict on every layer's output and log-sum-exp. Logits are those of the first layer, and so are the latter."""
        from kernels.check.judgement import Precision, judge_rows, judge_whole
        from kernels.check.log_sum_exp import judge_with_lse
        from kernels.step.layer_inputs import as_first

        answer, inputs, runner = self.shared.answer, self.shared.inputs, self.timer.runner
        how = Precision(runner.compute_dtype, runner.caller_scale, runner.accumulator_dtype, runner.lse_base)
        stated = {"compute_dtype": how.compute_dtype, "accumulator_dtype": how.accumulator_dtype, "base": how.lse_base}
        assert answer is not None  # nothing is judged without one
        turned = [as_first(out, number) for number, out in enumerate(outs)]
        for number, out in enumerate(turned):
            verdict = judge_rows(out, answer, inputs.problem, how)
            verdict = judge_with_lse(verdict, lses[number], answer, inputs.problem, **stated)
            if not verdict.passed:
                return self._named(verdict, number)
        whole = self._named(judge_whole(turned[0], inputs, answer, how, lses[0]), 0)
        furthest = _furthest(turned)
        if not furthest or not whole.passed:
            return whole
        return self._named(judge_whole(turned[furthest], inputs, answer, how, lses[furthest]), furthest)

    def _named(self, verdict: Verdict, number: int) -> Verdict:
        if verdict.passed:
            return verdict
        return replace(verdict, reason=f"in layer {number + 1} of {len(self.runners)} of the step: {verdict.reason}")

    def _blamed(self, verdict: Verdict) -> Verdict:
        """The verdict, unless the step wrote where it may not. Damaged inputs are drawn again."""
        from kernels.inputs.guards import guards_are_intact

        wrote = [f"in the step, {WROTE_INPUTS}"] if self.shared.restore_if_changed() else []
        given = [runner.lse for runner in self.runners if runner.lse is not None and not callable(runner.lse)]
        if not all(bool(guards_are_intact(output)) for output in (*(runner.out for runner in self.runners), *given)):
            wrote.append(f"in the step, {WROTE_OUTSIDE}")
        return replace(verdict, passed=False, reason="; ".join(wrote)) if wrote else verdict


def _furthest(outs: list[Tensor]) -> int:
    """The layer whose output differs most from the first one's, row by row. 0 if none differs."""
    import torch

    first = outs[0].float()
    size = first.norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
    apart = torch.stack([((out.float() - first).norm(dim=-1) / size).max() for out in outs])
    return int(apart.argmax())

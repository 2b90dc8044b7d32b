"""A backend's part of a step, from its preparation to its columns: the timer, the series, and the check of its outputs."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast

from kernels.adapter import Adapter, Runner
from kernels.check.answer import Answer
from kernels.check.judgement import judge_rows, judge_whole
from kernels.check.launches import KEPT_BYTES, LaunchLog
from kernels.check.log_sum_exp import judge_with_lse
from kernels.check.oracle import Verdict
from kernels.device import Device
from kernels.inputs.guards import guards_are_intact
from kernels.lazy import Tensor, torch
from kernels.step.layer import Layer
from kernels.step.layer_inputs import as_first
from kernels.step.series import StepSeries, StepTimer
from kernels.timing.config import Timing
from orchestrator.storage.row import Row
from orchestrator.worker.output_check import LAUNCH_SECONDS, LAUNCHES, MIN_LAUNCHES
from orchestrator.worker.shared_inputs import SharedInputs


@dataclass(frozen=True)
class PreparedStep:
    """A step with this backend in every layer, ready to be checked and timed."""

    shared: SharedInputs
    layers: Sequence[Layer]
    adapter: Adapter
    timer: StepTimer
    runners: list[Runner]

    def lses(self) -> list[Tensor | None]:
        """The log-sum-exp that each layer's last call wrote; None for each layer if the problem asks for none."""
        return [runner.written_lse() if self.shared.inputs.problem.return_lse else None for runner in self.runners]

    def outs(self) -> list[Tensor]:
        return [runner.out for runner in self.runners]

    def launch(self, poisoned: bool, fill: bool = True) -> None:
        """Does once exactly what is timed. With `fill`, slots that hold no token are filled first."""
        if fill:
            self.shared.fill_unused(self.adapter)
        if poisoned:
            self.poison()
            for layer in self.layers:  # queries and new keys, which attention must not read before the step has written them
                layer.planted.poison()
        self.timer.replay()

    def poison(self) -> None:
        """Fills the outputs of every layer with NaN."""
        for runner in self.runners:
            runner.out.fill_(float("nan"))
            if (lse := runner.written_lse()) is not None:
                lse.fill_(float("nan"))


@dataclass
class StepCheck:
    """The check of one backend's outputs in a step. Like `OutputCheck`: `after_block` of each timed one, `judge_all` at the end.

    The rows of every layer are compared with the reference. The first layer is judged in whole, and so is the one whose output
    differs most from it: a right kernel's layers differ by rounding alone.
    """

    step: PreparedStep
    answer: Answer
    first: Verdict
    _coin: random.Random
    _logs: list[LaunchLog]
    _lse_logs: list[LaunchLog]  # empty if the problem asks for no log-sum-exp
    inputs_were_damaged: bool = False  # while steps were timed, by this backend or another: what it left then says nothing

    @classmethod
    def start(cls, step: PreparedStep, answer: Answer, coin: random.Random) -> StepCheck:
        """Replays the step once with outputs full of NaN, and judges every layer. `coin` decides what is poisoned later."""
        step.launch(poisoned=True)
        outs, lses = step.outs(), step.lses()
        first = judge_step(step, answer, outs, lses)
        room = KEPT_BYTES // len(outs)
        logs = [LaunchLog(out, room) for out in outs], [LaunchLog(lse, room) for lse in lses if lse is not None]
        return cls(step, answer, first, coin, *logs)

    def after_block(self) -> None:
        """Compares what the last timed step left with the first outputs, then poisons the outputs before every other block."""
        self._compare()
        if self._coin.random() < 0.5:
            self.step.poison()

    def judge_all(self) -> Verdict:
        """Replays more steps, and judges all layers with the outputs that differ most from the first ones."""
        self.step.shared.fill_unused(self.step.adapter)
        if self.inputs_were_damaged:
            self.step.launch(poisoned=True, fill=False)
            for log in self._logs:
                log.restart()
            for log, lse in zip(self._lse_logs, self.step.lses(), strict=False):
                log.restart(lse)
        began = time.perf_counter()
        for launches in range(LAUNCHES):
            if launches >= MIN_LAUNCHES and time.perf_counter() - began > LAUNCH_SECONDS:
                break
            self.step.launch(poisoned=self._coin.random() < 0.5, fill=False)
            self._compare()
        # An output that never changed is as it is now.
        outs = [log.out if (other := log.most_different()) is None else other for log in self._logs]
        lses = [log.out if (other := log.most_different()) is None else other for log in self._lse_logs]
        return judge_step(self.step, self.answer, outs, lses or self.step.lses())

    def _compare(self) -> None:
        for log in self._logs:
            log.compare()
        for log, lse in zip(self._lse_logs, self.step.lses(), strict=False):
            log.compare(lse)


def judge_step(step: PreparedStep, answer: Answer, outs: Sequence[Tensor], lses: Sequence[Tensor | None]) -> Verdict:
    """The verdict on every layer's output and log-sum-exp, and on where the step wrote. Damaged inputs are drawn again."""
    step.shared.restore_small()
    verdict = _judge_layers(step, answer, outs, lses)
    given = [runner.lse for runner in step.runners if runner.lse is not None and not isinstance(runner.lse, str)]
    wrote = step.shared.restore_if_changed(guards_are_intact(*step.outs(), *given))
    return replace(verdict, passed=False, reason=f"in the step, {wrote}") if wrote else verdict


def _judge_layers(step: PreparedStep, answer: Answer, outs: Sequence[Tensor], lses: Sequence[Tensor | None]) -> Verdict:
    """Logits are those of the first layer, and so are the log-sum-exps."""
    inputs, how = step.shared.inputs, step.timer.runner.arithmetic
    turned = [as_first(out, number) for number, out in enumerate(outs)]
    for number, out in enumerate(turned):
        verdict = judge_rows(out, inputs, answer, how)
        verdict = judge_with_lse(verdict, lses[number], answer, inputs.problem, how)
        if not verdict.passed:
            return _named(verdict, number, len(outs))
    whole = _named(judge_whole(turned[0], inputs, answer, how, lses[0]), 0, len(outs))
    most_different = _most_different(turned)
    if not most_different or not whole.passed:
        return whole
    return _named(judge_whole(turned[most_different], inputs, answer, how, lses[most_different]), most_different, len(outs))


def _named(verdict: Verdict, number: int, layers: int) -> Verdict:
    """The verdict, with its layer in the reason if it failed."""
    reason = f"in layer {number + 1} of {layers} of the step: {verdict.reason}"
    return verdict if verdict.passed else replace(verdict, reason=reason)


def _most_different(outs: list[Tensor]) -> int:
    """The layer whose output differs most from the first one's, row by row. 0 if none differs."""
    first = outs[0].float()
    size = first.norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
    return int(torch.stack([((out.float() - first).norm(dim=-1) / size).max() for out in outs]).argmax())


@dataclass
class StepPart:
    """A step with this backend in every layer, ready to be timed. Without a `check`, its outputs are not looked at."""

    series: StepSeries
    check: StepCheck | None

    def columns(self) -> Row:
        return cast(Row, asdict(self.series.step_result()))


def prepare_step(shared: SharedInputs, adapter: Adapter, first: Runner, device: Device) -> PreparedStep | None:
    """Prepares the step of a backend, `first` being its isolated call; None if no step is asked for."""
    if (shared_step := shared.step) is None:
        return None
    runners, step = shared_step.prepare(adapter, first, device)
    timer = StepTimer(first, step, shared_step.stand_in, len(runners), shared_step.loads)
    return PreparedStep(shared, shared_step.layers, adapter, timer, runners)


def start_part(step: PreparedStep, timing: Timing, coin: random.Random) -> StepPart:
    """Runs the first check of a step, if outputs are checked at all."""
    if step.shared.answer is None:
        return StepPart(StepSeries(step.timer, timing), None)
    check = StepCheck.start(step, step.shared.answer, coin)
    return StepPart(StepSeries(step.timer, timing, check.after_block, step.shared.blame), check)


def step_note(row: Row) -> str:
    """A note for an in-step cost whose interval reaches zero; empty for any other."""
    low, cost = row.get("in_step_low_us"), row.get("in_step_us")
    if low is None or cost is None or low > 0:
        return ""
    return f"in step: {cost:.3g} µs a layer cannot be distinguished from zero; its interval begins at {low:.3g} µs"

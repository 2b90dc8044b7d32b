"""A backend's part of a step, from its preparation to its columns: the timer, the series and the check."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.step.series import StepMeasurement, StepSeries
from kernels.step.timer import StepTimer
from orchestrator.storage.row import Row
from orchestrator.worker.shared_inputs import SharedInputs
from orchestrator.worker.step_check import PreparedStep, StepCheck

if TYPE_CHECKING:
    from kernels.adapter import Adapter, Runner
    from kernels.device import Device
    from kernels.timing.config import Timing


@dataclass
class StepPart:
    """A step with this backend in every layer, ready to be timed. Without a `check`, its outputs are not looked at."""

    series: StepSeries
    check: StepCheck | None

    def columns(self) -> Row:
        """The step's columns, once its series has ended."""
        return step_columns(self.series.step_result())


def prepare_step(shared: SharedInputs, adapter: Adapter, first: Runner, device: Device) -> PreparedStep | None:
    """Prepares the step of a backend, `first` being its isolated call; None if no step is asked for."""
    if (shared_step := shared.step) is None:
        return None
    runners, step = shared_step.prepare(adapter, first, device)
    return PreparedStep(shared, shared_step.layers, adapter, StepTimer(first, step, shared_step.stand_in, len(runners)), runners)


def start_part(step: PreparedStep, timing: Timing, coin: random.Random) -> StepPart:
    """Runs the first check of a step, if outputs are checked at all."""
    if step.shared.answer is None:
        return StepPart(StepSeries(step.timer, timing), None)
    check = StepCheck.start(step, step.shared.answer, coin)
    return StepPart(StepSeries(step.timer, timing, check.after_block, step.shared.blame), check)


def step_columns(measured: StepMeasurement) -> Row:
    return {
        "step_us": measured.step_us,
        "stand_in_us": measured.stand_in_us,
        "in_step_us": measured.in_step_us,
        "in_step_low_us": measured.low_us,
        "in_step_high_us": measured.high_us,
        "step_layers": measured.layers,
        "in_step_samples_us": measured.differences_us,
        "step_stop_reason": measured.stop_reason,
    }


def step_note(row: Row) -> str:
    """A note for an in-step cost whose interval reaches zero; empty for any other."""
    low, cost = row.get("in_step_low_us"), row.get("in_step_us")
    if low is None or cost is None or low > 0:
        return ""
    return f"in step: {cost:.3g} µs a layer cannot be distinguished from zero; its interval begins at {low:.3g} µs"

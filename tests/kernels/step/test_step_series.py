"""The paired measurement of a step, with times from a script: a known cost is found whatever the device does meanwhile."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import count

import pytest
import torch

from kernels.adapter import Runner
from kernels.step.series import SHORT_US, PairedBlock, StepSeries, StepTimer
from kernels.timing.config import Timing
from kernels.timing.nvml import DeviceMonitor
from kernels.timing.pacing import Pacer
from kernels.timing.series import measure_interleaved
from kernels.timing.stats import ci95_of_median, interval_of_median

LAYERS = 12
Machine = Callable[[], float]  # the time of a step with the stand-in, now, in microseconds


class ScriptedStep(StepTimer):
    """A backend that costs `cost_us` a layer on a machine whose speed and noise are scripted; no graph runs."""

    def __init__(self, cost_us: float, machine: Machine, mhz: Callable[[], float] = lambda: math.nan) -> None:
        runner = Runner(lambda: None, torch.empty(0), "scripted", "bf16")
        super().__init__(runner, lambda: None, lambda: None, LAYERS)
        self.cost_us, self.machine, self.mhz = cost_us, machine, mhz

    def block(self, count: int, monitor: DeviceMonitor) -> PairedBlock:
        pairs = [(self.machine(), self.machine() + LAYERS * self.cost_us) for _ in range(count)]
        return PairedBlock([b for _, b in pairs], [self.mhz() for _ in pairs], [], [a for a, _ in pairs])


def drifting(noise_us: float, seed: int = 0) -> Machine:
    """A step of 5 ms on a device that becomes up to 30% slower or faster every 10 pairs, with normal noise."""
    draw, turn = random.Random(seed), count()
    speed = [1.0]

    def now() -> float:
        if next(turn) % 20 == 0:
            speed[0] = draw.uniform(1.0, 1.3)
        return 5000 * speed[0] + draw.gauss(0, noise_us)

    return now


def measured(*timers: StepTimer, **keys: object) -> list[StepSeries]:
    timing = Timing.model_validate({"context": "step", "block_gap_seconds": 0, "max_seconds": 3600, **keys})
    series = [StepSeries(timer, timing) for timer in timers]
    measure_interleaved(series, Pacer(DeviceMonitor()), seed=1)
    return series


@pytest.mark.parametrize("cost_us", [18.3, 37.5, 257.3])
def test_a_known_cost_is_found_on_a_device_that_drifts(cost_us: float):
    (series,) = measured(ScriptedStep(cost_us, drifting(3.0)), max_samples=200)
    found = series.step_result()

    assert found.in_step_us == pytest.approx(cost_us, abs=0.01 * cost_us + 2)
    assert found.in_step_low_us < found.in_step_us < found.in_step_high_us
    assert found.step_layers == LAYERS
    assert abs(found.step_us - found.stand_in_us - LAYERS * cost_us) < 0.3 * 5000  # medians of each alone would not do


def test_pairs_find_what_medians_of_each_do_not():
    """The same samples, once as pairs and once as two separate series."""
    errors = []
    for seed in range(20):
        (series,) = measured(ScriptedStep(18.3, drifting(3.0, seed)), max_samples=60)
        found = series.step_result()
        errors.append((abs(found.in_step_us - 18.3), abs((found.step_us - found.stand_in_us) / LAYERS - 18.3)))
    paired, separate = (sum(part) for part in zip(*errors, strict=True))

    assert paired < separate


def test_the_interval_holds_the_cost_as_often_as_it_says():
    draw = random.Random(7)
    hits = 0
    for _ in range(200):
        (series,) = measured(ScriptedStep(20.0, lambda: 1000 + draw.gauss(0, 40)), max_samples=40, limit=1e-9)
        found = series.step_result()
        hits += found.in_step_low_us <= 20.0 <= found.in_step_high_us

    assert hits >= 180  # 190 expected; fewer than 180 once in 300 drawn seeds


def test_two_backends_differ_by_their_costs_although_one_is_measured_longer():
    machine = drifting(3.0)
    one, other = (series.step_result() for series in measured(ScriptedStep(40.0, machine), ScriptedStep(43.0, machine)))

    assert other.in_step_us - one.in_step_us == pytest.approx(3.0, abs=1.0)


def test_sampling_ends_once_the_difference_is_known_to_a_percent():
    (quiet,) = measured(ScriptedStep(100.0, lambda: 5000.0))
    (noisy,) = measured(ScriptedStep(100.0, drifting(30.0)), max_samples=60)
    found = quiet.step_result()

    assert (quiet.stop_reason, len(found.in_step_samples_us)) == ("ci95", 10)
    assert noisy.stop_reason == "max_samples"


def test_a_cost_of_nothing_ends_by_its_absolute_uncertainty():
    (series,) = measured(ScriptedStep(0.0, lambda: 5000.0))

    assert (series.stop_reason, series.step_result().in_step_us) == ("ci95", 0.0)
    assert pytest.approx(0.2) == SHORT_US * 2 * 0.005  # microseconds of a layer, as docs/contexts.md says


def test_pairs_of_a_slow_clock_are_left_out():
    clocks = iter([1980.0, 1980.0, 1980.0, 1400.0] * 1000)
    costs = {1980.0: 20.0, 1400.0: 30.0}
    timer = ScriptedStep(20.0, lambda: 5000.0)

    def block(wanted: int, monitor: DeviceMonitor) -> PairedBlock:
        mhz = [next(clocks) for _ in range(wanted)]
        return PairedBlock([5000 + LAYERS * costs[m] for m in mhz], mhz, [], [5000.0] * wanted)

    timer.block = block  # type: ignore[method-assign]
    (series,) = measured(timer, max_pause_seconds=1e-6)

    assert series.step_result().in_step_us == pytest.approx(20.0)
    assert set(series.step_result().in_step_samples_us) == {20.0}


def test_the_wall_clock_alternates_replay_by_replay():
    diary: list[str] = []
    runner = Runner(lambda: None, torch.empty(0), "none", "bf16")
    timer = StepTimer(runner, lambda: diary.append("step"), lambda: diary.append("stand-in"), 3)
    block = timer.block(3, DeviceMonitor())

    assert diary == ["stand-in", "step"] * 3
    assert len(block.us) == len(block.stand_in_us) == len(block.mhz) == 3


def test_the_interval_is_the_one_that_the_relative_width_is_made_of():
    samples = sorted(random.Random(3).gauss(100, 5) for _ in range(41))
    low, high = interval_of_median(samples)
    median = samples[20]

    assert max(high - median, median - low) / median == pytest.approx(ci95_of_median(samples))
    assert interval_of_median([1.0] * 5) == (-math.inf, math.inf)

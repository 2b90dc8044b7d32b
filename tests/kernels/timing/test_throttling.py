"""Which samples count as throttled, by NVML's word on a block and by the clock of each sample."""

from __future__ import annotations

import math

from kernels.timing.nvml import Telemetry
from kernels.timing.series import SLOW_CLOCK, ThrottleFilter
from kernels.timing.timers import Block


def block(us: list[float], mhz: list[float], *causes: str) -> Block:
    return Block(us, mhz, [Telemetry(1980, 3201, 40, 500.0, frozenset(causes))])


def test_a_cause_of_nvml_throttles_the_whole_block():
    samples = ThrottleFilter()

    assert not samples.add(block([1.0, 2.0], [1980.0, 1980.0]))
    assert samples.add(block([3.0, 4.0], [1980.0, 1980.0], "SwPowerCap"))
    assert (samples.unthrottled_blocks(), samples.throttled_us()) == ([[1.0, 2.0]], [3.0, 4.0])
    assert (samples.num_unthrottled, samples.num_throttled, samples.causes) == (2, 2, {"SwPowerCap"})


def test_without_a_pause_a_power_cap_and_its_clock_are_what_is_measured_and_heat_is_not():
    samples = ThrottleFilter(sustained=True)

    assert not samples.add(block([33.0, 33.2], [1980.0, 1400.0], "SwPowerCap", "SM clock under 75% of 1980 MHz"))
    assert samples.add(block([30.0], [1980.0], "SwThermalSlowdown"))
    assert (samples.unthrottled_blocks(), samples.throttled_us()) == ([[33.0, 33.2]], [30.0])
    assert "SwPowerCap" in samples.causes


def test_a_faster_clock_throttles_earlier_samples_too():
    samples = ThrottleFilter()

    assert not samples.add(block([33.0, 33.2], [1800.0, 1790.0]))
    assert not samples.add(block([30.0], [1980.0]))
    assert (samples.unthrottled_blocks(), samples.unthrottled_of(lambda block: block.mhz)) == ([[30.0]], [[1980.0]])
    assert (samples.throttled_us(), samples.causes) == ([33.0, 33.2], {SLOW_CLOCK})


def test_a_sample_in_which_the_host_was_late_makes_no_other_slow():
    """The GPU idled within it and raised its clock: figures of fa2 at 16 heads, batch 32, on a busy H100."""
    samples = ThrottleFilter()
    late = block([219.2, 4757.0], [1990.0, 1995.0])

    assert not samples.add(late)
    assert not samples.add(block([157.8, 158.1, 157.9], [1835.0, 1836.0, 1834.0]))
    assert not samples.add(late)
    assert (samples.num_unthrottled, samples.num_throttled, samples.causes) == (7, 0, set())


def test_a_sample_without_a_clock_is_not_slow():
    samples = ThrottleFilter()

    assert samples.add(block([10.0, 10.1, 14.0], [math.nan, 1980.0, 1000.0]))
    assert samples.unthrottled_blocks() == [[10.0, 10.1]]
    assert len(samples.blocks) == 1


def test_a_slow_clock_is_no_second_cause_beside_nvml_s():
    samples = ThrottleFilter()
    samples.add(block([1.0], [1980.0]))
    samples.add(block([2.0], [1000.0], "HwThermalSlowdown"))

    assert samples.causes == {"HwThermalSlowdown"}

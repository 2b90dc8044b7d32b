"""When a measurement stops, which samples it leaves out, and what it reports. Timers and devices are scripted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from kernels.adapter import Runner
from kernels.timing import pacing
from kernels.timing.caches import Caches
from kernels.timing.config import Timing
from kernels.timing.nvml import DeviceMonitor, Telemetry
from kernels.timing.pacing import FIRST_PAUSE_S, MAX_PAUSE_S, Pacer
from kernels.timing.series import SLOW_CLOCK, Series, measure_interleaved
from kernels.timing.timers import Block, timer_for
from tests.helpers.fake_timer import Scripted, forever


class Device(DeviceMonitor):
    """A device whose throttling, block by block, comes from a script."""

    def __init__(self, script: Sequence[str]) -> None:
        self.script = iter(script)

    def read(self) -> list[Telemetry]:
        cause = next(self.script)
        return [Telemetry(1980, 3201, 40, 500.0, frozenset({cause} if cause else set()))]


def measured(samples: Iterator[float], monitor: DeviceMonitor, **keys: object) -> Series:
    series = Series(Scripted(samples), Timing.model_validate({"block_gap_seconds": 0, **keys}))
    measure_interleaved([series], Pacer(monitor), seed=0)
    return series


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each sleep of the loop, without sleeping."""
    slept: list[float] = []
    monkeypatch.setattr(pacing.time, "sleep", slept.append)
    return slept


@pytest.mark.parametrize(
    ("sample", "timing", "reason", "count"),
    [
        # The first block has one sample, since it is not known yet how long a call takes.
        (lambda n: 100.0, {"min_samples": 50}, "ci95", 51),
        (lambda n: 100.0, {"min_samples": 10, "block_samples": 100}, "ci95", 61),  # at least two blocks; 60 samples fit in 6 ms
        (lambda n: 100.0, {"min_samples": 10, "min_seconds": 0.01}, "ci95", 101),  # 10 ms of measured time
        (lambda n: 100.0 + n % 50, {"max_samples": 75}, "max_samples", 75),
        (lambda n: 100.0 if n < 40 else 100.1, {"min_samples": 20, "max_samples": 1000}, "ci95", 21),
        (lambda n: 100.0 * 2 ** min(n, 900), {"max_samples": 900, "max_seconds": 1e-9}, "max_seconds", 11),
        (lambda n: 1e5 * (1 + n % 3), {"max_seconds": 1e-9}, "max_seconds", 11),  # two samples a block if they are slow
        (lambda n: 100.0 + n % 2, {"criterion": "stdrel", "limit": 0.006, "min_samples": 10}, "stdrel", 11),
        # Noise of 0.82% that has settled: 64 deviations, checked every 16 samples.
        (lambda n: 100.0 + n % 3, {"criterion": "stdrel", "max_samples": 999}, "stdrel", 81),
        # Entropy log2(n) of samples that are all different: 0.048 degrees a sample 1722 samples on, in the middle of the line.
        (lambda n: 100.0 + n * 0.001, {"criterion": "entropy", "limit": 0.048, "max_samples": 9999}, "entropy", 1881),
    ],
)
def test_a_series_stops_with_its_reason(sample: Callable[[int], float], timing: dict[str, object], reason: str, count: int):
    result = measured(forever(sample), DeviceMonitor(), **timing).result()

    assert result.stop_reason == reason
    assert sum(map(len, result.blocks_us)) == count
    assert (result.throttled_us, result.only_unthrottled) == ([], True)


def test_throttled_samples_are_taken_again_after_growing_pauses(naps: list[float]):
    script = ["SwPowerCap", "SwPowerCap", "SwPowerCap", *[""] * 6]
    series = measured(iter(range(1, 200)), Device(script), min_samples=50, max_samples=50)
    result = series.result()

    assert [sample for block in result.blocks_us for sample in block] == list(range(22, 72))
    assert result.throttled_us == list(range(1, 22))
    assert (result.stop_reason, result.only_unthrottled, result.throttled_by) == ("max_samples", True, {"SwPowerCap"})
    assert [nap for nap in naps if nap >= FIRST_PAUSE_S] == pytest.approx([0.05, 0.075, 0.1125])
    assert series.budget.idle_s == pytest.approx(sum(naps))


def test_samples_at_a_slow_clock_are_throttled_one_by_one():
    timer = Scripted(iter(range(100, 200)))
    # The first two are slow too, which is known once the others are there.
    timer.mhz_of = lambda sample: 1700.0 if sample < 102 or 107 <= sample < 110 else 1800.0 - sample / 100
    series = Series(timer, Timing(block_gap_seconds=0, max_samples=20))
    measure_interleaved([series], Pacer(DeviceMonitor()), 0)
    result = series.result()

    assert sorted(result.throttled_us) == [100, 101, 107, 108, 109]
    assert len(result.mhz) == sum(map(len, result.blocks_us)) == 20
    assert result.throttled_by == {SLOW_CLOCK}
    assert min(result.mhz) > 1790


def test_a_device_that_is_always_throttled_ends_with_its_samples(naps: list[float]):
    result = measured(iter(range(1, 10_000)), Device(["HwThermalSlowdown"] * 999), max_pause_seconds=1.0).result()

    assert (result.stop_reason, result.only_unthrottled, result.throttled_by) == ("throttled", False, {"HwThermalSlowdown"})
    assert [sample for block in result.blocks_us for sample in block] == result.throttled_us != []
    assert 1.0 <= sum(naps) <= 1.0 + 2 * MAX_PAUSE_S  # the last wait is for the backends that follow
    assert max(naps) <= MAX_PAUSE_S


def test_a_few_unthrottled_samples_represent_the_point_alone(naps: list[float]):
    """Three unthrottled blocks, then none: the median is of their nine samples, although ten are the minimum."""
    script = ["", "", "", *["SwPowerCap"] * 999]
    result = measured(iter(range(1, 10_000)), Device(script), block_samples=4).result()

    assert (result.stop_reason, result.only_unthrottled) == ("throttled", True)
    assert [sample for block in result.blocks_us for sample in block] == list(range(1, 10))
    assert result.throttled_us[:4] == [10, 11, 12, 13]


def test_all_samples_of_a_throttled_device_keep_their_order(naps: list[float]):
    script = ["SwPowerCap", "", *["SwPowerCap"] * 999]  # one unthrottled block is not enough
    result = measured(iter(range(1, 10_000)), Device(script), block_samples=5).result()
    samples = [sample for block in result.blocks_us for sample in block]

    assert not result.only_unthrottled
    assert samples == sorted(samples)
    assert 3 not in result.throttled_us and 3 in samples
    assert len(result.mhz) == len(samples)


def test_waits_for_other_backends_do_not_end_a_series(naps: list[float]):
    """Four backends are always throttled. A fifth was once, and gets the samples it needs."""
    capped = [Series(Scripted(iter(range(1, 10_000))), Timing(block_gap_seconds=0)) for _ in range(4)]
    steady = Series(Scripted(iter([100.0] * 10_000)), Timing(block_gap_seconds=0))
    blocks: list[Series] = []

    class Neighbours(DeviceMonitor):
        def read(self) -> list[Telemetry]:
            one = blocks[-1]
            throttled = one is not steady or len(blocks) < 6
            return [Telemetry(1980, 3201, 40, 500.0, frozenset({"SwPowerCap"} if throttled else set()))]

    for one in (*capped, steady):
        one.timer.block = _noting(one, blocks)  # type: ignore[method-assign]
    measure_interleaved([*capped, steady], Pacer(Neighbours()), 0)

    assert (steady.stop_reason, steady.result().only_unthrottled) == ("ci95", True)
    assert {one.stop_reason for one in capped} == {"throttled"}
    assert not any(one.result().only_unthrottled for one in capped)


def _noting(one: Series, blocks: list[Series]) -> Callable[[int, DeviceMonitor], Block]:
    take = one.timer.block

    def block(count: int, monitor: DeviceMonitor) -> Block:
        blocks.append(one)
        return take(count, monitor)

    return block


def test_one_throttled_backend_among_many_others_ends(naps: list[float]):
    """Its own waits add up, although the unthrottled blocks of the others shorten the waits of the device."""
    others = [Series(Scripted(forever(lambda n: 100.0 + n % 50)), Timing(block_gap_seconds=0, max_samples=2000)) for _ in range(8)]
    capped = Series(Scripted(iter(range(1, 10_000))), Timing(block_gap_seconds=0))
    capped.timer.mhz_of = None  # type: ignore[attr-defined]
    take = capped.timer.block

    def throttled(count: int, monitor: DeviceMonitor) -> Block:
        taken = take(count, monitor)
        return Block(taken.us, telemetry=[Telemetry(1400, 3201, 40, 500.0, frozenset({"SwPowerCap"}))])

    capped.timer.block = throttled  # type: ignore[method-assign]
    measure_interleaved([*others, capped], Pacer(DeviceMonitor()), 0)

    assert capped.stop_reason == "throttled"


def test_a_backend_without_time_to_wait_has_one_try_left(naps: list[float]):
    """The clock has recovered in the wait after its last throttled block: samples taken then count."""
    script = ["SwPowerCap"] * 3 + [""] * 99
    result = measured(forever(lambda n: 100.0), Device(script), max_pause_seconds=0.2).result()

    assert (result.stop_reason, result.only_unthrottled, len(result.throttled_us)) == ("ci95", True, 21)


def test_throttled_slow_calls_wait_no_longer_than_others(naps: list[float]):
    """Each of their blocks is one sample. Once the time for waits is over, the missing ones come in one block."""
    series = measured(forever(lambda n: 7000.0), Device(["SwPowerCap"] * 99), max_pause_seconds=0.2)
    result = series.result()

    assert (result.stop_reason, len(result.throttled_us)) == ("throttled", 10)
    assert [len(block) for block in result.blocks_us] == [1, 1, 1, 7]
    assert 0.2 <= series.budget.idle_s <= 0.2 + 2 * MAX_PAUSE_S


def test_a_rising_clock_makes_the_device_wait_for_nothing(naps: list[float]):
    """The block that shows how slow the one before was is itself unthrottled."""
    timer = Scripted(forever(lambda n: 100.0 + n))
    timer.mhz_of = lambda sample: 1500.0 if sample < 101 else 1980.0
    series, pacer = Series(timer, Timing(block_gap_seconds=0, max_samples=40)), Pacer(DeviceMonitor())
    measure_interleaved([series], pacer, 0)

    assert series.result().throttled_us == [100.0]
    assert (pacer.idle_ratio, naps) == (0.0, [])


def test_samples_without_a_clock_stay_beside_their_nan():
    timer = Scripted(iter(range(100, 200)))
    series = Series(timer, Timing(block_gap_seconds=0, max_samples=20, block_samples=5))
    timer.mhz_of = lambda sample: 1900.0 + sample if sample < 107 else math.nan
    measure_interleaved([series], Pacer(DeviceMonitor()), 0)
    result = series.result()

    assert len(result.mhz) == sum(map(len, result.blocks_us))
    pairs = zip((us for block in result.blocks_us for us in block), result.mhz, strict=True)
    assert all(mhz == 1900.0 + us if us < 107 else math.isnan(mhz) for us, mhz in pairs)


def test_backends_are_interleaved_in_an_order_that_the_seed_shuffles():
    def order(seed: int) -> str:  # one letter for each block, the name of its backend
        diary: list[str] = []
        timers = [Scripted(forever(lambda n: 100.0 + n % 50), diary) for _ in range(3)]
        for timer, name in zip(timers, "ABC", strict=True):
            timer.name = name
        measure_interleaved([Series(t, Timing(block_gap_seconds=0, max_samples=60)) for t in timers], Pacer(DeviceMonitor()), seed)
        return "".join(diary)

    rounds = [order(1)[i : i + 3] for i in range(0, 18, 3)]
    assert all(sorted(turn) == ["A", "B", "C"] for turn in rounds)
    assert len(set(rounds)) > 1
    assert order(1) == order(1) != order(2)


def test_a_backend_that_raises_ends_alone():
    def broken(n: int) -> float:
        if n > 25:
            raise RuntimeError("no such kernel image")
        return 100.0 + n % 50

    timing = Timing(block_gap_seconds=0, max_samples=60)
    good, bad = (Series(Scripted(forever(s)), timing) for s in (lambda n: 100.0 + n % 50, broken))
    measure_interleaved([good, bad], Pacer(DeviceMonitor()), 0)

    assert (good.stop_reason, good.error) == ("max_samples", None)
    assert str(bad.error) == "no such kernel image"


def test_the_first_two_blocks_of_a_backend_are_apart_in_time():
    start = time.perf_counter()
    series = Series(Scripted(forever(lambda n: 1.0)), Timing(min_samples=10, block_gap_seconds=0.05))
    measure_interleaved([series], Pacer(DeviceMonitor()), 0)

    assert time.perf_counter() - start >= 0.05


def test_the_wall_clock_of_a_cpu_is_named():
    runner = Runner(lambda: time.sleep(0.003), torch.empty(1), "sleep", "fp32")
    timer = timer_for(runner, "graph", 1, Caches())
    series = Series(timer, Timing(max_seconds=0.001))
    measure_interleaved([series], Pacer(DeviceMonitor()), 0)

    assert (timer.name, timer.cuda_graph, timer.l2, timer.icache) == ("perf_counter", False, "uncontrolled", "uncontrolled")
    sizes = [len(block) for block in series.result().blocks_us]
    assert sizes[0] == 1 and max(sizes) <= 2 and sum(sizes) >= 10  # two fit in 6 ms, fewer on a busy machine
    assert min(map(min, series.result().blocks_us)) >= 3000

"""When a measurement stops, what it sets aside, and what it says it did. Scripted timers and devices stand in for GPU ones."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from kernels import pace as pacing
from kernels.adapter import Runner
from kernels.caches import Caches, straight_line
from kernels.pace import FIRST_PAUSE_S, LONGEST_PAUSE_S, Pace
from kernels.timers import Block, Timer, timer_for
from kernels.timing import SLOW_CLOCK, Series, Timing, measure_in_turns
from kernels.witness import Reading, Witness


class Scripted(Timer):
    """Samples from a list, so that the loop is seen alone."""

    name, l2, icache, host_us = "scripted", "none", "none", 0.0

    mhz_of: Callable[[float], float] | None = None

    def __init__(self, samples: Iterator[float], diary: list[str] | None = None) -> None:
        super().__init__(Runner(lambda: None, torch.empty(0), "none", "fp32"))
        self.samples, self.diary = samples, diary

    def replay(self) -> None:
        self.runner()

    def block(self, count: int, witness: Witness) -> Block:
        if self.diary is not None:
            self.diary.append(self.name)
        taken = [next(self.samples) for _ in range(count)]
        return Block(taken, [self.mhz_of(sample) for sample in taken] if self.mhz_of else [], witness.read())


class Device(Witness):
    """NVML says of each block what the script says of it."""

    def __init__(self, script: Sequence[str]) -> None:
        self.script = iter(script)

    def read(self) -> list[Reading]:
        cause = next(self.script)
        return [Reading(1980, 3201, 40, 500.0, frozenset({cause} if cause else set()))]


def forever(sample: Callable[[int], float]) -> Iterator[float]:
    n = 0
    while True:
        yield sample(n)
        n += 1


def measured(samples: Iterator[float], witness: Witness, **keys: object) -> Series:
    series = Series(Scripted(samples), Timing.model_validate({"block_gap_seconds": 0, **keys}))
    measure_in_turns([series], Pace(witness), seed=0)
    return series


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the loop slept, without sleeping."""
    slept: list[float] = []
    monkeypatch.setattr(pacing.time, "sleep", slept.append)
    return slept


@pytest.mark.parametrize(
    ("sample", "timing", "reason", "count"),
    [
        # The first block has one sample, since nobody knows yet how long they take.
        (lambda n: 100.0, {"min_samples": 50}, "ci95", 51),
        (lambda n: 100.0, {"min_samples": 10, "block_samples": 100}, "ci95", 61),  # two blocks, whatever is asked; 6 ms hold 60
        (lambda n: 100.0, {"min_samples": 10, "min_seconds": 0.01}, "ci95", 101),  # 10 ms of measured time
        (lambda n: 100.0 + n % 50, {"max_samples": 75}, "max_samples", 75),
        (lambda n: 100.0 if n < 40 else 100.1, {"min_samples": 20, "max_samples": 1000}, "ci95", 21),
        (lambda n: 100.0 * 2 ** min(n, 900), {"max_samples": 900, "max_seconds": 1e-9}, "max_seconds", 11),
        (lambda n: 1e5 * (1 + n % 3), {"max_seconds": 1e-9}, "max_seconds", 11),  # two samples a block where they are slow
        (lambda n: 100.0 + n % 2, {"criterion": "stdrel", "limit": 0.006, "min_samples": 10}, "stdrel", 11),
        # Noise of 0.82% that has settled: 64 deviations, looked at every 16 samples.
        (lambda n: 100.0 + n % 3, {"criterion": "stdrel", "max_samples": 999}, "stdrel", 81),
        # Entropy log2(n) of samples that are all different: 0.048 degrees a sample 1722 samples on, in the middle of the line.
        (lambda n: 100.0 + n * 0.001, {"criterion": "entropy", "limit": 0.048, "max_samples": 9999}, "entropy", 1881),
    ],
)
def test_it_stops_when_it_is_enough_and_says_why(
    sample: Callable[[int], float], timing: dict[str, object], reason: str, count: int
):
    result = measured(forever(sample), Witness(), **timing).result()

    assert result.stop_reason == reason
    assert sum(map(len, result.blocks_us)) == count
    assert (result.set_aside_us, result.of_free_clock) == ([], True)


def test_samples_of_a_held_down_device_are_set_aside_counted_and_taken_again_after_growing_pauses(naps: list[float]):
    script = ["SwPowerCap", "SwPowerCap", "SwPowerCap", *[""] * 6]
    series = measured(iter(range(1, 200)), Device(script), min_samples=50, max_samples=50)
    result = series.result()

    assert [sample for block in result.blocks_us for sample in block] == list(range(22, 72))
    assert result.set_aside_us == list(range(1, 22))
    assert (result.stop_reason, result.of_free_clock, result.held_down_by) == ("max_samples", True, {"SwPowerCap"})
    assert [nap for nap in naps if nap >= FIRST_PAUSE_S] == pytest.approx([0.05, 0.075, 0.1125])
    assert series.rested_s == pytest.approx(sum(naps))


def test_samples_at_a_slow_clock_are_set_aside_one_by_one():
    timer = Scripted(iter(range(100, 200)))
    # The first two are slow too, which shows when the others come.
    timer.mhz_of = lambda sample: 1700.0 if sample < 102 or 107 <= sample < 110 else 1800.0 - sample / 100
    series = Series(timer, Timing(block_gap_seconds=0, max_samples=20))
    measure_in_turns([series], Pace(Witness()), 0)
    result = series.result()

    assert sorted(result.set_aside_us) == [100, 101, 107, 108, 109]
    assert len(result.mhz) == sum(map(len, result.blocks_us)) == 20
    assert result.held_down_by == {SLOW_CLOCK}
    assert min(result.mhz) > 1790


def test_a_device_that_is_never_left_alone_ends_with_its_samples_and_its_reason(naps: list[float]):
    result = measured(iter(range(1, 10_000)), Device(["HwThermalSlowdown"] * 999), max_pause_seconds=1.0).result()

    assert (result.stop_reason, result.of_free_clock, result.held_down_by) == ("throttled", False, {"HwThermalSlowdown"})
    assert [sample for block in result.blocks_us for sample in block] == result.set_aside_us != []
    assert 1.0 <= sum(naps) <= 1.0 + 2 * LONGEST_PAUSE_S  # the last of its waits is for those that follow
    assert max(naps) <= LONGEST_PAUSE_S


def test_a_few_samples_of_a_free_clock_speak_alone_and_the_rest_is_kept_aside(naps: list[float]):
    """Three blocks of a free clock, then none: the median is of their samples, though they are not the ten that were wanted."""
    script = ["", "", "", *["SwPowerCap"] * 999]
    result = measured(iter(range(1, 10_000)), Device(script), block_samples=4).result()

    assert (result.stop_reason, result.of_free_clock) == ("throttled", True)
    assert [sample for block in result.blocks_us for sample in block] == list(range(1, 10))
    assert result.set_aside_us[:4] == [10, 11, 12, 13]


def test_all_samples_of_a_held_down_device_stay_in_the_order_they_were_taken(naps: list[float]):
    script = ["SwPowerCap", "", *["SwPowerCap"] * 999]  # one block of a free clock is too little
    result = measured(iter(range(1, 10_000)), Device(script), block_samples=5).result()
    samples = [sample for block in result.blocks_us for sample in block]

    assert not result.of_free_clock
    assert samples == sorted(samples)
    assert 3 not in result.set_aside_us and 3 in samples
    assert len(result.mhz) == len(samples)


def test_waiting_for_others_is_not_giving_up(naps: list[float]):
    """Four neighbours are always held down; a fifth was once, and gets the samples it needs."""
    capped = [Series(Scripted(iter(range(1, 10_000))), Timing(block_gap_seconds=0)) for _ in range(4)]
    steady = Series(Scripted(iter([100.0] * 10_000)), Timing(block_gap_seconds=0))
    blocks: list[Series] = []

    class Neighbours(Witness):
        def read(self) -> list[Reading]:
            one = blocks[-1]
            held = one is not steady or len(blocks) < 6
            return [Reading(1980, 3201, 40, 500.0, frozenset({"SwPowerCap"} if held else set()))]

    for one in (*capped, steady):
        one.timer.block = _noting(one, blocks)  # type: ignore[method-assign]
    measure_in_turns([*capped, steady], Pace(Neighbours()), 0)

    assert (steady.stop_reason, steady.result().of_free_clock) == ("ci95", True)
    assert {one.stop_reason for one in capped} == {"throttled"}
    assert not any(one.result().of_free_clock for one in capped)


def _noting(one: Series, blocks: list[Series]) -> Callable[[int, Witness], Block]:
    take = one.timer.block

    def block(count: int, witness: Witness) -> Block:
        blocks.append(one)
        return take(count, witness)

    return block


def test_a_held_down_backend_among_many_free_ones_gives_up_in_the_end(naps: list[float]):
    """Its own pauses add up, though the others' good turns shorten those of the device."""
    others = [Series(Scripted(forever(lambda n: 100.0 + n % 50)), Timing(block_gap_seconds=0, max_samples=2000)) for _ in range(8)]
    capped = Series(Scripted(iter(range(1, 10_000))), Timing(block_gap_seconds=0))
    capped.timer.mhz_of = None  # type: ignore[attr-defined]
    take = capped.timer.block

    def held_down(count: int, witness: Witness) -> Block:
        taken = take(count, witness)
        return Block(taken.us, readings=[Reading(1400, 3201, 40, 500.0, frozenset({"SwPowerCap"}))])

    capped.timer.block = held_down  # type: ignore[method-assign]
    measure_in_turns([*others, capped], Pace(Witness()), 0)

    assert capped.stop_reason == "throttled"


def test_a_backend_whose_waiting_is_over_has_one_try_left(naps: list[float]):
    """The wait after its last held-down block has freed the clock: what is measured then counts."""
    script = ["SwPowerCap"] * 3 + [""] * 99
    result = measured(forever(lambda n: 100.0), Device(script), max_pause_seconds=0.2).result()

    assert (result.stop_reason, result.of_free_clock, len(result.set_aside_us)) == ("ci95", True, 21)


def test_slow_calls_that_are_held_down_wait_no_longer_than_others(naps: list[float]):
    """Each of their blocks is one sample. What they lack of ten when their waiting is over comes in one block."""
    series = measured(forever(lambda n: 7000.0), Device(["SwPowerCap"] * 99), max_pause_seconds=0.2)
    result = series.result()

    assert (result.stop_reason, len(result.set_aside_us)) == ("throttled", 10)
    assert [len(block) for block in result.blocks_us] == [1, 1, 1, 7]
    assert 0.2 <= series.rested_s <= 0.2 + 2 * LONGEST_PAUSE_S


def test_a_clock_that_rises_holds_nothing_down(naps: list[float]):
    """The block that shows how slow the one before was is a good one."""
    timer = Scripted(forever(lambda n: 100.0 + n))
    timer.mhz_of = lambda sample: 1500.0 if sample < 101 else 1980.0
    series, pace = Series(timer, Timing(block_gap_seconds=0, max_samples=40)), Pace(Witness())
    measure_in_turns([series], pace, 0)

    assert series.result().set_aside_us == [100.0]
    assert (pace.ratio, naps) == (0.0, [])


def test_a_block_without_clocks_keeps_each_sample_beside_its_own():
    timer = Scripted(iter(range(100, 200)))
    series = Series(timer, Timing(block_gap_seconds=0, max_samples=20, block_samples=5))
    timer.mhz_of = lambda sample: 1900.0 + sample if sample < 107 else math.nan
    measure_in_turns([series], Pace(Witness()), 0)
    result = series.result()

    assert len(result.mhz) == sum(map(len, result.blocks_us))
    pairs = zip((us for block in result.blocks_us for us in block), result.mhz, strict=True)
    assert all(mhz == 1900.0 + us if us < 107 else math.isnan(mhz) for us, mhz in pairs)


def test_samples_that_cannot_be_enough_are_refused():
    with pytest.raises(ValueError, match="min_samples=500: allowed: at most max_samples=200"):
        Timing(min_samples=500)


def test_backends_are_measured_in_turns_in_an_order_that_the_seed_shuffles():
    def order(seed: int) -> str:  # of the names of the backends, one letter a block
        diary: list[str] = []
        timers = [Scripted(forever(lambda n: 100.0 + n % 50), diary) for _ in range(3)]
        for timer, name in zip(timers, "ABC", strict=True):
            timer.name = name
        measure_in_turns([Series(t, Timing(block_gap_seconds=0, max_samples=60)) for t in timers], Pace(Witness()), seed)
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
    measure_in_turns([good, bad], Pace(Witness()), 0)

    assert (good.stop_reason, good.error) == ("max_samples", None)
    assert str(bad.error) == "no such kernel image"


def test_two_blocks_of_one_backend_lie_apart_in_time():
    start = time.perf_counter()
    series = Series(Scripted(forever(lambda n: 1.0)), Timing(min_samples=10, block_gap_seconds=0.05))
    measure_in_turns([series], Pace(Witness()), 0)

    assert time.perf_counter() - start >= 0.05


def test_the_wall_clock_of_a_cpu_is_named():
    runner = Runner(lambda: time.sleep(0.003), torch.empty(1), "sleep", "fp32")
    timer = timer_for(runner, "graph", 1, Caches())
    series = Series(timer, Timing(max_seconds=0.001))
    measure_in_turns([series], Pace(Witness()), 0)

    assert (timer.name, timer.cuda_graph, timer.l2, timer.icache) == ("perf_counter", False, "uncontrolled", "uncontrolled")
    sizes = [len(block) for block in series.result().blocks_us]
    assert sizes[0] == 1 and max(sizes) <= 2 and sum(sizes) >= 10  # 6 ms hold two; a busy machine fewer
    assert min(map(min, series.result().blocks_us)) >= 3000


def test_a_later_key_names_no_other_point_where_it_asks_for_what_was_always_done():
    assert "icache" not in Timing().identity() and "name" not in Timing().identity()
    assert Timing(icache="cold").identity() == {**Timing().identity(), "icache": "cold"}


def test_code_without_a_branch_has_no_two_instructions_alike():
    steps = [step for step in straight_line(5000).split(";") if "mad" in step]

    assert len(steps) == len(set(steps)) == 5000

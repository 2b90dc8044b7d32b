"""Who is decided in a race, and how often that is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from kernels.timing import timers
from kernels.timing.config import Timing
from kernels.timing.nvml import DeviceMonitor
from kernels.timing.pacing import Pacer
from kernels.timing.racing import ODDS, Race, rough_interval_rel
from kernels.timing.series import Series, measure_interleaved
from kernels.timing.timers import LONG_WARMUP_S, warm_up
from tests.helpers.fake_timer import Scripted, forever
from tests.helpers.simulated_races import DISTURBANCES, wrong_shares

Sample = Callable[[int], float]
TIMING = Timing(block_gap_seconds=0, precision="decide")


def raced(*samples: Sample, references: int = 0, mhz: float | None = None) -> list[Series]:
    """Series of scripted samples after their race. The first ones may be references; the last one may run at another clock."""
    series = [Series(Scripted(forever(sample)), TIMING) for sample in samples]
    for one in series:
        clock = mhz if mhz and one is series[-1] else 1800.0
        one.timer.mhz_of = lambda _, clock=clock: clock  # type: ignore[attr-defined]
    measure_interleaved(series, Pacer(DeviceMonitor()), 0, Race(series, series[references:]))
    return series


@pytest.mark.parametrize(("factor", "blocks"), [(1.5, 2), (1.16, 2), (1.15, None), (1.0, None)])
def test_a_slower_backend_stops_once_its_blocks_say_so(factor: float, blocks: int | None):
    first, other = raced(lambda n: 3000.0, lambda n: 3000.0 * factor)

    assert (other.stop_reason, other.decided_by) == (("decided", first) if blocks else ("ci95", None))
    assert blocks in (None, len(other.result().blocks_us))
    assert first.stop_reason == ("uncontested" if blocks else "ci95")


def test_a_drift_of_the_device_decides_nobody():
    drifting = [lambda n: 100.0 * 1.2 ** (n // 10)] * 2  # type: ignore[var-annotated]

    assert {one.decided_by for one in raced(*drifting)} == {None}


def test_a_short_call_s_first_block_is_no_evidence_and_a_lower_clock_excuses_its_time():
    assert len(raced(lambda n: 100.0, lambda n: 150.0)[1].result().blocks_us) == 3
    assert raced(lambda n: 3000.0, lambda n: 3600.0, mhz=1500.0)[1].stop_reason == "ci95"


@pytest.mark.parametrize(
    ("blocks", "taken"),
    [
        ([3600.0], 2),
        ([3600.0, 4400.0], 5),  # they differ by 22%: neither says how long the call takes
        ([4400.0, 4400.0, 3600.0], 2),  # off alike, which its own blocks cannot tell
    ],
)
def test_who_is_decided_stops_once_its_own_blocks_agree(blocks: list[float], taken: int):
    """A block of a call of 3 ms has two samples, the first one a single sample."""
    of_sample = [blocks[0], *(us for us in blocks[1:] for _ in range(2))]
    other = raced(lambda n: 3000.0, lambda n: of_sample[min(n, len(of_sample) - 1)])[1]

    assert (other.stop_reason, len(other.result().blocks_us)) == ("decided", taken)


def test_a_reference_shows_nobody_to_be_slow():
    reference, first, second = raced(lambda n: 1000.0, lambda n: 3000.0, lambda n: 3000.0, references=1)

    assert {reference.decided_by, first.decided_by, second.decided_by} == {None}


@pytest.mark.parametrize("name", DISTURBANCES)
def test_backends_near_the_best_are_hardly_ever_decided(name: str):
    """15 groups of each kind; docs/timing.md has the rates of thousands."""
    near, best, slow = wrong_shares(DISTURBANCES[name], 15, seed=3)

    assert near <= 1 / 75 and best == 0.0  # the rule allows one in `ODDS`^2
    assert slow == 1.0 and ODDS**2 > 900


def test_a_rough_interval_is_the_range_of_the_samples_and_more():
    assert rough_interval_rel([100.0, 104.0]) == pytest.approx(max(104 * 1.05 - 102, 102 - 100 / 1.05) / 102)


def test_a_long_call_is_warmed_up_twice_if_that_is_to_be_brief(monkeypatch: pytest.MonkeyPatch):
    calls: list[float] = []
    monkeypatch.setattr(timers.time, "perf_counter", lambda: sum(calls))

    def taking(seconds: float) -> Callable[[], None]:
        return lambda: calls.append(seconds)

    assert (warm_up(taking(LONG_WARMUP_S * 1.2), 3, lambda: None, brief=True), len(calls)) == (True, 2)
    assert (warm_up(taking(LONG_WARMUP_S * 1.2), 3, lambda: None, brief=False), len(calls)) == (False, 5)
    assert (warm_up(taking(LONG_WARMUP_S * 0.8), 3, lambda: None, brief=True), len(calls)) == (False, 8)


def test_where_another_time_ranks_nobody_races():
    assert TIMING.races and not Timing().races
    assert not any(
        Timing(precision="decide", **keys).races for keys in ({"criterion": "stdrel"}, {"context": "step"}, {"host": True})
    )
    assert Timing(precision="decide").identity() == Timing().identity()
    assert math.isclose(TIMING.criterion_limit, 0.005)

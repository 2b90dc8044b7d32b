"""How rests keep a device from its power cap. The device is a model and the clock is the test's own, so nothing sleeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernels.timing import pacing
from kernels.timing.config import Timing
from kernels.timing.nvml import DeviceMonitor, Telemetry
from kernels.timing.pacing import MAX_IDLE, MAX_PATIENCE_S, MAX_PAUSE_S, Pacer
from kernels.timing.series import Series, measure_interleaved
from kernels.timing.timers import Block
from tests.helpers.fake_timer import Scripted, forever


class Card(DeviceMonitor):
    """A model of an H200's power cap: it acts on the mean power of about 25 ms, and is reported until 450 ms after it acted."""

    cap_w, idle_w, window_s, named_s = 700.0, 150.0, 0.025, 0.45

    def __init__(self) -> None:
        self.now, self.mean_w, self.acted, self.trips, self.rested_s, self.always = 0.0, self.idle_w, -1.0, 0, 0.0, False

    def pass_(self, seconds: float, watts: float) -> None:
        """In steps of a millisecond."""
        for _ in range(max(1, round(seconds * 1000))):
            self.mean_w += (watts - self.mean_w) * 0.001 / (self.window_s / 2)
            self.now += 0.001
            if self.mean_w > self.cap_w:
                self.trips += not self.throttled_by()
                self.acted = self.now

    def throttled_by(self) -> frozenset[str]:
        named = self.always or 0 <= self.acted >= self.now - self.named_s
        return frozenset({"SwPowerCap"} if named else set())

    def rest(self, seconds: float) -> None:
        self.rested_s += seconds
        self.pass_(seconds, self.idle_w)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()
    monkeypatch.setattr(pacing.time, "sleep", card.rest)
    monkeypatch.setattr(pacing.time, "perf_counter", lambda: card.now)
    return card


def loaded(card: Card, pacer: Pacer, block_s: float, watts: float, blocks: int) -> int:
    """Takes blocks of so many seconds and watts with rests between. Returns how many were throttled."""
    throttled = 0
    for _ in range(blocks):
        pacer.idle_before_block()
        card.pass_(block_s, watts)
        throttled += (now := bool(card.throttled_by()))
        pacer.after_block(block_s, now)
    return throttled


def test_a_kernel_that_stays_under_the_cap_never_waits(card: Card):
    pacer = Pacer(card)

    assert loaded(card, pacer, 0.006, 650.0, 500) == 0
    assert (pacer.idle_ratio, card.rested_s) == (0.0, 0.0)


def test_a_kernel_over_the_cap_is_soon_almost_never_throttled(card: Card):
    pacer = Pacer(card)
    throttled = loaded(card, pacer, 0.006, 850.0, 500)

    assert 1 <= throttled <= 10  # of 500; without rests it would be nearly all
    assert 0.2 < pacer.idle_ratio < MAX_IDLE
    assert card.rested_s < 2 * 500 * 0.006


def test_a_pacer_forgets_slowly(card: Card):
    pacer = Pacer(card)
    loaded(card, pacer, 0.006, 850.0, 500)
    learnt = pacer.idle_ratio
    loaded(card, pacer, 0.006, 300.0, 20)

    assert pacer.idle_ratio > 0.9 * learnt
    loaded(card, pacer, 0.006, 300.0, 1000)
    assert pacer.idle_ratio < 0.01


def test_the_wait_for_a_cap_ends_once_nvml_no_longer_reports_it(card: Card):
    pacer = Pacer(card)
    card.pass_(0.1, 850.0)
    assert card.throttled_by()
    waited = pacer.wait_until_unthrottled()

    assert not card.throttled_by()
    assert waited == pytest.approx(card.named_s, abs=0.02)
    assert pacer.wait_until_unthrottled() == 0


def test_waits_for_a_device_that_is_always_throttled_get_shorter(card: Card):
    pacer, card.always = Pacer(card), True
    waits = [pacer.wait_until_unthrottled() for _ in range(6)]

    assert waits[0] == pytest.approx(MAX_PATIENCE_S, abs=0.01)
    assert waits == sorted(waits, reverse=True) and waits[-1] < 0.1
    card.always = False
    pacer.wait_until_unthrottled()
    card.always = True
    assert pacer.wait_until_unthrottled() == pytest.approx(MAX_PATIENCE_S, abs=0.01)


def test_a_cap_from_before_ends_before_the_first_sample(card: Card):
    card.pass_(0.1, 850.0)  # such as a check before
    pacer = Pacer(card)
    first, second = (Series(Scripted(forever(lambda n: 100.0)), Timing(block_gap_seconds=0)) for _ in range(2))
    measure_interleaved([first, second], pacer, 0)

    assert first.result().throttled_us == second.result().throttled_us == []
    assert (first.budget.idle_s, second.budget.idle_s) == (pytest.approx(card.named_s, abs=0.02), 0)
    assert pacer.idle_ratio == 0


class Loading(Scripted):
    """A kernel that takes `seconds` and draws `watts` from the card. Its time varies by some percent."""

    def __init__(self, card: Card, seconds: float, watts: float) -> None:
        super().__init__(forever(lambda n: 1e6 * seconds * (1 + n % 7 / 100)))
        self.card, self.watts = card, watts

    def block(self, count: int, monitor: DeviceMonitor) -> Block:
        block = super().block(count, monitor)
        self.card.pass_(sum(block.us) / 1e6, self.watts)
        causes = self.card.throttled_by()
        return replace(block, telemetry=[Telemetry(1980, 3201, 40, 500.0, causes)])


def test_a_rest_is_no_longer_than_a_cap_lasts(card: Card):
    pacer = Pacer(card)
    pacer.idle_ratio = MAX_IDLE
    pacer.after_block(2.0, throttled=False)

    assert pacer.idle_before_block() == pytest.approx(MAX_PAUSE_S, abs=0.002)


def test_rests_before_blocks_spend_the_budget(card: Card):
    """The minimum of ten samples is taken all the same."""
    pacer, timing = Pacer(card), Timing(block_gap_seconds=0, max_seconds=0.2, max_samples=10_000)
    pacer.idle_ratio = MAX_IDLE
    series = Series(Loading(card, 0.005, 300.0), timing)
    measure_interleaved([series], pacer, 0)

    assert series.stop_reason == "max_seconds"
    assert 0.3 <= series.budget.wall_s + series.budget.idle_s <= 0.33


def test_a_wait_before_the_first_block_takes_no_sample_from_it(card: Card):
    card.pass_(0.1, 850.0)
    series = Series(Loading(card, 0.02, 300.0), Timing(block_gap_seconds=0, criterion_limit=0.05))
    measure_interleaved([series], Pacer(card), 0)

    assert series.budget.idle_s == pytest.approx(card.named_s, abs=0.02)
    assert (series.stop_reason, series.result().num_samples) == ("ci95", 20)


def test_a_heavy_kernel_gets_its_unthrottled_samples(card: Card):
    series = [Series(Loading(card, 0.007, watts), Timing(block_gap_seconds=0)) for watts in (850.0, 850.0, 450.0)]
    measure_interleaved(series, Pacer(card), 0)

    assert all(one.result().only_unthrottled for one in series)
    assert sum(one.budget.idle_s for one in series) < 3

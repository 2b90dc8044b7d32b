"""How a device is kept from its power cap. A model of one stands in for it, and nothing sleeps: the clock is the test's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernels import pace as pacing
from kernels.pace import LARGEST_RATIO, LONGEST_PAUSE_S, PATIENCE_S, Pace
from kernels.timers import Block
from kernels.timing import Series, Timing, measure_in_turns
from kernels.witness import Reading, Witness
from tests.kernels.test_timing import Scripted, forever


class Card(Witness):
    """A power cap as an H200's: it acts on the power of the last 25 ms or so, and is named until 450 ms after it acted."""

    cap_w, idle_w, window_s, named_s = 700.0, 150.0, 0.025, 0.45

    def __init__(self) -> None:
        self.now, self.mean_w, self.acted, self.trips, self.rested_s, self.always = 0.0, self.idle_w, -1.0, 0, 0.0, False

    def pass_(self, seconds: float, watts: float) -> None:
        """In steps of a millisecond."""
        for _ in range(max(1, round(seconds * 1000))):
            self.mean_w += (watts - self.mean_w) * 0.001 / (self.window_s / 2)
            self.now += 0.001
            if self.mean_w > self.cap_w:
                self.trips += not self.held_down_by()
                self.acted = self.now

    def held_down_by(self) -> frozenset[str]:
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


def loaded(card: Card, pace: Pace, block_s: float, watts: float, blocks: int) -> int:
    """Takes blocks of so many seconds and watts at the pace; how many were held down."""
    held = 0
    for _ in range(blocks):
        pace.rest()
        card.pass_(block_s, watts)
        held += (now := bool(card.held_down_by()))
        pace.after(block_s, now)
    return held


def test_a_kernel_that_stays_under_the_cap_is_never_kept_waiting(card: Card):
    pace = Pace(card)

    assert loaded(card, pace, 0.006, 650.0, 500) == 0
    assert (pace.ratio, card.rested_s) == (0.0, 0.0)


def test_a_kernel_over_the_cap_soon_runs_beneath_it_and_is_held_down_next_to_never(card: Card):
    pace = Pace(card)
    held = loaded(card, pace, 0.006, 850.0, 500)

    assert 1 <= held <= 10  # of 500; without rests it would be nearly all
    assert 0.2 < pace.ratio < LARGEST_RATIO
    assert card.rested_s < 2 * 500 * 0.006


def test_what_was_learnt_is_forgotten_slowly(card: Card):
    pace = Pace(card)
    loaded(card, pace, 0.006, 850.0, 500)
    learnt = pace.ratio
    loaded(card, pace, 0.006, 300.0, 20)

    assert pace.ratio > 0.9 * learnt
    loaded(card, pace, 0.006, 300.0, 1000)
    assert pace.ratio < 0.01


def test_a_cap_that_acted_is_waited_for_until_it_is_named_no_more(card: Card):
    pace = Pace(card)
    card.pass_(0.1, 850.0)
    assert card.held_down_by()
    waited = pace.recover()

    assert not card.held_down_by()
    assert waited == pytest.approx(card.named_s, abs=0.02)
    assert pace.recover() == 0


def test_a_device_that_is_always_held_down_is_waited_for_less_each_time(card: Card):
    pace, card.always = Pace(card), True
    waits = [pace.recover() for _ in range(6)]

    assert waits[0] == pytest.approx(PATIENCE_S, abs=0.01)
    assert waits == sorted(waits, reverse=True) and waits[-1] < 0.1
    card.always = False
    pace.recover()
    card.always = True
    assert pace.recover() == pytest.approx(PATIENCE_S, abs=0.01)


def test_the_cap_that_a_check_met_is_waited_for_before_the_first_sample(card: Card):
    card.pass_(0.1, 850.0)  # an oracle, say
    pace = Pace(card)
    first, second = (Series(Scripted(forever(lambda n: 100.0)), Timing(block_gap_seconds=0)) for _ in range(2))
    measure_in_turns([first, second], pace, 0)

    assert first.result().set_aside_us == second.result().set_aside_us == []
    assert (first.rested_s, second.rested_s) == (pytest.approx(card.named_s, abs=0.02), 0)
    assert pace.ratio == 0


class Loading(Scripted):
    """A kernel that takes so many seconds and watts of the card, a percent more or less."""

    def __init__(self, card: Card, seconds: float, watts: float) -> None:
        super().__init__(forever(lambda n: 1e6 * seconds * (1 + n % 7 / 100)))
        self.card, self.watts = card, watts

    def block(self, count: int, witness: Witness) -> Block:
        block = super().block(count, witness)
        self.card.pass_(sum(block.us) / 1e6, self.watts)
        causes = self.card.held_down_by()
        return replace(block, readings=[Reading(1980, 3201, 40, 500.0, causes)])


def test_a_rest_is_no_longer_than_a_cap_remembers(card: Card):
    pace = Pace(card)
    pace.ratio = LARGEST_RATIO
    pace.after(2.0, held_down=False)

    assert pace.rest() == pytest.approx(LONGEST_PAUSE_S, abs=0.002)


def test_rests_count_in_the_end(card: Card):
    """Ten samples are taken all the same."""
    pace, timing = Pace(card), Timing(block_gap_seconds=0, max_seconds=0.2, max_samples=10_000)
    pace.ratio = LARGEST_RATIO
    series = Series(Loading(card, 0.005, 300.0), timing)
    measure_in_turns([series], pace, 0)

    assert series.stop_reason == "max_seconds"
    assert 0.3 <= series.wall_s + series.rested_s <= 0.33


def test_a_wait_for_what_a_check_did_takes_no_sample_from_the_first(card: Card):
    card.pass_(0.1, 850.0)
    series = Series(Loading(card, 0.02, 300.0), Timing(block_gap_seconds=0, limit=0.05))
    measure_in_turns([series], Pace(card), 0)

    assert series.rested_s == pytest.approx(card.named_s, abs=0.02)
    assert (series.stop_reason, series.result().num_samples) == ("ci95", 20)


def test_a_heavy_kernel_gets_its_samples_of_a_free_clock(card: Card):
    series = [Series(Loading(card, 0.007, watts), Timing(block_gap_seconds=0)) for watts in (850.0, 850.0, 450.0)]
    measure_in_turns(series, Pace(card), 0)

    assert all(one.result().of_free_clock for one in series)
    assert sum(one.rested_s for one in series) < 3

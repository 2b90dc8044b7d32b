"""The search over histories that are known: what it finds, in how many steps, and what it does not claim."""

from __future__ import annotations

import math

import pytest

from orchestrator.bisection.predicate import Predicate
from orchestrator.bisection.search import Found, Search, most_looks
from tests.helpers.histories import POINTS, History, steps

ROUNDS = 4


def searched(history: History, **keys: object) -> Found:
    predicate = Predicate(looks=most_looks(len(history.releases), ROUNDS), **keys)  # type: ignore[arg-type]
    return Search(history.measure, predicate, ROUNDS).find(history.releases)


def boundary(found: Found) -> tuple[str | None, str | None]:
    return found.last_good, found.first_bad


@pytest.mark.parametrize("change_at", range(1, 40))
def test_an_injected_regression_is_found_at_its_release_in_log2_steps(change_at: int):
    history = History(steps(40, change_at, 1.10), seed=change_at)
    found = searched(history)

    assert (found.outcome, *boundary(found)) == ("found", f"0.{change_at - 1}", f"0.{change_at}")
    assert len(found.steps) <= 1 + math.ceil(math.log2(39))


def test_a_clear_change_takes_one_round_a_release_and_a_change_near_the_threshold_takes_more():
    clear, near = History(steps(16, 9, 1.5)), History(steps(16, 9, 1.062), noise=0.003)

    assert boundary(searched(clear)) == boundary(searched(near)) == ("0.8", "0.9")
    assert len(clear.asked) == len(set(clear.asked)) + 1  # the last release twice: once to choose the points
    assert (clear.asked.count("0.9"), near.asked.count("0.9")) == (1, 2)


def test_a_regression_of_one_point_is_not_hidden_by_the_others():
    history = History({f"0.{i}": {POINTS[2]: 1.12 if i >= 5 else 1.0} for i in range(12)})
    found = searched(history)

    assert boundary(found) == ("0.4", "0.5")
    assert found.points == {POINTS[2]}


@pytest.mark.parametrize("seed", range(20))
def test_no_difference_is_no_change_and_no_boundary(seed: int):
    found = searched(History(steps(30, 99, 1.0), noise=0.01, seed=seed))

    assert (found.outcome, *boundary(found)) == ("no change", None, None)


def test_points_that_were_slow_by_chance_are_measured_anew():
    """The first round chooses them, so it does not decide: all points are equal, and the first round says 20% slower."""
    history = History(steps(4, 99, 1.0), noise=0.001)
    lucky = [History(steps(4, 1, 1.2), noise=0.001).measure("0.0", "0.3")]

    def measure(good: str, other: str) -> object:
        return lucky.pop() if lucky else history.measure(good, other)

    found = Search(measure, Predicate(looks=most_looks(4, ROUNDS)), ROUNDS).find(history.releases)  # type: ignore[arg-type]
    assert found.outcome == "no change"


def test_noise_that_forbids_a_verdict_is_undecided_and_ends():
    history = History(steps(8, 3, 1.05), noise=0.2)
    found = searched(history)

    assert (found.outcome, boundary(found)) == ("undecided", (None, None))
    assert history.asked == ["0.7"] * (ROUNDS + 1)


def test_rounds_that_differ_by_more_than_their_errors_say_decide_nothing():
    """Errors that are claimed too small do not give a boundary where there is none."""
    histories = [History(steps(20, 99, 1.05), noise=0.03, claimed=0.02, seed=seed) for seed in range(40)]

    assert not [history.seed for history in histories if searched(history).outcome == "found"]


@pytest.mark.parametrize(
    "broken", [["0.6"], ["0.5"], ["0.5", "0.6"], ["0.4", "0.5", "0.6", "0.7"], [f"0.{i}" for i in range(1, 12)]]
)
def test_broken_releases_are_named_and_the_boundary_is_around_them(broken: list[str]):
    history = History(steps(13, 6, 1.2), broken=dict.fromkeys(broken, "it does not import"))
    found = searched(history)
    good = max(int(release[2:]) for release in history.releases if int(release[2:]) < 6 and release not in broken)
    bad = min(int(release[2:]) for release in history.releases if int(release[2:]) >= 6 and release not in broken)

    assert (found.outcome, *boundary(found)) == ("found", f"0.{good}", f"0.{bad}")
    assert {step.release for step in found.between} == {f"0.{i}" for i in range(good + 1, bad)}
    assert all(step.words == "it does not import" for step in found.between)


def test_a_bad_release_that_is_broken_is_said_at_once():
    found = searched(History(steps(13, 6, 1.2), broken={"0.12": "it does not compile"}))

    assert found.outcome == "cannot measure"
    assert found.steps[-1].words == "it does not compile"


@pytest.mark.parametrize("seed", range(5))
def test_in_a_history_of_several_changes_it_names_one_that_is_real(seed: int):
    slow = {3, 4, 5, 9, 10, 15, 16, 17, 18, 19}
    history = History({f"0.{i}": 1.3 if i in slow else 1.0 for i in range(20)}, seed=seed)
    found = searched(history)
    before, after = (int(str(release)[2:]) for release in boundary(found))

    assert after == before + 1
    assert before not in slow
    assert after in slow


def test_another_kernel_is_seen_in_one_round_each():
    kernels = {f"0.{i}": "fa3" if i >= 11 else "fa2" for i in range(20)}
    history = History(steps(20, 99, 1.0), kernels=kernels)
    found = searched(history, kind="resolved_backend")

    assert boundary(found) == ("0.10", "0.11")
    assert len(history.asked) == len(set(history.asked))
    assert "fa2 became fa3 at 3 of 3" in found.step_of("0.11").judgement.words  # type: ignore[union-attr]
    assert searched(History(steps(20, 1, 2.0)), kind="resolved_backend").outcome == "no change"


def test_a_status_that_became_bad_is_no_broken_release():
    statuses = {f"0.{i}": "mismatch" for i in range(7, 16)}
    history = History(steps(16, 99, 1.0), statuses=statuses)
    found = searched(history, kind="status")

    assert boundary(found) == ("0.6", "0.7")
    assert found.step_of("0.7").judgement.words == "3 of 3 mismatch"  # type: ignore[union-attr]
    assert searched(history).outcome == "cannot measure"  # a time is asked for, and there is none


def test_points_that_a_release_does_not_support_are_a_release_that_cannot_be_measured():
    statuses = {f"0.{i}": "unsupported" for i in range(3, 6)}
    found = searched(History(steps(16, 6, 1.3), statuses=statuses))

    assert boundary(found) == ("0.2", "0.6")
    assert {step.words for step in found.between} == {"no point ran in both releases: unsupported: it broke"}

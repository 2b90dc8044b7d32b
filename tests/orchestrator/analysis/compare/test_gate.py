"""The gate: its numbers against others' tables, and its error rates on simulated runs from an H200's real differences."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import gate as simulated
from orchestrator.analysis.compare.gate import Gate, GateEvidence, _Inverse, decide_gate, point_limits, t_quantile

RUNS = 100


@pytest.mark.parametrize(("share", "freedom", "value"), [(0.025, 8, 2.306), (0.001, 8, 4.501), (0.005, 4, 4.604), (0.05, 2, 2.920)])
def test_quantiles_of_student_s_t_are_those_of_the_tables(share: float, freedom: int, value: float):
    assert t_quantile(share, freedom) == pytest.approx(value, abs=5e-4)


def test_the_inverse_is_that_of_the_whole_covariance():
    draw = np.random.default_rng(1)
    own, effects, values = draw.uniform(1, 2, 30), draw.normal(size=(30, 4)), draw.normal(size=30)
    covariance = np.diag(own) + effects @ effects.T
    inverse = _Inverse(own, effects)

    assert inverse.times(values) == pytest.approx(np.linalg.solve(covariance, values))
    known = effects @ effects.T @ np.linalg.solve(covariance, effects @ effects.T)
    assert inverse.explained(effects) == pytest.approx(np.diag(known))


def test_a_point_needs_more_among_more_points_and_8_percent_at_most_if_its_noise_is_small():
    alone, among = point_limits(np.full(1, 0.005))[0], point_limits(np.full(1000, 0.005))[0]

    assert alone < among <= 0.08
    assert point_limits(np.full(1000, 0.03))[0] > 0.1  # normal noise alone reaches 10% there


def two_backends(changes: tuple[float, float], card: float = 0.012) -> GateEvidence:
    """Ten points of each of two backends on another card, without any noise of their own in this draw."""
    members = np.repeat([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]], 10, axis=1)
    return GateEvidence(
        np.repeat(changes, 10), np.zeros(20), np.full(20, 0.005**2), np.full((20, 1), card), members[1:].T * 0.003, members
    )


@pytest.mark.parametrize(
    ("changes", "red"),
    [
        ((0.0, 0.0), [False, False, False]),
        ((0.0, 0.03), [False, False, True]),
        ((0.02, 0.02), [False, False, False]),  # the card explains it
        ((0.0, -0.10), [False, False, False]),  # one got faster; the other did not get slower
        ((-0.01, 0.025), [False, False, True]),  # the card is faster, which hides a part
        ((0.08, 0.08), [True, True, True]),  # no card is so slow
    ],
)
def test_a_card_explains_what_all_have_in_common_and_no_more(changes: tuple[float, float], red: list[bool]):
    found = decide_gate(two_backends(changes))

    assert found.by_group.tolist()[1:] == red[1:] or found.by_group.tolist()[0]
    assert bool(found.by_group.any()) == any(red)


def test_a_pair_that_is_off_by_itself_does_not_make_its_group_red():
    given = two_backends((0.0, 0.0), card=0.002)
    given.log_ratio[:3] = 0.07

    assert not decide_gate(given).by_group.any()


def test_without_pairs_nothing_is_red():
    given = GateEvidence(*(np.zeros(0) for _ in range(3)), np.zeros((0, 0)), np.zeros((0, 0)), np.ones((1, 0)))

    assert not decide_gate(given).by_group.any() and not decide_gate(given).points.any()


@pytest.fixture(scope="module")
def scenarios() -> dict[str, simulated.Scenario]:
    """Runs of an H200's A/A points: log ratios from another run of them on the same card."""
    rows, again = simulated.rows_of("specdec_long_ctx_noise"), simulated.rows_of("specdec_dirty")
    pool = [simulated.as_pool("two runs", simulated.judged(again, rows))]
    once, on_4 = simulated.target(rows), simulated.target(rows, cards=4)
    return {
        "the same card": simulated.Scenario(once, pool),
        "points together": simulated.Scenario(once, pool, simulated.correlated(0.005)),
        "drift": simulated.Scenario(once, pool, simulated.drift(0.01)),
        "a backend faster": simulated.Scenario(once, pool, simulated.one_faster(0.1)),
        "four cards": simulated.Scenario(on_4, pool, simulated.other_cards(4, 0.012)),
        "one of four slower": simulated.Scenario(on_4, pool, simulated.one_slower(0.01)),
    }


@pytest.mark.parametrize(
    "name", ["the same card", "points together", "drift", "a backend faster", "four cards", "one of four slower"]
)
def test_an_unchanged_run_is_green(scenarios: dict[str, simulated.Scenario], name: str):
    assert simulated.red_share(scenarios[name], RUNS) <= 0.01


@pytest.mark.parametrize("name", ["the same card", "four cards"])
def test_a_slower_backend_or_point_is_red(scenarios: dict[str, simulated.Scenario], name: str):
    assert simulated.found_groups(scenarios[name], "backend", 0.03, 8)[0] >= 0.95
    assert simulated.found_points(scenarios[name], 0.10, RUNS) >= 0.9


def test_a_whole_run_that_is_slower_is_red_on_the_same_card(scenarios: dict[str, simulated.Scenario]):
    one = scenarios["the same card"]

    assert Gate(one.base).decide(np.full(len(one.se), np.log(1.03))).by_group.all()

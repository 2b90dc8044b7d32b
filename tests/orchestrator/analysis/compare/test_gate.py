"""The gate: its numbers against others' tables, what GPUs explain, and its error rates over committed datasets."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from benchmarks import gate as committed
from orchestrator import ROOT
from orchestrator.analysis.cards import Cards
from orchestrator.analysis.compare.gate import CLEAR, Gate, GateEvidence, _Inverse, decide_gate, evidence, point_limits, t_quantile
from orchestrator.analysis.compare.pairs import pair
from orchestrator.analysis.compare.verdicts import judge
from orchestrator.analysis.noise import NoiseFloors
from tests.helpers.compared import MORNING, NIGHT, table, timed


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


def test_a_point_needs_more_among_more_points_and_6_5_percent_at_most_if_its_noise_is_small():
    alone, among = point_limits(np.full(1, 0.005))[0], point_limits(np.full(1000, 0.005))[0]

    assert alone < among <= 0.065
    assert point_limits(np.full(1000, 0.03))[0] > 0.1  # normal noise alone reaches 10% there


def two_backends(changes: tuple[float, float], card: float = 0.012) -> GateEvidence:
    """Ten points of each of two backends on another card, without any noise of their own in this draw."""
    members = np.repeat([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]], 10, axis=1)
    return GateEvidence(
        *(np.repeat(changes, 10), np.zeros(20), np.full(20, 0.005**2), np.full((20, 1), card), members[1:].T * 0.003, members),
        settled=np.full(20, True),
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
    given = GateEvidence(
        *(np.zeros(0) for _ in range(3)), np.zeros((0, 0)), np.zeros((0, 0)), np.ones((1, 0)), np.zeros(0, dtype=bool)
    )

    assert not decide_gate(given).by_group.any() and not decide_gate(given).points.any()


def on_two_gpus(**keys: tuple[object, object]) -> pd.DataFrame:
    """One judged pair of 30 µs on two GPUs, whose memory differs by 2%; `keys` are both sides' values of columns."""
    gpus = {"device_uuid": ("GPU-a", "GPU-b"), "peak_tb_per_sec": (4.7, 4.606), "frac_of_peak": (0.95, 0.95)}
    given = {"bound": ("memory", "memory"), "launch_us": (2.9, 2.9), "num_samples": (4, 4), **gpus, **keys}
    sides = (table(timed("a", 30.0, when, **{k: v[i] for k, v in given.items()})) for i, when in enumerate((NIGHT, MORNING)))
    return judge(pair(*sides), NoiseFloors({}), 0.02)


@pytest.mark.parametrize(
    ("keys", "offset", "settled"),
    [
        ({}, 1.35 * math.log(4.7 / 4.606), True),
        ({"frac_of_peak": (0.55, 0.55)}, 0.0, True),  # memory binds it on paper alone
        ({"frac_of_peak": (0.7, 0.8)}, 1.35 * math.log(4.7 / 4.606) / 2, True),
        ({"bound": ("launch", "launch")}, 0.0, True),
        ({"bound": ("launch", "launch"), "launch_us": (2.9, 4.5)}, 0.75 / 30, True),  # a host of the other class
        ({"bound": ("launch", "launch"), "own_us": (27.2, 26.7)}, 0.5 / 30, True),  # both launches were measured
        ({"bound": ("launch", "launch"), "num_set_aside": (3, 5)}, 0.0, False),
        ({"bound": ("launch", "launch"), "stop_reason": ("throttled", "ci95")}, 0.0, False),
    ],
)
def test_what_the_gpus_and_their_hosts_explain_of_a_pair(keys: dict[str, tuple[object, object]], offset: float, settled: bool):
    given = evidence(on_two_gpus(**keys), [], NoiseFloors({}), Cards())

    assert (given.offset[0], bool(given.settled[0])) == (pytest.approx(offset), settled)


def test_a_point_that_did_not_settle_is_not_red_alone():
    given = two_backends((0.0, 0.0), card=0.002)
    given.log_ratio[0] = 0.3

    assert decide_gate(given).points.tolist() == [True] + [False] * 19
    assert not decide_gate(given._replace(settled=np.full(20, False))).points.any()


@pytest.mark.timeout(600)  # 14 s of one core
def test_the_rates_over_committed_datasets_on_one_gpu_and_on_two(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(committed, "DRAWN", 12)  # points of each comparison: some hundred in all
    names = [f"{file.parent.name}/{file.stem}" for file in sorted((ROOT / "results").glob("h200_[ms]*/*.parquet"))]
    lines = committed.all_rates(committed.committed(names), every=False)
    one_gpu = lines["gpus"].str.startswith("the same")

    for part in (lines[one_gpu], lines[~one_gpu]):
        of = part.sum(numeric_only=True)
        assert len(part) >= 8
        assert of["red"] <= committed.MAX_RED * len(part)
        assert of["found"] >= committed.FOUND_GROUPS * of["backends"]
        assert of["points found"] >= committed.FOUND_POINTS * of["points"]


def test_a_whole_run_that_is_slower_is_red_on_the_same_card_and_one_that_is_faster_or_exchanged_is_not():
    (one,) = committed.committed(["h200_main/specdec_long_ctx_noise", "h200_studies/specdec_dirty"])
    given = evidence(one.pairs, ["backend"], NoiseFloors({}), Cards())

    assert one.gpus == "the same H200"
    assert Gate(given).decide(np.full(len(one.pairs), np.log(1.03))).by_group.all()
    assert not committed.all_rates([one])[list(committed.COUNTS[:3])].any(axis=None)


def test_the_docs_have_the_change_that_is_clear_in_one_place():
    pages = {name: (ROOT / f"docs/{name}.md").read_text() for name in ("timing", "compare")}

    assert f"or if it is more than {math.expm1(CLEAR):.1%} slower by a normal distribution" in pages["timing"]
    assert "One point alone counts if it is [clearly slower](timing.md#the-gate)." in pages["compare"]

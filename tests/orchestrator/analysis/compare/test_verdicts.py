"""Verdicts against cases worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orchestrator.analysis.compare.pairs import pair
from orchestrator.analysis.compare.verdicts import adjusted, decide, judge, judge_groups
from orchestrator.analysis.noise import BETWEEN_RUNS, INTERLEAVED, NoiseFloors, summarise_samples
from orchestrator.storage.row import Row
from tests.helpers.compared import MORNING, table, timed

DEFAULT = NoiseFloors({})


def judged(baseline: list[Row], candidate: list[Row], same: float = 0.02) -> dict[str, str]:
    rows = judge(pair(table(*baseline), table(*candidate)), DEFAULT, same)
    return dict(zip(rows["backend"], rows["verdict"], strict=True))


def test_rows_of_many_datasets_together_are_judged_without_a_warning():
    """Each of their columns may lie apart in memory, which pandas warns of as columns are added; a warning is an error here."""
    rows = table(timed("a", 20), timed("b", 30))
    apart = pd.concat([rows[[name]] for name in rows], axis=1)

    assert len(judge(pair(apart, apart), DEFAULT, 0.02)) == 2


def test_p_values_are_adjusted_as_benjamini_and_hochberg_do():
    # In order 0.005, 0.01, 0.03, 0.04, times 4 over the rank: 0.02, 0.02, 0.04, 0.04.
    assert adjusted([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    # 0.5 * 2 / 1 = 1.0 is more than what the next, 0.6, is rejected at.
    assert adjusted([0.5, 0.6]) == pytest.approx([0.6, 0.6])
    assert len(adjusted([])) == 0


@pytest.mark.parametrize(
    ("log_ratio", "se", "verdict"),
    [
        (0.03, 0.005, "slower"),  # 6 standard errors from 0
        (-0.03, 0.005, "faster"),
        (0.0, 0.005, "same"),  # log 1.02 = 0.0198 is 4 standard errors away
        (0.01, 0.001, "same"),  # 10 standard errors from 0, and surely within 2%
        (0.03, 0.02, "undecided"),  # 1.5 standard errors from 0
        (0.0, 0.02, "undecided"),  # not surely within 2% either
    ],
)
def test_a_change_alone_is_judged_by_its_standard_error(log_ratio: float, se: float, verdict: str):
    assert decide(np.array([log_ratio]), np.array([se]), 0.02) == [verdict]


def test_a_change_that_counts_alone_is_undecided_among_a_thousand():
    # 2.5 standard errors: p = 0.012, under 3%; times 1000 it is not.
    log_ratio, se = np.zeros(1000), np.full(1000, 0.02)
    log_ratio[0] = 0.05

    assert decide(log_ratio[:1], se[:1], 0.02) == ["slower"]
    assert set(decide(log_ratio, se, 0.02)) == {"undecided"}


def spread_of(blocks: list[list[float]]) -> tuple[float, float]:
    sizes = [len(block) for block in blocks]
    row = timed("a", 1.0, samples_us=[us for block in blocks for us in block], block_sizes=sizes)
    found = summarise_samples(table(row)).iloc[0]
    return found["log_us"], found["log_se"]


def test_samples_count_singly_if_blocks_agree_and_by_block_if_not():
    l8, l9, l10, l12 = map(math.log, (8, 9, 10, 12))

    # Each block has one sample on either side of the median: 4 samples, so from rank 1/4 to rank 3/4.
    agree = spread_of([[8, 10], [9, 12]])
    # The first block lies under the median, the second over it: sums -2 and 2, design effect 8 / 4 * 2 = 4, worth one sample.
    apart = spread_of([[8, 9], [10, 12]])

    assert agree == pytest.approx(((l9 + l10) / 2, (l10 + (l12 - l10) / 4 - l8 - (l9 - l8) * 3 / 4) / 2))
    assert apart == pytest.approx(((l9 + l10) / 2, (l12 - l8) / 2))


def test_one_block_counts_as_one_sample():
    assert spread_of([[8, 9, 10, 12]])[1] == pytest.approx(math.log(12 / 8) / 2)


def test_a_row_without_blocks_is_cut_into_bursts_of_ten():
    times = [10.0] * 10 + [11.0] * 10
    cut, whole = (summarise_samples(table(timed("a", 10, samples_us=times, block_sizes=sizes))) for sizes in (None, [10, 10]))

    assert cut.equals(whole)


@pytest.mark.parametrize("samples", [None, [], [10.0], [10.0, 0.0]])
def test_a_row_without_samples_has_no_spread(samples: list[float] | None):
    assert summarise_samples(table(timed("a", 10, samples_us=samples), timed("b", 10))).isna().all(axis=1).tolist() == [True, False]


def test_the_clock_of_a_row_is_that_of_the_samples_that_have_one():
    clocks = [None] * 5 + [1980] * 10 + [1400] * 10
    row = timed("a", 10, samples_us=[10.0] * 25, block_sizes=[5, 10, 10], samples_mhz=clocks)

    assert summarise_samples(table(row))["mhz"].tolist() == [1690.0]


def test_faster_slower_same_and_undecided():
    # At 1000 µs in two runs the floors are 0.52% in all: 5% is 9 of them, 1.6% is 3, and 1.6% is no 1.64 of them within 2%.
    baseline = [timed(backend, 1000) for backend in "abcd"]
    candidate = [timed(backend, us, MORNING) for backend, us in zip("abcd", (1050, 950, 1001, 1015), strict=True)]

    assert judged(baseline, candidate) == {"a": "slower", "b": "faster", "c": "same", "d": "slower"}
    assert judged(baseline[2:], candidate[2:], same=0.01) == {"c": "undecided", "d": "slower"}


def test_short_kernels_need_larger_changes():
    # 0.6 µs of 20 µs are 3%.
    assert judged([timed("a", 20)], [timed("a", 21, MORNING)]) == {"a": "undecided"}
    assert judged([timed("a", 20)], [timed("a", 23, MORNING)]) == {"a": "slower"}


def test_interleaved_pairs_get_the_smaller_floor():
    (interleaved,) = judge(pair(table(timed("a", 20)), table(timed("a", 21))), DEFAULT, 0.02).to_dict("records")
    (separate,) = judge(pair(table(timed("a", 20)), table(timed("a", 21, MORNING))), DEFAULT, 0.02).to_dict("records")
    (elsewhere,) = judge(pair(table(timed("a", 20)), table(timed("a", 21, device_uuid="GPU-2"))), DEFAULT, 0.02).to_dict("records")
    time = math.sqrt(20 * 21)

    assert interleaved["interleaved"] and not separate["interleaved"] and not elsewhere["interleaved"]
    assert interleaved["verdict"] == "slower"
    assert separate["se"] ** 2 - interleaved["se"] ** 2 == pytest.approx((BETWEEN_RUNS.us / time) ** 2 + BETWEEN_RUNS.rel**2)
    assert elsewhere["se"] == pytest.approx(separate["se"])


@pytest.mark.parametrize(
    ("keys", "verdict", "note"),
    [
        ({}, "slower", ""),
        ({"samples_mhz": [1700] * 4}, "slower", "clock 1800 and 1700 MHz"),
        (
            {"samples_mhz": [1700] * 4, "stop_reason": "throttled", "throttle_reasons": "SwPowerCap"},
            "undecided",
            "throttled in the candidate (SwPowerCap); clock 1800 and 1700 MHz",
        ),
        ({"samples_mhz": None, "throttle_reasons": "SwPowerCap"}, "undecided", "throttled in the candidate (SwPowerCap)"),
        ({"samples_mhz": None}, "undecided", ""),
        ({"resolved_backend": "fa3"}, "slower", "ran fa3 (FlashInfer), was fa2"),
        ({"bimodal": True}, "slower", "two modes in the candidate's samples"),
        ({"bimodal": False}, "slower", ""),
    ],
)
def test_throttled_and_unknown_clocks_leave_3_percent_undecided(keys: dict[str, Any], verdict: str, note: str):
    baseline, candidate = timed("a", 1000, resolved_backend="fa2"), timed("a", 1030, MORNING, **{"resolved_backend": "fa2", **keys})
    (row,) = judge(pair(table(baseline), table(candidate)), DEFAULT, 0.02).to_dict("records")

    assert (row["verdict"], row["note"]) == (verdict, note)


def test_a_note_says_that_the_samples_of_the_baseline_have_two_modes_unless_the_pair_has_no_verdict():
    baseline, warm = timed("a", 1000, bimodal=True), timed("a", 1000, bimodal=True, l2="warm")
    rows = [judge(pair(table(one), table(timed("a", 1030, MORNING))), DEFAULT, 0.02).iloc[0] for one in (baseline, warm)]

    assert rows[0]["note"] == "two modes in the baseline's samples"
    assert rows[1]["note"] == "measured differently: l2 warm and dirty"


@pytest.mark.parametrize(
    ("keys", "verdict", "note"),
    [
        ({"device_uuid": "GPU-2"}, "slower", ""),
        ({"device_uuid": "GPU-2", "peak_tb_per_sec": 4.61}, "slower", ""),
        ({"device_uuid": "GPU-2", "peak_tb_per_sec": 4.5}, "undecided", ""),
        (
            {"device_uuid": "GPU-2", "peak_tb_per_sec": 4.5, "frac_of_peak": 0.2},
            "slower",
            "",
        ),  # its time does not follow the memory
        ({"device_uuid": "GPU-2", "peak_tflops": 780.0, "bound": "compute"}, "slower", ""),
        ({"device_uuid": "GPU-2", "resolved_backend": "fa3"}, "slower", "ran fa3 (FlashInfer), was fa2"),
        ({"device_uuid": "GPU-2", "peak_tb_per_sec": 4.5, "bound_of_candidate": "launch"}, "slower", ""),
        ({"peak_tb_per_sec": 4.5}, "slower", ""),  # one GPU, measured anew
        (
            {"device_uuid": "GPU-3", "device_name": "NVIDIA B200", "peak_tb_per_sec": 7.0},
            "slower",
            "",
        ),  # two kinds are what is asked
        ({"device_uuid": "GPU-2", "peak_tb_per_sec": None, "peak_tflops": None}, "slower", ""),
    ],
)
def test_unequal_gpus_of_one_kind_leave_3_percent_undecided(keys: dict[str, Any], verdict: str, note: str):
    bound = keys.get("bound", "memory")
    peaks = {"peak_tb_per_sec": 4.6, "peak_tflops": 800.0, "bound": bound, "frac_of_peak": 0.95, "resolved_backend": "fa2"}
    candidates = {**peaks, **keys, "bound": keys.pop("bound_of_candidate", bound)}
    baseline, candidate = (
        timed("a", 1000, **peaks),
        timed("a", 1030, MORNING, **{k: v for k, v in candidates.items() if k in peaks or k in keys}),
    )
    (row,) = judge(pair(table(baseline), table(candidate)), DEFAULT, 0.02).to_dict("records")

    assert (row["verdict"], row["note"]) == (verdict, note)


def test_a_doubled_time_is_slower_even_if_throttled():
    keys = {"samples_mhz": None, "throttle_reasons": "SwPowerCap"}

    assert judged([timed("a", 1000)], [timed("a", 2000, MORNING, **keys)]) == {"a": "slower"}


def test_points_without_a_time_on_a_side_are_judged_by_their_status():
    baseline = [timed(backend, 10) for backend in "abcd"]
    baseline += [timed("e", 10, status="failed"), timed("g", 10, status="unsupported")]
    baseline.append(timed("h", 10, status="unsupported", reason="needs 0.7"))
    candidate = [
        timed("a", 10, MORNING, "mismatch", "off by 0.3"),
        timed("b", 10, MORNING, "unsupported", "needs more"),
        timed("c", 10, MORNING, "unsupported", "needs more", device_name="NVIDIA L4"),
        *(timed(backend, 10, MORNING) for backend in "efh"),
        timed("g", 10, MORNING, "unsupported"),
    ]
    rows = judge(pair(table(*baseline), table(*candidate)), DEFAULT, 0.02)

    assert dict(zip(rows["backend"], zip(rows["verdict"], rows["note"], strict=True), strict=True)) == {
        "a": ("failing", "mismatch: off by 0.3"),
        "b": ("lost", "unsupported: needs more"),
        "c": ("missing", "unsupported: needs more"),
        "d": ("missing", "no row in the candidate"),
        "e": ("fixed", "was failed: "),
        "f": ("new", "no row in the baseline"),
        "h": ("new", "was unsupported: needs 0.7"),
    }


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"timer": "cupti"}, "measured differently: timer cuda_graph_events and cupti"),
        ({"l2": "warm"}, "measured differently: l2 dirty and warm"),
        ({"icache": "cold"}, "measured differently: icache warm and cold"),
        ({"pace": "sustained"}, "measured differently: pace bursts and sustained"),
        ({"samples_us": None}, "no samples stored"),
    ],
)
def test_pairs_timed_in_different_ways_are_undecided(keys: dict[str, Any], note: str):
    (row,) = judge(pair(table(timed("a", 10)), table(timed("a", 99, MORNING, **keys))), DEFAULT, 0.02).to_dict("records")

    assert (row["verdict"], row["note"], row["comparable"]) == ("undecided", note, False)


def test_pairs_are_matched_by_their_problem_and_not_by_point_id():
    chain, fork = {"mask": "t", "tree": [-1, 0, 1]}, {"mask": "t", "tree": [-1, 0, 0]}

    assert judged([timed("a", 1000, point_id="x")], [timed("a", 1000, MORNING, point_id="y")]) == {"a": "same"}
    assert judged([timed("a", 1000, **chain)], [timed("a", 1000, MORNING, **chain)]) == {"a": "same"}
    assert len(pair(table(timed("a", 1000, **chain)), table(timed("a", 1000, MORNING, **fork)))) == 2
    assert len(pair(table(timed("a", 1000)), table(timed("a", 1000, MORNING, page_size=16)))) == 2


def test_the_newest_row_of_a_point_counts_and_the_first_of_an_aa_pair():
    later = [timed("a", 1500, MORNING), timed("a", 1000), timed("a", 3000, MORNING, twin=1)]

    assert judged([timed("a", 1000, "2026-11-19T08:00:0{}+00:00")], later) == {"a": "slower"}
    assert pair(table(timed("a", 1)), table(*later))["median_us_b"].tolist() == [1500]


def test_with_two_devices_on_both_sides_each_is_compared_with_itself():
    fast, slow = {"device_name": "NVIDIA B200"}, {"device_name": "NVIDIA L4"}
    two = [timed("a", 100, **fast), timed("a", 1000, **slow)]
    pairs = pair(table(*two), table(*(dict(row) for row in two)))

    assert pairs["device_name"].tolist() == pairs["device_name_b"].tolist() == ["NVIDIA B200", "NVIDIA L4"]
    assert len(pair(table(*two[:1]), table(*two[1:]))) == 1


def test_a_group_has_its_mean_change_and_keeps_the_common_variance():
    baseline = [timed(backend, 1000) for backend in "abcd"]
    candidate = [timed(backend, us, MORNING) for backend, us in zip("abcd", (1000, 1000, 1100, 1100), strict=True)]
    rows = judge(pair(table(*baseline), table(*candidate)), DEFAULT, 0.02)
    everything, a, *_ = judge_groups(rows, ["backend"], 0.02).to_dict("records")
    common = INTERLEAVED.rel**2 + BETWEEN_RUNS.rel**2

    assert everything["log_ratio"] == pytest.approx(math.log(1.1) / 2)
    assert (everything["slower"], everything["same"], everything["verdict"]) == (2, 2, "slower")
    assert everything["se"] ** 2 == pytest.approx((rows["se"] ** 2 - common).sum() / 16 + common)
    assert (a["by"], a["value"], a["verdict"], a["points"]) == ("backend", "a", "same", 1)
    assert a["se"] == pytest.approx(rows["se"].iloc[0])


def test_no_pair_makes_no_group():
    rows = judge(pair(table(timed("a", 10)), table(timed("a", 10, MORNING, "failed"))), DEFAULT, 0.02)

    assert judge_groups(rows, ["backend"], 0.02).empty


def test_a_rough_time_is_wider_and_samples_of_another_backend_count_once():
    rough, credited = {"stop_reason": "decided"}, {"measured_as": "fa2_tc"}
    baseline = [timed("fa2_tc", 1000), timed("auto", 1000), timed("slow", 2000)]
    candidate = [timed("fa2_tc", 1050, MORNING), timed("auto", 1050, MORNING, **credited), timed("slow", 2040, MORNING, **rough)]
    rows = judge(pair(table(*baseline), table(*candidate)), DEFAULT, 0.02).set_index("backend")
    alone = judge(pair(table(*baseline[1:2]), table(*candidate[1:2])), DEFAULT, 0.02)

    assert rows["verdict"].to_dict() == {"fa2_tc": "slower", "auto": "slower", "slow": "undecided"}
    assert rows["counted"].to_dict() == {"fa2_tc": True, "auto": False, "slow": True}
    assert rows["note"]["auto"] == "samples of fa2_tc, whose call is the same"
    assert rows["note"]["slow"] == "rough in the candidate (timing.precision=decide)"
    assert alone["counted"].tolist() == [True]  # its source is not among the pairs

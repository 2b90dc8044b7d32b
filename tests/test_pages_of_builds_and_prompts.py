"""What pages of datasets say in figures about their rows: what could disturb them, and how far they agree with other datasets."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.findings import build_pages, builds
from benchmarks.findings.frames import rows
from benchmarks.findings.sinks import FP8, REST, SWEEP
from tests.helpers.datasets import RESULTS

BUILDS, PROMPTS, SINKS = "h200_engine_builds", "h200_engine_prefill", f"h200_{REST}"
PROMPT = ["routine", "batch_size", "s_qo", "s_kv"]
PROBLEM = ["batch_size", "s_kv", "s_qo", "window", "q_dtype", "kv_dtype", "page_order"]


def page(name: str) -> str:
    return (RESULTS / name / "_README.md").read_text()


@pytest.mark.parametrize("name", (BUILDS, PROMPTS, SINKS))
def test_a_page_says_how_sampling_ended_and_no_other_process_held_the_gpu(name: str):
    ran = rows(name)
    ends = ", ".join(
        f"`{why}` at {count}{' points' if at == 0 else ''}" for at, (why, count) in enumerate(_counts(ran["stop_reason"]).items())
    )

    assert f"- Sampling ended (`stop_reason`): {ends}.\n" in page(name)
    assert ran["other_processes"].isna().all() and not (ran["compile_s"] > 0).any()
    assert ran["device_uuid"].nunique() == 1
    assert set(ran[ran["ci95_rel"] > 0.05]["stop_reason"]) <= {"decided", "throttled"}


def test_the_page_of_the_builds_says_how_sharp_its_times_are_and_what_another_card_says():
    ran, found = rows(BUILDS), build_pages.two_h200s(builds.ON_H200)
    off = (found["ratio"] - 1).abs()
    held = ran[ran["throttle_reasons"] != "none"]
    said = f"differ by {off.median():.1%} at the median and {off.max():.1%} at most, and by {off[found['sharp']].max():.1%} at most"

    assert said in page(BUILDS) and f"- {len(found)} points ran on another H200 too" in page(BUILDS)
    assert f"The widest interval is {ran['ci95_rel'].max():.1%}" in page(BUILDS)
    assert len(held) == 4 and set(held["throttle_reasons"]) == {"SM clock under 95% of its fastest"}
    assert set(held["backend"]) == {"flash_attn_3"} and set(held["s_kv"]) == {32768}


def test_the_page_of_the_prompts_says_where_the_power_cap_held_the_clocks_down_and_what_another_card_says():
    ran = rows(PROMPTS)
    held = ran[ran["stop_reason"] == "throttled"]
    clocks = held.groupby(PROMPT)["sm_clock_mhz"].agg(["min", "max"])
    both = ran.set_index("point_id").join(rows("h200_ragged_prefill").set_index("point_id"), rsuffix="_there", how="inner")
    off, calm = (both["median_us"] / both["median_us_there"] - 1).abs(), both["stop_reason"] != "throttled"

    assert list(clocks.index) == [("paged_prefill", 8, 2048, 32768), ("ragged_prefill", 4, 16384, 16384)]
    assert f"by up to {(clocks['max'] - clocks['min']).max():.0f} MHz" in page(PROMPTS)
    assert f"- {len(both)} points ran on other H200s too" in page(PROMPTS)
    assert f"by {off[calm].max():.1%} at most, and by up to {off[~calm].max():.1%} where" in page(PROMPTS)


def test_the_page_of_the_rest_of_gpt_oss_says_which_problems_have_backends_from_two_runs():
    parts = [rows(name) for name in (SWEEP, FP8, REST)]
    every = pd.concat(parts)
    distinct, asked = every.drop_duplicates("point_id"), set(rows("h100_target_verify_gpt_oss")["point_id"])
    groups = every.groupby(PROBLEM, dropna=False)
    problems = groups["device_uuid"].nunique()
    mixed = every[groups["device_uuid"].transform("nunique") == 2]
    newest = mixed.groupby(PROBLEM, dropna=False).filter(lambda ok: (ok["run_id"] == parts[2]["run_id"].iloc[0]).any())

    assert set(distinct["point_id"]) == asked
    assert (
        f"all {len(distinct):,} points that the rules allow; the two older ones share {len(every) - len(distinct)} points"
        in page(SINKS)
    )
    both = newest.groupby(PROBLEM, dropna=False).ngroups
    assert f"So {both} of {len(problems)} problems" in page(SINKS)
    assert f"\nAt {(problems > 1).sum() - both} more two cards" in page(SINKS)
    assert set(newest["batch_size"]) == {1} and newest["window"].notna().all() and set(newest["kv_dtype"]) == {"bf16"}
    assert newest.groupby("routine")["run_id"].agg(set).to_dict() == {
        "paged_decode": {parts[0]["run_id"].iloc[0]},
        "paged_prefill": {parts[2]["run_id"].iloc[0]},
    }


def _counts(column: pd.Series) -> dict[str, int]:
    """How often each value is there, by name."""
    return {str(value): int(count) for value, count in sorted(column.value_counts().items())}

"""What the pages of datasets say of disturbances is what their rows hold, and how one run is compared with another."""

from __future__ import annotations

import math
import re

import pandas as pd
import pytest

from benchmarks.dataset_page import page
from benchmarks.findings import frames, nearness
from tests.helpers.datasets import RESULTS

SLOW_CLOCK = "SM clock under 95% of its fastest"
ON_H200 = ("h200_mla_mtp_all_candidates", "h200_target_verify_all_candidates", "h200_xqa_specdec_all_candidates")


def words_of(name: str) -> str:
    return (RESULTS / name / "_README.md").read_text()


@pytest.mark.parametrize("name", ON_H200)
def test_a_page_says_what_its_rows_say_of_disturbances(name: str):
    ok, text = frames.rows(name), words_of(name)
    sure = ok[~ok["stop_reason"].isin(["decided", "throttled"])]
    (most,) = re.findall(r"is at most ([\d.]+)%", text)
    (decided,) = re.findall(r"but for (\d+) ", text)

    assert ok["other_processes"].isna().all() and ok["compile_s"].fillna(0).eq(0).all()
    assert int(decided) == (ok["stop_reason"] == "decided").sum()
    assert float(most) == math.ceil(sure["ci95_rel"].max() * 1000) / 10


def test_the_pages_count_points_of_slow_clocks_and_those_that_were_stopped():
    mla, drafts, trees = (frames.rows(name) for name in ON_H200)
    stopped = mla[mla["stop_reason"] == "throttled"].set_index("backend")
    slow, few = (ok[ok["throttle_reasons"].str.contains(SLOW_CLOCK)] for ok in (drafts, trees))
    (coldest,) = drafts[drafts["stop_reason"] == "throttled"].itertuples()

    assert (
        len(stopped.drop_duplicates(["num_qo_heads", "s_qo", "batch_size", "s_kv"])) == 1
        and len(stopped) == mla["backend"].nunique() == 6
    )
    assert f"{stopped['sm_clock_mhz'].min():,.0f} to {stopped['sm_clock_mhz'].max():,.0f} MHz" in words_of(ON_H200[0])
    wide = stopped["ci95_rel"].map("{:.1%}".format)
    assert f"is {wide['flash_attn_3_sglang']}, and that of `flash_mla_vllm` {wide['flash_mla_vllm']}" in words_of(ON_H200[0])
    without_cap = (~slow["throttle_reasons"].str.contains("SwPowerCap")).sum()
    assert f"At {len(slow)} points" in words_of(ON_H200[1]) and f", {without_cap} of them without" in words_of(ON_H200[1])
    assert set(slow["batch_size"]) == {32} and slow["s_kv"].min() == 60000
    at = f"at {coldest.sm_clock_mhz:,.0f} MHz; its `ci95_rel` is {coldest.ci95_rel:.1%}"
    assert coldest.backend == "fa3" and at in words_of(ON_H200[1])
    assert f"At {len(few)} points, all of 16 requests" in words_of(ON_H200[2]) and set(few["batch_size"]) == {16}
    assert set(drafts["device_uuid"]) == set(trees["device_uuid"]) != set(mla["device_uuid"])


@pytest.mark.parametrize("name", ON_H200)
def test_the_first_part_of_a_page_is_written_from_its_rows(name: str):
    text = words_of(name)
    (question,) = text.split("\n\n")[1].split("\n")[:1]
    (command,) = re.findall(r"^\| command \| `(.*)` \|$", text, re.MULTILINE)
    written = page(RESULTS / name, question, command).replace(f"{RESULTS.parent}/", "")

    assert text.startswith(written)


def test_a_kernel_that_another_run_chose_costs_its_time_over_the_best():
    there = pd.DataFrame({"a": [1.0, 2.0], "b": [2.0, 1.0]}, index=pd.Index([8, 16], name="batch_size"))
    here = pd.DataFrame({"a": [3.0, 3.0], "b": [2.0, 3.0]}, index=there.index)

    assert frames.keeping(there, here).to_dict() == {8: 1.5, 16: 1.0}


def test_points_of_two_runs_are_compared_one_to_one_without_times_that_were_cut_short():
    one, other = "h200_mla_mtp_all_candidates", "h200_mla_mtp"
    both = nearness.shared(one, other)

    assert 100 < len(both) == len(nearness.again(one, other)) < len(frames.rows(one))
    assert not (both[["stop_reason", "stop_reason_before"]] == "decided").any(axis=None)
    assert set(both["backend"]) == {"fa2", "fa3"}
    assert (both["own_us"] / both["own_us_before"]).between(0.9, 1.1).all()

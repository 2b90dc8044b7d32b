"""The questions' SQL on the committed datasets against the same computed directly in pandas."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.keys import PROBLEM_KEYS
from orchestrator.analysis.questions import ask, open_views
from orchestrator.config.draft_cost import Draft
from orchestrator.config.engine import selected
from orchestrator.storage import parquet
from tests.helpers.datasets import DATASETS, RESULTS
from tests.helpers.winners import launch_of

KEYS = list(PROBLEM_KEYS)
BUILDS = {flag.own_build for engine in selected() for flag in engine.flags}


@cache
def data(name: str) -> Dataset:
    return open_views(RESULTS / name, Draft(acceptance=0.7, layers=4, rest_us=30, start_us=5, cost_us=3))


@cache
def ok(name: str) -> pd.DataFrame:
    """The newest `ok` rows of each point, from pandas alone."""
    table = parquet.read(RESULTS / name).to_pandas().sort_values("finished_at", kind="stable")
    newest = table.drop_duplicates(["point_id", "cluster", "device_name"], keep="last")
    right = newest[newest["status"] == "ok"].drop(columns="tree")
    assert set(right["timer"]) == {"cuda_graph_events"}
    return right.assign(own_us=right["own_us"].fillna(right["median_us"] - launch_of(right)))


def by(frame: pd.DataFrame, keys: list[str], values: list[str]) -> pd.DataFrame:
    """An answer sorted by its keys; null counts as a value."""
    keyed = frame[[*keys, *values]].copy()
    for key in keys:
        keyed[key] = (
            keyed[key].astype(object).where(keyed[key].notna(), "–").map(lambda v: f"{v:g}" if isinstance(v, float) else str(v))
        )
    return keyed.set_index(keys).sort_index().astype(float)


def same(view: str, name: str, expected: pd.DataFrame, keys: list[str], values: list[str]) -> int:
    """Compares the view with the frame; returns the number of rows."""
    found, wanted = by(ask(data(name), view).df(), keys, values), by(expected, keys, values)

    pd.testing.assert_index_equal(found.index, wanted.index)
    np.testing.assert_allclose(found.to_numpy(), wanted.to_numpy(), rtol=1e-12)
    return len(found)


def least(frame: pd.DataFrame, keys: list[str]) -> pd.Series:
    return frame.groupby(keys, dropna=False)["own_us"].min()


def once(name: str) -> pd.DataFrame:
    """The rows that compete: each kernel or build once, by the backend of its name; a reference only where nothing else ran."""
    rows = ok(name)
    is_reference = rows["backend"] == "torch_sdpa"
    has_others = (~is_reference).groupby([rows[key] for key in KEYS], dropna=False).transform("any")
    rows = rows[~(is_reference & has_others)]
    kernel = rows["backend"].where(rows["backend"].isin(BUILDS), rows["resolved_backend"])
    own = rows.assign(kernel=kernel, own=rows["backend"] == kernel).sort_values("own", ascending=False, kind="stable")
    return own.drop_duplicates([*KEYS, "kernel"])


def winners(name: str) -> pd.DataFrame:
    """The best time of each problem, and how far it is ahead of the next."""
    return ahead(once(name).sort_values("median_us"), KEYS)


def winners_of_calls(name: str) -> pd.DataFrame:
    """The same whether paged decode or paged prefill takes the queries."""
    rows = once(name)
    rows = rows.assign(
        kind=rows["routine"].replace(["paged_decode", "paged_prefill"], "paged"), late=rows["backend"] == "torch_sdpa"
    )
    keys = ["kind", *(key for key in KEYS if key not in ("routine", "out_dtype"))]
    return ahead(rows.sort_values(["late", "own_us", "median_us", "backend"]), keys)


def ahead(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The first row of equal keys, and how far it is ahead of the second."""
    grouped = rows.groupby(keys, dropna=False)
    first = grouped.nth(0)
    second = grouped.nth(1).set_index(keys)["own_us"].reindex(pd.MultiIndex.from_frame(first[keys]))
    return first.assign(margin=second.to_numpy() / first["own_us"] - 1)


@pytest.mark.parametrize("name", DATASETS)
def test_the_best_backends(name: str):
    assert same("best", name, winners_of_calls(name), KEYS, ["median_us", "margin"]) >= 12


def test_the_crossover():
    keys = [key for key in KEYS if key != "routine"]
    wide = winners("h200_drafts/target_verify").pivot_table(
        index=keys, columns="routine", values="median_us", dropna=False, observed=True
    )
    wide = wide.dropna(subset=["paged_decode", "paged_prefill"]).reset_index()
    wide = wide.rename(columns={"paged_decode": "decode_us", "paged_prefill": "prefill_us"})

    assert same("crossover", "h200_drafts/target_verify", wide, keys, ["decode_us", "prefill_us"]) > 50


def test_where_fp8_pays():
    keys = ["batch_size", "s_qo", "s_kv"]
    rows = winners("h200_main/specdec_long_ctx")
    rows = rows[rows["backend"] != "torch_sdpa"]
    half, cache, queries = (
        least(rows[(rows["q_dtype"] == q) & (rows["kv_dtype"] == kv)], keys)
        for q, kv in (("bf16", "bf16"), ("bf16", "fp8_e4m3"), ("fp8_e4m3", "fp8_e4m3"))
    )
    expected = pd.DataFrame({"fp8_kv_gain": half / cache, "fp8_q_gain": half / queries}).reset_index()

    assert same("fp8", "h200_main/specdec_long_ctx", expected, keys, ["fp8_kv_gain", "fp8_q_gain"]) == 64


def test_what_a_draft_costs_against_its_tokens():
    keys = ["num_qo_heads", "kv_dtype", "s_kv"]
    times = least(ok("h200_mla/mla_mtp"), [*keys, "batch_size", "s_qo"]).reset_index()
    ones = times[times["s_qo"] == 1].set_index([*keys, "batch_size"])["own_us"]
    drafts = times[times["s_qo"] > 1]

    def one(batch: pd.Series) -> np.ndarray:
        return ones.reindex(pd.MultiIndex.from_frame(drafts[keys].assign(batch=batch))).to_numpy()

    expected = drafts.assign(
        cost=drafts["own_us"] / one(drafts["batch_size"]), gain=one(drafts["batch_size"] * drafts["s_qo"]) / drafts["own_us"]
    ).dropna(subset=["cost", "gain"], how="all")
    assert same("q_len", "h200_mla/mla_mtp", expected, [*keys, "batch_size", "s_qo"], ["cost", "gain"]) > 200


@pytest.mark.parametrize("name", ["h200_releases/auto_routing", "h200_main/specdec_long_ctx", "h200_drafts/target_verify"])
def test_the_regret_of_auto(name: str):
    choices = ok(name)[ok(name)["backend"] != "torch_sdpa"]
    best = winners(name)[[*KEYS, "own_us"]].rename(columns={"own_us": "best_us"})
    autos = choices[choices["backend"] == "auto"].merge(best, on=KEYS)
    expected = autos.assign(regret=(autos["own_us"] / autos["best_us"]).clip(lower=1))

    assert same("regret", name, expected, KEYS, ["regret"]) > 50


def test_the_best_draft_length():
    keys = ["batch_size", "s_kv", "q_dtype", "kv_dtype"]
    rows = winners("h200_main/specdec_long_ctx")
    times = least(rows[rows["backend"] != "torch_sdpa"], [*keys, "s_qo"]).reset_index()
    drafted = times["s_qo"] - 1
    step_us = 4 * times["own_us"] + 30 + (drafted > 0) * 5 + 3 * drafted
    times = times.assign(tokens_per_s=times["batch_size"] * (1 - 0.7 ** times["s_qo"]) / (1 - 0.7) / step_us * 1e6)
    first = times.sort_values("tokens_per_s", ascending=False).groupby(keys).nth(0)
    one = times[times["s_qo"] == 1].set_index(keys)["tokens_per_s"].reindex(pd.MultiIndex.from_frame(first[keys]))
    several = first[keys].merge(times.groupby(keys).size().rename("lengths").reset_index())["lengths"].to_numpy() > 1
    expected = first.assign(best_s_qo=first["s_qo"], gain=first["tokens_per_s"] / one.to_numpy())[several]

    assert same("draft", "h200_main/specdec_long_ctx", expected, keys, ["best_s_qo", "tokens_per_s", "gain"]) == 48


@pytest.mark.parametrize("name", DATASETS)
def test_the_roofline_and_the_statuses(name: str):
    rows = parquet.read(RESULTS / name).to_pandas()
    fit = rows[rows["status"] == "ok"]
    found = ask(data(name), "roofline").df()

    assert found["intensity"].sum() == pytest.approx((fit["flops"] / fit["bytes"]).sum())
    assert found["tflops"].sum() == pytest.approx(fit["tflops"].sum())
    assert dict(data(name).execute("SELECT status, sum(points)::BIGINT FROM statuses GROUP BY ALL")) == (
        rows["status"].value_counts().to_dict()
    )


@pytest.mark.parametrize("name", DATASETS)
def test_spikes(name: str):
    """By a loop over every point and axis, from the definition."""
    rows = ok(name)
    series_keys = [key for key in KEYS if key not in ("batch_size", "s_qo", "s_kv")] + ["backend", "resolved_backend"]
    series = rows.groupby(series_keys, dropna=False).ngroup()
    offs = [off for axis in ("batch_size", "s_qo", "s_kv") for off in off_the_lines(rows.assign(series=series), axis)]
    off = pd.DataFrame(offs, columns=["point_id", "series", "kernel", "axis", "x", "off"])
    own, kernels = (off.groupby([of, "axis", "x"])["off"].transform("median") for of in ("series", "kernel"))
    many_own, many = (off.groupby([of, "axis", "x"])["off"].transform("size") >= 3 for of in ("series", "kernel"))
    beyond = off["off"] - own.where(many_own, kernels.where(many, 0))
    extent = beyond.groupby(off["point_id"]).agg(["min", "max"])
    expected = set(extent.index[(extent["min"] > np.log(1.3)) | (extent["max"] < -np.log(1.3))])
    found = data(name).execute("SELECT point_id FROM spikes JOIN rows USING (row)")

    assert {point_id for (point_id,) in found} == expected


def off_the_lines(rows: pd.DataFrame, axis: str) -> list[tuple[object, ...]]:
    others = [a for a in ("batch_size", "s_qo", "s_kv") if a != axis]
    found: list[tuple[object, ...]] = []
    read = rows[["point_id", "series", "resolved_backend", "median_us", axis, *others]]  # of 110 columns
    for (series, *_), line in read.sort_values(axis).groupby(["series", *others]):
        at, points, kernels = (line[name].to_numpy() for name in (axis, "point_id", "resolved_backend"))
        x, y = np.log(at.astype(float)), np.log(line["median_us"].to_numpy())
        for i in range(1, len(line) - 1):
            straight = np.interp(x[i], [x[i - 1], x[i + 1]], [y[i - 1], y[i + 1]])
            found.append((points[i], series, kernels[i], axis, at[i], y[i] - straight))
    return found

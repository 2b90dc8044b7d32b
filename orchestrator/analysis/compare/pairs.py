"""The rows of both sides of a comparison side by side, and how alike the two measurements of a pair are."""

from __future__ import annotations

import duckdb
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kernels.problem import Problem
from orchestrator.analysis.keys import OWN_US
from orchestrator.analysis.noise import first_of_aa_pairs, summarise_samples
from orchestrator.storage.row import BAD

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

POINT_COLUMNS = (*Problem.model_fields, "backend")  # what both rows of a pair share
PLACE_COLUMNS = ("device_name", "env")  # shared too, if both sides have several of them
TIMING_SETTINGS = ("timer", "l2", "icache", "cuda_graph")  # times are compared only if these are equal
LIST_COLUMNS = ("samples_us", "samples_mhz", "block_sizes", "set_aside_us")  # summarised before rows are paired
CEILINGS = {"memory": ("peak_tb_per_sec", "TB/s"), "compute": ("peak_tflops", "TFLOP/s")}  # by the bound of a point


def pair(baseline: pd.DataFrame, candidate: pd.DataFrame) -> pd.DataFrame:
    """Rows of both sides side by side (`_a` baseline, `_b` candidate), one line for each point that was measured on either.

    If a side has several rows of a point, the newest one counts. If both sides have several devices, a point is
    paired with itself on the same one.
    """
    a, b = _summarised(baseline), _summarised(candidate)
    places = [place for place in PLACE_COLUMNS if min(a[place].nunique(), b[place].nunique()) > 1]
    key = [*POINT_COLUMNS, *places]
    newest = [side.sort_values("finished_at", kind="stable").drop_duplicates(key, keep="last") for side in (a, b)]
    paired = newest[0].merge(newest[1], on=key, how="outer", suffixes=("_a", "_b"))
    return paired.assign(**{f"{place}_{side}": paired[place] for place in places for side in "ab"})


def _summarised(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with their samples summarised and trees as text. Of A/A pairs only the first row stays."""
    first = first_of_aa_pairs(rows)
    alone = first.assign(context="isolated")  # a step's own time has no launch, but its samples have
    found = first.assign(tree=tree_texts(first), launch_share_us=alone["median_us"] - own_times(alone))
    return found.join(summarise_samples(first)).drop(columns=list(LIST_COLUMNS))


def own_times(rows: pd.DataFrame) -> Floats:
    """`own_us` of each row, as every question has it."""
    needed = rows[["context", "in_step_us", "own_us", "timer", "launch_us", "median_us"]].assign(row=range(len(rows)))
    with duckdb.connect() as con:
        con.register("needed", needed)
        found = con.sql(f"SELECT {OWN_US} AS own FROM needed ORDER BY row").fetchnumpy()["own"]
    return np.asarray(found, dtype=float)


def tree_texts(rows: pd.DataFrame) -> list[str | None]:
    """The tree of each row as text, which can be compared."""
    return [None if tree is None else " ".join(map(str, tree)) for tree in rows["tree"]]


def is_interleaved(pairs: pd.DataFrame) -> Flags:
    """Pairs measured on one device at the same time, as A/A pairs are: whatever slowed one slowed the other."""
    same_device = pairs["device_uuid_a"] == pairs["device_uuid_b"]
    overlap = (pairs["started_at_a"] <= pairs["finished_at_b"]) & (pairs["started_at_b"] <= pairs["finished_at_a"])
    return np.asarray(same_device & overlap, dtype=bool)


def is_throttled(pairs: pd.DataFrame, side: str) -> Flags:
    """Rows that are throttled: all of their samples were, or some were and the row has no clocks to tell which."""
    all_samples = pairs[f"stop_reason_{side}"] == "throttled"
    some_samples = ~pairs[f"throttle_reasons_{side}"].fillna("none").isin(["none", ""])
    return np.asarray(all_samples | (some_samples & pairs[f"mhz_{side}"].isna()), dtype=bool)


def ceiling_difference(pairs: pd.DataFrame) -> Floats:
    """How much two GPUs of one kind differ: the absolute log ratio of the measured ceilings that bind a point.

    0 for one GPU and for two kinds of device. Of two H200s one read memory 1.9% faster than the other, and its memory-bound
    kernels were as much faster, whatever code ran. Compute ceilings count only if both sides ran the same kernel: two kernels may
    compute in two dtypes, and their ceilings then say nothing about the GPUs.
    """
    of_one_kind = (pairs["device_name_a"] == pairs["device_name_b"]) & (pairs["device_uuid_a"] != pairs["device_uuid_b"])
    difference: Floats = np.zeros(len(pairs))
    for bound, (name, _) in CEILINGS.items():
        log_ratio = np.log(pairs[f"{name}_b"].astype(float) / pairs[f"{name}_a"].astype(float)).abs().fillna(0.0)
        binds = (pairs["bound_a"] == bound) | (pairs["bound_b"] == bound)
        says_something = (pairs["resolved_backend_a"] == pairs["resolved_backend_b"]) | (bound == "memory")
        difference = np.maximum(difference, np.where(of_one_kind & binds & says_something, log_ratio, 0.0))
    return difference


def is_rough(pairs: pd.DataFrame, side: str) -> Flags:
    """Rows that were only measured until they were certainly not the best (timing.precision=decide)."""
    return np.asarray(pairs[f"stop_reason_{side}"] == "decided", dtype=bool)


def is_repeated(pairs: pd.DataFrame, comparable: Flags) -> Flags:
    """Pairs whose samples, on a side, are those of another comparable pair: one measurement must not count twice."""
    source = pairs["measured_as_a"].fillna(pairs["measured_as_b"])
    if source.isna().all():
        return np.zeros(len(pairs), dtype=bool)
    place = [f"{place}_{side}" for place in PLACE_COLUMNS for side in "ab"]
    keys = [pairs[name].map(str) for name in (*(name for name in POINT_COLUMNS if name != "backend"), *place)]
    known = {key for key, counts in zip(zip(*keys, pairs["backend"], strict=True), comparable, strict=True) if counts}
    return np.array([key in known for key in zip(*keys, source, strict=True)], dtype=bool)


def is_ok(pairs: pd.DataFrame, side: str) -> Flags:
    """Pairs whose row on this side has the status `ok`."""
    return np.asarray(pairs[f"status_{side}"] == "ok", dtype=bool)


def is_timed_alike(pairs: pd.DataFrame) -> Flags:
    """Pairs that were timed with the same timer and the same state of the caches."""
    a, b = (pairs[[f"{name}_{side}" for name in TIMING_SETTINGS]].astype(str).to_numpy() for side in "ab")
    return np.asarray((a == b).all(axis=1), dtype=bool)


def verdict_without_times(row: pd.Series) -> str:
    """The verdict on a point without a time on one side: failing, lost, missing, fixed or new; "" if neither side has one.

    A point is `new` if the baseline has no row of it, skipped it, or did not support it, so that nothing was wrong there.
    It is `lost` if it is unsupported now on the same kind of device, and `missing` if it has no row, was skipped, or is
    unsupported on another kind.
    """
    ok_a, ok_b = row["status_a"] == "ok", row["status_b"] == "ok"
    if not ok_a:
        return "" if not ok_b else "fixed" if row["status_a"] in BAD else "new"
    if row["status_b"] in BAD:
        return "failing"
    return "lost" if row["status_b"] == "unsupported" and row["device_name_a"] == row["device_name_b"] else "missing"

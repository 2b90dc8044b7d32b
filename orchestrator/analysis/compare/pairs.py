"""The rows of both sides of a comparison side by side, and how alike the two measurements of a pair are."""

from __future__ import annotations

import duckdb
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kernels.problem import Problem
from orchestrator.analysis.keys import OWN_US, TIMING_KEYS
from orchestrator.analysis.noise import first_of_aa_pairs, summarise_samples
from orchestrator.storage.row import BAD

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

POINT_COLUMNS = (*Problem.model_fields, "backend")  # what both rows of a pair share
PLACE_COLUMNS = ("device_name", "env")  # shared too, if both sides have several of them
TIMING_SETTINGS = (*(key for key in TIMING_KEYS if key != "context"), "cuda_graph")  # times are compared only if these are equal
LIST_COLUMNS = ("samples_us", "samples_mhz", "block_sizes", "set_aside_us")  # summarised before rows are paired
MEMORY = "peak_tb_per_sec"  # the measured ceiling by which two GPUs of a kind differ; times at that of compute do not follow it
FOLLOWS = (0.6, 0.9)  # a time follows the memory not at all below this share of its ceiling, and wholly above the other
# Times that follow the memory differ by so many times what the ceilings do, 1.0 to 1.6 among 30 pairs of GPUs; those of
# `LONG_CODE_KERNELS` by so much more, 1.2 to 2.6.
PER_CEILING, LONG_CODE_FOLLOWS = 1.35, 1.4
LONG_CODE_KERNELS = "xqa"  # their names begin so; with drafts their code fills the cache (docs/timing.md)


def pair(baseline: pd.DataFrame, candidate: pd.DataFrame) -> pd.DataFrame:
    """Newest rows of both sides, or of their `summary`, side by side (`_a`, `_b`): a line for each point, and device if several."""
    a, b = (side if "log_us" in side else summary(side) for side in (baseline, candidate))
    places = [place for place in PLACE_COLUMNS if min(a[place].nunique(), b[place].nunique()) > 1]
    key = [*POINT_COLUMNS, *places]
    newest = [side.sort_values("finished_at", kind="stable").drop_duplicates(key, keep="last") for side in (a, b)]
    paired = newest[0].merge(newest[1], on=key, how="outer", suffixes=("_a", "_b")).copy()  # its columns together in memory
    return paired.assign(**{f"{place}_{side}": paired[place] for place in places for side in "ab"})


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with their samples summarised and trees as text. Of A/A pairs only the first row stays."""
    first = first_of_aa_pairs(rows).copy()  # its columns together in memory
    alone = first.assign(context="isolated")  # a step's own time has no launch, but its samples have
    found = first.assign(tree=tree_texts(first), launch_share_us=alone["median_us"] - own_times(alone))
    return found.join(summarise_samples(first)).drop(columns=list(LIST_COLUMNS))


def own_times(rows: pd.DataFrame) -> Floats:
    """`own_us` of each row, as every question has it."""
    needed = rows[["context", "in_step_us", "own_us", "timer", "launch_us", "median_us"]].assign(row=range(len(rows)))
    with duckdb.cursor() as con:  # a new database takes 15 ms
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


def memory_difference(pairs: pd.DataFrame) -> Floats:
    """(n,) log ratio by which the second of two GPUs of a kind takes longer because of its memory; 0 for one GPU and two kinds."""
    other = (pairs["device_name_a"] == pairs["device_name_b"]) & (pairs["device_uuid_a"] != pairs["device_uuid_b"])
    ratio = np.log(pairs[f"{MEMORY}_a"].astype(float) / pairs[f"{MEMORY}_b"].astype(float)).fillna(0.0)
    return np.asarray(other * follows_memory(pairs) * PER_CEILING * ratio, dtype=float)


def follows_memory(pairs: pd.DataFrame) -> Floats:
    """(n,) how far each pair's time follows the GPU's memory, by the share of the ceiling that both sides reach.

    A point may be bound by memory on paper and reach half of its ceiling: then another GPU's memory changes nothing.
    """
    reached = pairs[["frac_of_peak_a", "frac_of_peak_b"]].astype(float).mean(axis=1).fillna(0.0).to_numpy()
    memory = (pairs["bound_a"] == "memory") & (pairs["bound_b"] == "memory")
    share = np.clip((reached - FOLLOWS[0]) / (FOLLOWS[1] - FOLLOWS[0]), 0.0, 1.0)
    return np.asarray(memory * share * np.where(is_long_code(pairs), LONG_CODE_FOLLOWS, 1.0), dtype=float)


def is_long_code(pairs: pd.DataFrame) -> Flags:
    """Pairs whose kernel, on a side, is one of `LONG_CODE_KERNELS` with drafts."""
    kernels = (pairs[f"resolved_backend_{side}"].fillna(pairs["backend"]).astype(str) for side in "ab")
    long_a, long_b = (kernel.str.startswith(LONG_CODE_KERNELS) for kernel in kernels)
    return np.asarray((long_a | long_b) & (pairs["s_qo"].astype(str) != "1"), dtype=bool)


def is_rough(pairs: pd.DataFrame, side: str) -> Flags:
    """Rows that were only measured until they were certainly not the best (timing.precision=decide)."""
    return np.asarray(pairs[f"stop_reason_{side}"] == "decided", dtype=bool)


def is_repeated(pairs: pd.DataFrame, comparable: Flags) -> Flags:
    """Pairs whose samples, on a side, are those of another comparable pair: one measurement must not count twice."""
    source = pairs["measured_as_a"].fillna(pairs["measured_as_b"])
    if source.isna().all():
        return np.zeros(len(pairs), dtype=bool)
    place = [f"{place}_{side}" for place in PLACE_COLUMNS for side in "ab"]
    keys = [name for name in (*POINT_COLUMNS, *place) if name != "backend"]
    problems = pairs.groupby(keys, dropna=False, sort=False).ngroup()
    known = set(zip(problems[comparable], pairs.loc[comparable, "backend"], strict=True))
    return np.array([key in known for key in zip(problems, source, strict=True)], dtype=bool)


def is_timed_alike(pairs: pd.DataFrame) -> Flags:
    """Pairs that were timed with the same timer and the same state of the caches."""
    a, b = (pairs[[f"{name}_{side}" for name in TIMING_SETTINGS]].astype(str).to_numpy() for side in "ab")
    return np.asarray((a == b).all(axis=1), dtype=bool)


def verdict_without_times(status_a: object, status_b: object, device_a: object, device_b: object) -> str:
    """The verdict on a point without a time on one side: failing, lost, missing, fixed or new; "" if neither side has one.

    A point is `new` if the baseline has no row of it, skipped it, or did not support it, so that nothing was wrong there.
    It is `lost` if it is unsupported now on the same kind of device, and `missing` if it has no row, was skipped, or is
    unsupported on another kind.
    """
    ok_a, ok_b = status_a == "ok", status_b == "ok"
    if not ok_a:
        return "" if not ok_b else "fixed" if status_a in BAD else "new"
    if status_b in BAD:
        return "failing"
    return "lost" if status_b == "unsupported" and device_a == device_b else "missing"

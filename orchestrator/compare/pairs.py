"""Two sides of a comparison, row beside row: what was measured on both, how alike, and what a person should know of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kernels.problem import Problem
from orchestrator.compare.spread import of_samples
from orchestrator.row import BAD

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Flags = np.ndarray[Any, np.dtype[np.bool_]]

MEASURED = (*Problem.model_fields, "backend")  # what a pair has in common
SETTINGS = ("timer", "l2", "icache", "cuda_graph")  # how both must have been timed
CLOCK_TOLD = 0.01  # clocks further apart are told of
CEILINGS = {"memory": ("peak_tb_per_sec", "TB/s"), "compute": ("peak_tflops", "TFLOP/s")}  # by what binds a point
CEILING_TOLD = 0.01  # ... and so are ceilings
LISTS = ("samples_us", "samples_mhz", "block_sizes", "set_aside_us")  # are summed up before rows are paired
PLACES = ("device_name", "cluster")  # join what a pair has in common where both sides hold several


def pair(baseline: pd.DataFrame, candidate: pd.DataFrame) -> pd.DataFrame:
    """Rows of both sides side by side (`_a` baseline, `_b` candidate), one for each point that was measured on either.

    Of several rows of a point on one side the newest stands. Where both sides hold several devices, or clusters, a point is
    paired on its own.
    """
    a, b = _keyed(baseline), _keyed(candidate)
    places = [place for place in PLACES if min(a[place].nunique(), b[place].nunique()) > 1]
    key = [*MEASURED, *places]
    newest = [side.sort_values("finished_at", kind="stable").drop_duplicates(key, keep="last") for side in (a, b)]
    paired = newest[0].merge(newest[1], on=key, how="outer", suffixes=("_a", "_b"))
    return paired.assign(**{f"{place}_{side}": paired[place] for place in places for side in "ab"})


def _keyed(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with their samples summarised, twins of one run but the first left out, and trees as text."""
    first = rows[rows["twin"].fillna(0) == rows["twin"].fillna(0).min()]
    trees = [None if tree is None else " ".join(map(str, tree)) for tree in first["tree"]]
    return first.assign(tree=trees).join(of_samples(first)).drop(columns=list(LISTS))


def in_turns(pairs: pd.DataFrame) -> Flags:
    """Pairs measured on one device at one time, as twins are: what befell one befell the other."""
    same_device = pairs["device_uuid_a"] == pairs["device_uuid_b"]
    overlap = (pairs["started_at_a"] <= pairs["finished_at_b"]) & (pairs["started_at_b"] <= pairs["finished_at_a"])
    together: Flags = (same_device & overlap).to_numpy(dtype=bool)
    return together


def is_held_down(pairs: pd.DataFrame, side: str) -> Flags:
    """Rows whose samples were taken with the clock held down: all of them, or some in a row that kept no clocks."""
    throttled = pairs[f"stop_reason_{side}"] == "throttled"
    named = ~pairs[f"throttle_reasons_{side}"].fillna("none").isin(["none", ""])
    held: Flags = (throttled | (named & pairs[f"mhz_{side}"].isna())).to_numpy(dtype=bool)
    return held


def ceilings_apart(pairs: pd.DataFrame) -> Floats:
    """By how much two GPUs of one kind differ: log ratio of the measured ceilings that bind a point; 0 for one GPU or two kinds.

    Of two H200s one read 1.9% faster than the other, and so were its memory-bound kernels, whatever code ran. Of two kernels the
    rates for arithmetic may be those of two dtypes, and say nothing of the GPUs.
    """
    import numpy as np

    cousins = (pairs["device_name_a"] == pairs["device_name_b"]) & (pairs["device_uuid_a"] != pairs["device_uuid_b"])
    apart: Floats = np.zeros(len(pairs))
    for bound, (name, _) in CEILINGS.items():
        log_ratio = np.log(pairs[f"{name}_b"].astype(float) / pairs[f"{name}_a"].astype(float)).abs().fillna(0.0)
        of_bound = (pairs["bound_a"] == bound) | (pairs["bound_b"] == bound)
        comparable = (pairs["resolved_backend_a"] == pairs["resolved_backend_b"]) | (bound == "memory")
        apart = np.maximum(apart, np.where(cousins & of_bound & comparable, log_ratio, 0.0))
    return apart


def timed_alike(pairs: pd.DataFrame) -> Flags:
    """Pairs with a time on both sides, taken with the same timer and the same state of the caches."""
    import numpy as np

    ok = [(pairs[f"status_{side}"] == "ok").to_numpy(dtype=bool) for side in "ab"]
    alike = [(pairs[f"{name}_a"].astype(str) == pairs[f"{name}_b"].astype(str)).to_numpy(dtype=bool) for name in SETTINGS]
    told: Flags = np.logical_and.reduce([*ok, *alike])
    return told


def without_times(row: pd.Series) -> str:
    """What became of a point that one side or both have no time for; nothing of what neither timed.

    `failing`, `lost` (unsupported on the same kind of device) or `missing` where the baseline alone has one; else `mended`, `new`.
    """
    ok_a, ok_b = row["status_a"] == "ok", row["status_b"] == "ok"
    if not ok_a:
        return "" if not ok_b else "mended" if isinstance(row["status_a"], str) else "new"
    if row["status_b"] in BAD:
        return "failing"
    return "lost" if row["status_b"] == "unsupported" and row["device_name_a"] == row["device_name_b"] else "missing"


def is_remarkable(judged: pd.DataFrame) -> pd.Series:
    """Judged pairs that `remark` has words for."""
    clock = (judged["mhz_b"] / judged["mhz_a"] - 1).abs() > CLOCK_TOLD
    kernel = judged["resolved_backend_a"] != judged["resolved_backend_b"]
    ceilings = ceilings_apart(judged) > CEILING_TOLD
    return ~judged["told"] | judged["held_a"] | judged["held_b"] | clock | ceilings | kernel


def remark(row: pd.Series) -> str:
    """What a person should know of a pair beside its numbers: why there is no verdict, a clock held down, another kernel."""
    a, b = (row[f"status_{side}"] for side in "ab")
    if a == "ok" and b != "ok":
        return f"{b}: {row['reason_b']}" if isinstance(b, str) else "no row in the candidate"
    if b == "ok" and a != "ok":
        return f"was {a}: {row['reason_a']}" if isinstance(a, str) else "no row in the baseline"
    unlike = [f"{name} {x} and {y}" for name in SETTINGS if str(x := row[f"{name}_a"]) != str(y := row[f"{name}_b"])]
    if unlike:
        return f"measured differently: {', '.join(unlike)}"
    if math.isnan(row["log_se_a"]) or math.isnan(row["log_se_b"]):
        return "no samples stored"
    return "; ".join([*_clock_words(row), *_ceiling_words(row), *_kernel_words(row)])


def _clock_words(row: pd.Series) -> list[str]:
    """A clock that was held down on a side, or that differs."""
    words = []
    for side, name in (("a", "baseline"), ("b", "candidate")):
        if row[f"held_{side}"]:
            words.append(f"clock held down in the {name} ({row[f'throttle_reasons_{side}']})")
    if abs(row["mhz_b"] / row["mhz_a"] - 1) > CLOCK_TOLD:
        words.append(f"clock {row['mhz_a']:.0f} and {row['mhz_b']:.0f} MHz")
    return words


def _ceiling_words(row: pd.Series) -> list[str]:
    """Two GPUs of one kind that are not equally fast."""
    if ceilings_apart(row.to_frame().T)[0] <= CEILING_TOLD:
        return []
    told = [
        f"{row[f'{name}_a']:.4g} and {row[f'{name}_b']:.4g} {unit}"
        for bound, (name, unit) in CEILINGS.items()
        if bound in (row["bound_a"], row["bound_b"])
    ]
    return [f"ceilings of two GPUs: {', '.join(told)}"]


def _kernel_words(row: pd.Series) -> list[str]:
    a, b = row["resolved_backend_a"], row["resolved_backend_b"]
    return [f"ran {b}, was {a}"] if isinstance(a, str) and isinstance(b, str) and a != b else []

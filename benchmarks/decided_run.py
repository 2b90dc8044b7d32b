"""What `timing.precision=decide` saved in a run on a GPU, and what it decided: two committed datasets of the same points.

python -m benchmarks.decided_run [FULL DECIDED]
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from benchmarks.figures import at_most
from benchmarks.racing import TARGET_S
from kernels.problem import Problem
from kernels.timing.racing import WITHIN
from orchestrator.analysis.noise import DEFAULT_NOISE_FLOOR
from orchestrator.storage import parquet

RESULTS = Path(__file__).resolve().parent.parent / "results"
DATASETS = ("h200_specdec_full", "h200_specdec_decide")
POINT = [name for name in Problem.model_fields if name not in ("tree", "batch_spec")]
REFERENCE = "torch_sdpa"  # it reads a copy of the cache, and is no candidate
NEAR = WITHIN - 1  # a backend this near the best is measured in full by `decide` too
PARTS = {"inputs": "inputs_s", "checks": "check_s", "samples": "measure_s", "rests": "rest_s", "all": "total_s"}


def rows(name: str) -> pd.DataFrame:
    table = parquet.read(RESULTS / name).to_pandas()
    return table[table["status"] == "ok"]


def fastest(of: pd.DataFrame) -> pd.DataFrame:
    """The fastest kernel of each problem, and its lead over the next one (null if there is none). Names of one kernel are one."""
    candidates = of[of["backend"] != REFERENCE]
    times = candidates.groupby([*POINT, "resolved_backend"], dropna=False)["median_us"].min().reset_index("resolved_backend")
    ranked = times.sort_values("median_us").groupby(POINT, dropna=False)
    lead = ranked["median_us"].agg(lambda us: us.iloc[1] / us.iloc[0] - 1 if len(us) > 1 else None)
    return pd.DataFrame({"kernel": ranked["resolved_backend"].first(), "lead": lead})


def both(full: pd.DataFrame, decided: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The fastest kernel of each problem in the two runs: where it is the same, and where not."""
    found = fastest(full).join(fastest(decided), suffixes=("_full", "_decided"))
    same = found["kernel_full"] == found["kernel_decided"]
    return found[same], found[~same]


def changes(same: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """By how many percentage points the leads of the same winner differ between the two runs: all, and those that are small."""
    leads = same.dropna(subset=["lead_full", "lead_decided"])
    all_of_them = 100 * (leads["lead_decided"] - leads["lead_full"]).abs()
    return all_of_them, all_of_them[leads["lead_full"] < NEAR]


def sentence(change: pd.Series, near: pd.Series) -> str:
    """How the leads differ, as docs/precision.md says it."""
    of_all = f"{change.median():.1f} points at the median of {len(change)} shapes, and by {change.quantile(0.99):.1f} at the 99th"
    return (
        f"The lead of the same winner differs by {of_all} percentile; "
        f"the {len(near)} leads under {NEAR:.0%} differ by at most {near.max():.1f} points."
    )


def main(names: tuple[str, str]) -> None:
    full, decided = (rows(name) for name in names)
    print(f"{len(full):,} points, {len(decided):,} with decide; {decided['stop_reason'].value_counts().to_dict()}")
    for part, column in PARTS.items():
        print(f"{part:8} {full[column].sum():7.1f} s  {decided[column].sum():7.1f} s")
    if names == DATASETS:
        at_most("seconds of these points with timing.precision=decide", [decided["total_s"].sum()], TARGET_S, "s")
    same, other = both(full, decided)
    print(f"the same fastest kernel at {len(same)} of {len(same) + len(other)} shapes")
    shown = ["kv_dtype", "batch_size", "s_kv", "s_qo", "kernel_full", "lead_full", "kernel_decided", "lead_decided"]
    print(other.reset_index()[shown].round(4).to_string(index=False))
    change, near = changes(same)
    print(sentence(change, near))
    at_most("the largest change of a small lead", [near.max()], 100 * DEFAULT_NOISE_FLOOR, "points")
    pairs = full.merge(decided, on=[*POINT, "backend"], suffixes=("_full", "_decided"))
    change = pairs["median_us_decided"] / pairs["median_us_full"] - 1
    print(change.groupby(pairs["stop_reason_decided"]).describe()[["count", "min", "50%", "max"]].round(4))


if __name__ == "__main__":
    main((sys.argv[1], sys.argv[2]) if len(sys.argv) > 2 else DATASETS)

"""What `timing.precision=decide` saved in a run on a GPU, and what it decided: two committed datasets of the same points.

python -m benchmarks.decided_run [FULL DECIDED]
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from kernels.problem import Problem
from orchestrator.storage import parquet

RESULTS = Path(__file__).resolve().parent.parent / "results"
DATASETS = ("h200_specdec_full", "h200_specdec_decide")
POINT = [name for name in Problem.model_fields if name not in ("tree", "batch_spec")]
REFERENCE = "torch_sdpa"  # it reads a copy of the cache, and is no candidate
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


def main(names: tuple[str, str]) -> None:
    full, decided = (rows(name) for name in names)
    print(f"{len(full):,} points, {len(decided):,} with decide; {decided['stop_reason'].value_counts().to_dict()}")
    for part, column in PARTS.items():
        print(f"{part:8} {full[column].sum():7.1f} s  {decided[column].sum():7.1f} s")
    both = fastest(full).join(fastest(decided), suffixes=("_full", "_decided"))
    other = both[both["kernel_full"] != both["kernel_decided"]]
    print(f"the same fastest kernel at {len(both) - len(other)} of {len(both)} shapes")
    shown = ["kv_dtype", "batch_size", "s_kv", "s_qo", "kernel_full", "lead_full", "kernel_decided", "lead_decided"]
    print(other.reset_index()[shown].round(4).to_string(index=False))
    pairs = full.merge(decided, on=[*POINT, "backend"], suffixes=("_full", "_decided"))
    change = pairs["median_us_decided"] / pairs["median_us_full"] - 1
    print(change.groupby(pairs["stop_reason_decided"]).describe()[["count", "min", "50%", "max"]].round(4))


if __name__ == "__main__":
    main((sys.argv[1], sys.argv[2]) if len(sys.argv) > 2 else DATASETS)

"""What the points of a run cost if each capture first gives kept memory back, and if it does so only if memory is short.

    python benchmarks/capture_seconds.py FILE.parquet given_back=FOLDER kept=FOLDER given_back=FOLDER ...

Each folder is one run of the same command; for `given_back`, `kernels.timing.graphs.LITTLE_BYTES` was larger than any memory. The
file has the seconds of each point. It is a table of docs/evidence/timing.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.rows import frame_of
from orchestrator.tables import Grid, markdown

FILE = ROOT / "benchmarks" / "data" / "h100_capture_seconds.parquet"
KEPT = ["backend", "batch_size", "s_kv", "s_qo", "q_dtype", "kv_dtype", "context", "median_us", "in_step_us"]
SECONDS = ["total_s", "rest_s", "measure_s", "check_s", "inputs_s"]


def gather(runs: list[str]) -> pd.DataFrame:
    """A row for each right point of each run, with `way` and the number of the run."""
    tables = []
    for number, run in enumerate(runs):
        way, folder = run.split("=", 1)
        ok = frame_of(Path(folder)).query("status == 'ok'")
        tables.append(ok[[*KEPT, *SECONDS]].fillna(dict.fromkeys(SECONDS, 0.0)).assign(way=way, run=number))
    return pd.concat(tables, ignore_index=True)


def table(path: str | Path = FILE) -> Grid:
    """A line for each run, in the order of the runs: seconds of all its points without rests, and of each part."""
    cells = []
    for _, part in pd.read_parquet(path).groupby("run"):
        sums = part[SECONDS].sum()
        figures = (sums["total_s"] - sums["rest_s"], sums["measure_s"], sums["check_s"], sums["inputs_s"])
        cells.append((part["way"].iloc[0].replace("_", " "), str(len(part)), *(f"{one:.1f}" for one in figures)))
    header = ("kept memory is", "points", "seconds without rests", "preparing and measuring", "checks", "inputs")
    return Grid("", header, tuple(cells))


if __name__ == "__main__":
    gather(sys.argv[2:]).to_parquet(sys.argv[1])
    print(markdown([table(sys.argv[1])]))

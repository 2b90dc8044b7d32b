"""What attention costs in a step, beside what it takes alone, from datasets of the same points.

python benchmarks/in_step.py STEP [ALONE ...]   a table; STEP was run with timing.context=step, ALONE in other cache states
python benchmarks/in_step.py aa NOISE           how far twins differ in a step; NOISE is of mode=noise timing.context=step
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pandas as pd

from orchestrator.storage import parquet
from orchestrator.tables import Grid, markdown

KEY = ["batch_size", "s_kv", "s_qo", "q_dtype", "kv_dtype", "model", "tp", "routine", "backend"]
PERCENTILES = (0.5, 0.95, 0.99)
RANGES_US = (0, 20, 100, 1000, float("inf"))


def table(in_step: pd.DataFrame, alone: list[pd.DataFrame]) -> Grid:
    """A line for each `ok` point of `in_step`. Times alone are without the launch share that the device's ceilings name."""
    rows = in_step[(in_step["status"] == "ok") & (in_step["context"] == "step")]
    others = [part[part["status"] == "ok"] for part in alone]
    cells = []
    for _, row in rows.sort_values(KEY).iterrows():
        times = [_without_launch(row), *(_same_point(part, row) for part in others)]
        interval = f"{row['in_step_us']:.1f} ({row['in_step_low_us']:.1f} to {row['in_step_high_us']:.1f})"
        difference = f"{times[-1] - row['in_step_us']:+.1f}"
        shape = (f"{row['batch_size']} x {row['s_kv']:,}", str(row["s_qo"]), row["kv_dtype"], row["resolved_backend"])
        cells.append(
            (*shape, *(f"{us:.1f}" for us in times), interval, difference, str(int(row["step_layers"])), f"{row['step_us']:,.0f}")
        )
    states = [str(rows["l2"].iloc[0]), *(str(part["l2"].iloc[0]) for part in others)]
    header = ("batch x s_kv", "s_qo", "cache", "kernel", *(f"alone, {state}" for state in states))
    return Grid("", (*header, "in step (95% interval)", f"{states[-1]} - in step", "layers", "step"), tuple(cells))


def _without_launch(row: pd.Series) -> float:
    launch_us = row["launch_us"]
    return float(row["median_us"] - (0.0 if pd.isna(launch_us) else launch_us))


def _same_point(part: pd.DataFrame, row: pd.Series) -> float:
    """The time alone of the same point; NaN if it is not there."""
    same = part[(part[KEY] == row[KEY]).all(axis=1)]
    return _without_launch(same.iloc[0]) if len(same) else float("nan")


def twins(rows: pd.DataFrame) -> Grid:
    """|B / A - 1| of the cost in a step of one backend measured twice, by the cost: median, 95th and 99th percentile, worst."""
    ok = rows[(rows["status"] == "ok") & (rows["context"] == "step")]
    pair = ok.pivot_table(index=["group_id", "backend"], columns="twin", values="in_step_us").dropna()
    rel_diff, cells = (pair[1] / pair[0] - 1).abs(), []
    for low, high in (*pairwise(RANGES_US), (0, float("inf"))):
        part = rel_diff[(pair[0] > low) & (pair[0] <= high)]
        if len(part):
            us = (pair[1] - pair[0]).abs()[part.index].median()
            name = "all" if (low, high) == (0, float("inf")) else f"{low:g} to {high:g} µs"
            figures = (*(f"{part.quantile(share):.2%}" for share in PERCENTILES), f"{part.max():.2%}", f"{us:.2f}")
            cells.append((name, str(len(part)), *figures))
    return Grid("", ("in step", "points", "median", "95th", "99th", "worst", "median, µs"), tuple(cells))


def main(*paths: str) -> str:
    if paths[0] == "aa":
        return markdown([twins(parquet.read(Path(paths[1])).to_pandas())])
    first, *more = (parquet.read(Path(path)).to_pandas() for path in paths)
    return markdown([table(first, more)])


if __name__ == "__main__":
    print(main(*sys.argv[1:]))

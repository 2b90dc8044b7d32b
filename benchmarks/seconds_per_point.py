"""What a point costs in wall time, and how much of it the device computes: `python benchmarks/seconds_per_point.py results/NAME`.

Reads a dataset alone. Wall time is from the first start to the last end of the points that one run measured; the start of its
workers and the compilation before it are not counted. Device time is what the samples add up to.
"""

from __future__ import annotations

import sys

import pandas as pd


def main(path: str) -> None:
    table = pd.read_parquet(path)
    for run_id, rows in table[table["attempt"] > 0].groupby("run_id"):
        wall_s = (rows["finished_at"].max() - rows["started_at"].min()).total_seconds()
        workers = rows["device_uuid"].nunique(dropna=False)
        sampled_s = rows["samples_us"].dropna().map(sum).sum() / 1e6
        print(f"run {run_id}: {len(rows)} points in {wall_s:.1f} s on {workers} device(s)")
        print(f"  {wall_s * workers / len(rows):.3f} s a point; samples are {sampled_s / wall_s / workers:.0%} of the wall time")


if __name__ == "__main__":
    main(*sys.argv[1:])

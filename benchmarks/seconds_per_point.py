"""What a point costs in wall time, how much of it the device computes, and what more GPUs save of it.

python benchmarks/seconds_per_point.py results/NAME
python benchmarks/seconds_per_point.py results/h100_main/specdec_one_gpu results/h100_main/specdec_long_ctx

Wall time is from the first start to the last end of the points that one run measured, without the start of workers and compilation.
Device time is what the samples add up to. With two datasets, of one run each, the second on more GPUs, it prints the efficiency
too: how many times as fast a point is, over the ratio of GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.figures import at_least
from orchestrator.storage import parquet

EFFICIENCY = 0.95


@dataclass(frozen=True)
class Seconds:
    run_id: str
    points: int
    devices: int
    wall_s: float
    sampled_s: float

    @property
    def device_s(self) -> float:
        return self.wall_s * self.devices / self.points


def of_runs(path: str) -> Iterator[Seconds]:
    table = parquet.read(path).to_pandas()
    for run_id, rows in table[table["attempt"] > 0].groupby("run_id"):
        wall_s = (rows["finished_at"].max() - rows["started_at"].min()).total_seconds()
        sampled_s = rows["samples_us"].dropna().map(sum).sum() / 1e6
        yield Seconds(str(run_id), len(rows), rows["device_uuid"].nunique(dropna=False), wall_s, sampled_s)


def main(*paths: str) -> None:
    runs = [run for path in paths for run in of_runs(path)]
    for run in runs:
        print(f"run {run.run_id}: {run.points} points in {run.wall_s:.1f} s on {run.devices} device(s)")
        share = run.sampled_s / run.wall_s / run.devices
        print(f"  {run.device_s:.3f} s a point; samples are {share:.0%} of the wall time")
    if len(paths) == 1:
        print(f"all runs: {sum(run.wall_s for run in runs) / sum(run.points for run in runs):.3f} s of wall time a point")
    else:
        if len(runs) != 2:
            sys.exit(f"there are {len(runs)} runs; an efficiency is of two datasets with one run each")
        few, many = runs
        what = f"efficiency of {many.devices} devices against {few.devices}, from the first point to the last"
        at_least(what, [few.device_s / many.device_s], EFFICIENCY, "")


if __name__ == "__main__":
    main(*sys.argv[1:])

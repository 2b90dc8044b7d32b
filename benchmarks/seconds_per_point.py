"""What a point costs in wall time, how much of it the device computes, and what more GPUs save of it.

python benchmarks/seconds_per_point.py results/NAME
python benchmarks/seconds_per_point.py results/h100_main/specdec_one_gpu results/h100_main/specdec_long_ctx
python benchmarks/seconds_per_point.py busy results/NAME -- python -m orchestrator rerun=all results.path=results/NAME ...

The first two read datasets alone. Wall time is from the first start to the last end of the points that one run measured; the start
of its workers and the compilation before it are not counted. Device time is what the samples add up to. With two datasets, of one
run each, the second on more GPUs, it prints the efficiency too: how many times as fast a point is, over the ratio of GPUs.
The third runs a command, and prints for how much of its wall time the driver says that the GPUs were busy.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pandas as pd

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.figures import at_least
from orchestrator.storage import parquet

EFFICIENCY, PERIOD_S = 0.95, 0.1


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


def busy(path: str, command: list[str]) -> None:
    """Share of the wall time that a command's GPUs were busy (NVML's utilization), from its rows' first start to their last end."""
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    devices = {pynvml.nvmlDeviceGetUUID(handle): handle for handle in handles}
    began, seen = datetime.now(UTC), []
    with subprocess.Popen(command) as driver:
        while driver.poll() is None:
            rates = {uuid: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for uuid, handle in devices.items()}
            seen.append({"at": datetime.now(UTC), **rates})
            time.sleep(PERIOD_S)
    table = parquet.read(path).to_pandas()
    new = table[(table["attempt"] > 0) & (table["started_at"] > began)]
    if new.empty:
        sys.exit(f"{path}: the command added no row; type rerun=all with it")
    asked, used = pd.DataFrame(seen), sorted(new["device_uuid"].dropna().unique())
    busy = asked[asked["at"].between(new["started_at"].min(), new["finished_at"].max())][used]
    at_least(
        f"share of the wall time of {len(new)} points that {len(used)} GPU(s) were busy", [100 * busy.mean(axis=None)], 50, "%"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["busy"]:
        busy(sys.argv[2], sys.argv[4:])
    else:
        main(*sys.argv[1:])

"""Share of a worker's wall time that its GPU computes.

python benchmarks/busy.py run results/NAME -- python -m orchestrator +sweep=specdec_long_ctx rerun=all results.path=results/NAME
python benchmarks/busy.py rows results/h200_specdec_long_ctx

`run` asks the driver ten times a second, while the command runs, for how much of the last period a kernel ran (NVML's utilization),
and counts the devices that the command's new rows name, between the first start and the last end of these rows. `rows` needs no GPU
and gives a lower bound from a dataset: the samples alone, and with them the seconds in which inputs are drawn and answers checked,
which mostly pass on the device. Warm-up, flushes of the L2 and the wait for a clock to recover are in neither.
"""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime

from figures import at_least

from orchestrator.storage import parquet

PERIOD_S = 0.1


def run(path: str, command: list[str]) -> None:
    """Every GPU of this machine, asked while the command runs."""
    import pandas as pd
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


def rows(path: str) -> None:
    """A lower bound from the columns of a dataset, a run at a time."""
    table = parquet.read(path).to_pandas()
    for run_id, part in table[table["attempt"] > 0].groupby("run_id"):
        wall_s = (part["finished_at"].max() - part["started_at"].min()).total_seconds()
        wall_s *= part["device_uuid"].nunique(dropna=False)
        sampled_s = part["samples_us"].dropna().map(sum).sum() / 1e6
        worked_s = sampled_s + part[["inputs_s", "check_s"]].sum().sum()
        what = f"run {run_id}, {len(part)} points in {wall_s:.1f} s of worker time"
        rested = f"{part['rest_s'].sum():.1f} s of it" if part["rest_s"].notna().any() else "an unknown part of it"
        print(f"{what}; {rested} waits, most of them for a throttled clock")
        at_least("samples alone", [100 * sampled_s / wall_s], 50, "%")
        at_least("... with inputs and checks", [100 * worked_s / wall_s], 50, "%")


if __name__ == "__main__":
    mode, path, *command = sys.argv[1:]
    if mode == "rows":
        rows(path)
    else:
        run(path, command[1:])

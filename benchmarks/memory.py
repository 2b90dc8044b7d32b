"""GPU memory of one worker over 10,000 points: what the driver counts for its process must not grow.

python benchmarks/memory.py [POINTS] [key=value ...]     # on a machine with a GPU; +sweep=specdec_long_ctx unless another is typed

The points of the sweep that this GPU supports, small contexts unless typed otherwise, again and again in one process with the
inputs, oracle, kernels and timing of a run (timing=quick). The first pass loads every kernel module and is not compared.
"""

from __future__ import annotations

import os
import sys
import time

from figures import at_most, settings_of

from orchestrator import machines
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from orchestrator.scheduling.builds import ThreadedBuilds
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner

DEFAULT = ["+sweep=specdec_long_ctx", "timing=quick", "sweep.batch_size=[1,4]", "sweep.s_kv=[1024,8192]"]
GROWTH_MB = 64.0  # less than a single workspace that is not given back


def used_mb() -> float:
    """What the driver counts for this process; of the whole device where it does not tell processes apart."""
    import pynvml
    import torch

    device = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    own = [p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(device) if p.pid == os.getpid()]
    return (own[0] if own and own[0] else pynvml.nvmlDeviceGetMemoryInfo(device).used) / 1e6


def main(points: int, typed: list[str]) -> None:
    settings, device = settings_of([*DEFAULT, *typed]), machines.describe().devices[0]
    if device.kind != "cuda":
        sys.exit("memory.py: there is no GPU here, and nothing else has GPU memory")
    plan = make_plan(expand(settings), [device], settings)
    builds = ThreadedBuilds(list(plan.modules), {}, machines.describe().cores, {device.arch})
    while builds.left:
        builds.wait(timeout_s=1.0)
    worker = PointRunner.create(WorkerConfig(settings.timing, settings.check.enabled, settings.adapters, {}), device)
    used: list[float] = []
    statuses: dict[str, int] = {}
    done, started = 0, time.monotonic()
    while done < points:
        for group in plan.groups:
            results = [worker.prepare(Task(point, "")) for point in group.points]
            for row in (row for result in (*results, worker.measure()) for row in result.rows):
                statuses[row["status"]] = statuses.get(row["status"], 0) + 1
            done += len(group.points)
        used.append(used_mb())
        print(f"{done:,} points in {time.monotonic() - started:.0f} s, {used[-1]:.0f} MB; {statuses}", flush=True)
    if len(used) < 2:
        sys.exit(f"memory.py: {points} points are one pass; give more than {done}")
    at_most(f"growth of GPU memory from {done // len(used):,} to {done:,} points", [max(used[1:]) - used[0]], GROWTH_MB, "MB")


if __name__ == "__main__":
    count, *rest = sys.argv[1:] or ["10000"]
    main(int(count), rest)

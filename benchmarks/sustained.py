"""Does attention cost more without pause than in bursts? Steps of a model's layers with each backend, as power lets the clock go.

    python benchmarks/sustained.py FILE.parquet +sweep=specdec_long_ctx 'sweep.backend=[fa2_tc,trtllm-native]' [key=value ...]

The backends of a workload (model, batch, lengths, dtype of the cache) take turns by the dtype of queries and as `sweep.backend`
orders them, the step with the stand-in behind them, and then in the reverse order. In either order all are replayed in bursts, each
after a rest, as a worker's blocks are, and then all without a pause. Every answer is checked before. FILE keeps its rows and gets
more. It needs a GPU.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.figures import settings_of
from kernels.cuda import free_unused
from kernels.lazy import torch
from kernels.timing.graphs import timed_event
from kernels.timing.nvml import DeviceMonitor
from kernels.timing.sm_clock import MAX_STAMPS, clock_of_device
from orchestrator import machines
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import chosen, expand
from orchestrator.run import imports_of, worker_config
from orchestrator.worker.messages import Task
from orchestrator.worker.point_runner import PointRunner

REST_S, BURST_S, BURSTS, SUSTAINED_S = 0.05, 0.006, 10, 2.0  # of what is sustained, the second half counts
WORKLOAD = ("model", "tp", "batch_size", "s_kv", "s_qo", "kv_dtype")
Step = Callable[[], object]
Arm = tuple[dict[str, Any], Step]  # the columns that all of its rows have, its layers among them
Taken = tuple[list[float], list[float], str]  # µs of a replay and MHz, of each sample; what held the clock down at the end


def replayed(step: Step, monitor: DeviceMonitor, samples: int, each: int = 1, before: int = 1) -> Taken:
    """Samples of `each` replays without a gap, behind some that do not count, while which the CPU issues the others."""
    spans, clock = [(timed_event(), timed_event()) for _ in range(samples)], clock_of_device()
    for _ in range(before):
        step()
    clock.start()
    for begun, ended in spans:
        begun.record()
        for _ in range(each):
            step()
        ended.record()
        clock.stamp()
    throttled_by = monitor.throttled_by()  # while the last samples run
    torch.cuda.synchronize()
    return [begun.elapsed_time(ended) * 1e3 / each for begun, ended in spans], clock.mhz(), ", ".join(sorted(throttled_by))


def in_bursts(step: Step, monitor: DeviceMonitor) -> Taken:
    count = max(2, int(BURST_S * 1e6 / statistics.median(replayed(step, monitor, 3)[0])))
    bursts = []
    for _ in range(BURSTS):
        time.sleep(REST_S)
        bursts.append(replayed(step, monitor, count))
    return [us for burst in bursts for us in burst[0]], [mhz for burst in bursts for mhz in burst[1]], bursts[-1][2]


def back_to_back(step: Step, monitor: DeviceMonitor) -> Taken:
    half = max(2, int(SUSTAINED_S / 2 * 1e6 / statistics.median(replayed(step, monitor, 3)[0])))
    each = math.ceil(half / (MAX_STAMPS - 1))
    return replayed(step, monitor, half // each, each, half)


def turns(arms: Sequence[Arm], monitor: DeviceMonitor) -> Iterator[dict[str, Any]]:
    """A row of each arm, pace and order. µs are of a layer, and watts the mean of the whole turn, if the driver counts energy."""
    for order, pace in itertools.product((1, -1), (in_bursts, back_to_back)):
        for columns, step in arms[::order]:
            begun, energy = time.perf_counter(), monitor.energy_mj() or math.nan
            us, mhz, throttled_by = pace(step, monitor)
            watts = ((monitor.energy_mj() or math.nan) - energy) / (time.perf_counter() - begun) / 1e3
            measured = {"us": statistics.median(us) / columns["layers"], "mhz": statistics.median(mhz or [math.nan])}
            told = {"pace": pace.__name__.replace("_", " "), "order": order, "samples": len(us), "throttled_by": throttled_by}
            yield {**columns, **told, **measured, "watts": watts}


def arms_of(worker: PointRunner, tasks: Sequence[Task]) -> list[Arm]:
    """The steps of a workload; what is not right is printed, and takes no turn."""
    for row in (row for task in tasks for row in worker.prepare(task).rows):
        print(row["backend"], row["q_dtype"], row["status"], row["reason"], flush=True)
    arms: list[Arm] = []
    for one in worker._prepared:
        timer: Any = one.step.series.timer if one.step else None
        here = {key: getattr(one.task.point.problem, key) for key in (*WORKLOAD, "q_dtype")} | {"layers": timer.layers}
        here |= {"device": worker.device.name, "device_uuid": worker.provenance.identity.get("device_uuid")}
        of_backend = {"backend": one.adapter.name, "libraries": one.row["libraries"], "load": "a step"}
        arms.append(({**here, **of_backend}, timer.step))
    worker._prepared = []
    return [*arms, ({**here, "backend": "", "load": "a step with the copy"}, timer.stand_in)] if arms else []


def main(file: str, *overrides: str) -> None:
    settings, machine, path = settings_of([*overrides, "timing.context=step"]), machines.describe(), Path(file)
    plan = make_plan(chosen(expand(settings), settings), machine.devices[:1], settings, [machine.versions])
    worker = PointRunner.create(worker_config(settings, {}, (), imports_of(plan, settings.adapters), plan), machine.devices[0])
    tasks = {d.point: [str(getattr(d.point.problem, key)) for key in (*WORKLOAD, "q_dtype")] for d in plan.decisions_of("run")}
    for key, group in itertools.groupby(sorted(tasks, key=tasks.__getitem__), key=lambda point: tasks[point][:-1]):
        print(*key, flush=True)
        rows = list(turns(arms_of(worker, [Task(point, "") for point in group]), worker.provenance.pacer.monitor))
        pd.DataFrame((pd.read_parquet(path).to_dict("records") if path.exists() else []) + rows).to_parquet(path)
        free_unused(machine.devices[0])


if __name__ == "__main__":
    main(*sys.argv[1:])

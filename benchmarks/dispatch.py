"""Points a second that go from the queue through Ray to a worker and, as rows, to disk, where the points themselves take no time.

python benchmarks/dispatch.py [POINTS ...]    # 1000 10000 100000 by default; groups of 6 points, 2 workers

Counted from workers that are ready; what Ray takes to start their processes, once a run, is a line of its own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial

import ray
from figures import at_least

from kernels.problem import Problem
from kernels.timing.config import Timing
from orchestrator.config.parts import Cluster, Limits
from orchestrator.point import Point
from orchestrator.pools.ray import connection
from orchestrator.pools.ray.actor import RayPending, RayWorker
from orchestrator.pools.ray.pool import RayPool
from orchestrator.scheduling.interfaces import Batch, Slot
from orchestrator.scheduling.scheduler import Scheduler
from orchestrator.storage.folder import FolderStore
from orchestrator.storage.row import Row, Status, describe, finish
from orchestrator.worker.messages import Task, WorkerConfig, WorkResult

GROUP, WORKERS = 6, 2
SHAPE = {"s_qo": 1, "num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128, "batch_size": 1}


@ray.remote(num_cpus=0)
class IdleWorker:
    """Answers as a worker does, and computes nothing."""

    def __init__(self) -> None:
        self.prepared: list[Row] = []

    def ready(self) -> WorkResult:
        return WorkResult()

    def prepare(self, task: Task) -> WorkResult:
        made = {**describe(task.point), "command": task.command, "attempt": task.attempt}
        self.prepared.append(finish(made, "ok"))
        return WorkResult()

    def measure(self) -> WorkResult:
        rows, self.prepared = self.prepared, []
        return WorkResult(tuple(rows))


class IdlePool(RayPool):
    """Workers that are started before a scheduler asks for them."""

    @property
    def slots(self) -> list[Slot]:
        return [Slot(f"here:{i}", "cpu") for i in range(WORKERS)]

    def warm_up(self) -> float:
        """Seconds until every worker of the next run is ready."""
        began = time.perf_counter()
        self.actors = [IdleWorker.remote() for _ in self.slots]  # type: ignore[attr-defined]
        ray.get([actor.ready.remote() for actor in self.actors])
        return time.perf_counter() - began

    def start(self, slot: Slot, config: WorkerConfig) -> tuple[RayWorker, RayPending]:
        actor = self.actors.pop()
        worker = RayWorker(actor, None, partial(RayPending, slot=slot, nodes=self.nodes))
        return worker, worker.answer(actor.ready.remote())


def rate(pool: IdlePool, count: int) -> tuple[float, float]:
    """Points a second over so many points, and the seconds that its workers took to start."""
    problems = [Problem.model_validate({**SHAPE, "s_kv": 64 + i}) for i in range(count // GROUP)]
    points = [[Point(problem, f"backend{b}", "how") for b in range(GROUP)] for problem in problems]
    batches = [Batch(tuple(Task(p, f"replay point={p.point_id}") for p in some), ("cpu",)) for some in points]
    config = WorkerConfig(Timing(), True, (), {})

    def fault(task: Task, slot: Slot, status: Status, reason: str) -> Row:
        raise AssertionError(f"{task.point.point_id}: {status} {reason}")

    with tempfile.TemporaryDirectory() as folder:
        store, start_s = FolderStore(folder), pool.warm_up()
        started = time.perf_counter()
        Scheduler(pool, config, Limits(), on_rows=store.add, on_fault=fault).run(batches)
        store.seal()
        seconds = time.perf_counter() - started
        assert store.table.num_rows == len(batches) * GROUP
        store.close()
    return len(batches) * GROUP / seconds, start_s


def main(counts: list[int]) -> None:
    here = Cluster(name="local", kind="local")
    connection.begin(here)
    try:
        pool = IdlePool(here, "same")
        rates = [rate(pool, count) for count in counts]
    finally:
        connection.end()
    for count, (found, start_s) in zip(counts, rates, strict=True):
        at_least(f"dispatch of {count:,} no-op points to {WORKERS} workers", [found], 1000, "points/s")
        print(f"  before it, Ray took {start_s:.1f} s to start them")


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or [1_000, 10_000, 100_000])

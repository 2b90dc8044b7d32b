"""20,000 points, of which 2% meet a fault at random, on workers made of nothing: 20,000 rows, each of them right."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from orchestrator.pool import Slot, Task
from orchestrator.row import Row, Status, describe, finish
from orchestrator.scheduler import Scheduler
from orchestrator.settings import Limits
from orchestrator.store import Store
from orchestrator.sweep import Point
from tests.faults.runs import rows_of
from tests.orchestrator.test_scheduler import FakePool, groups_of

GROUPS, SIZE, SLOTS = 4000, 5, 32
BECOMES = {"ok": "ok", "dies": "failed", "unfit": "failed", "hangs": "timeout", "no memory": "oom", "wrong": "mismatch"}
# What a point meets each time that it is tried, but for those that only the first worker or machine fails under it.
ALWAYS = [does + when for does in ("dies", "unfit", "hangs") for when in ("", " measured")] + ["no memory", "wrong"]
ONCE = ["dies", "machine dies"]


class Fates:
    """What a worker does at each point: drawn once a point, so that its row can be foretold."""

    def __init__(self, seed: int, faulty: float) -> None:
        self.draw, self.faulty = random.Random(seed), faulty
        self.of: dict[Point, tuple[str, bool]] = {}
        self.tried: Counter[Point] = Counter()  # the pool's own count

    def __call__(self, task: Task) -> str:
        if task.point not in self.of:
            always = self.draw.random() < 0.8
            does = self.draw.choice(ALWAYS if always else ONCE) if self.draw.random() < self.faulty else "ok"
            self.of[task.point] = does, always
        does, always = self.of[task.point]
        return does if always or self.tried[task.point] <= 1 else "ok"

    def ends(self, point: Point) -> str:
        does, always = self.of[point]
        return BECOMES[does.removesuffix(" measured")] if always else "ok"


def test_twenty_thousand_points_with_faults_at_random_end_with_one_right_row_each(tmp_path: Path):
    fates = Fates(seed=7, faulty=0.02)
    groups = groups_of(GROUPS, SIZE)
    store = Store(str(tmp_path))
    told: list[Row] = []

    def fault(task: Task, slot: Slot, status: Status, reason: str) -> Row:
        return finish({**describe(task.point), "attempt": task.attempt}, status, reason)

    fresh: list[Row] = []

    def keep(rows: Sequence[Row]) -> None:
        told.extend(rows)
        fresh.extend(rows)
        if len(fresh) >= 500:  # syncing each would measure the disk
            store.add(fresh)
            fresh.clear()

    pool = FakePool(fates, [Slot(f"n:{i}", "gpu") for i in range(SLOTS)])
    fates.tried = pool.attempts
    Scheduler(pool, Limits(point_seconds=0.1), keep, fault).run(groups, lambda point: "replay")
    store.add(fresh)
    store.close()
    table = rows_of(tmp_path)

    assert len(told) == len(table) == table["point_id"].nunique() == GROUPS * SIZE
    assert dict(zip(table["point_id"], table["status"], strict=True)) == {
        point.point_id: fates.ends(point) for group in groups for point in group.points
    }
    assert table["attempt"].max() == 2
    assert {does for does, _ in fates.of.values()} == {"ok", *ALWAYS, *ONCE}
    assert len(pool.workers) > SLOTS + 0.005 * GROUPS * SIZE
    assert not any(worker.alive for worker in pool.workers)

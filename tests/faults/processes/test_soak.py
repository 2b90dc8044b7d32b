"""10,000 points on simulated workers, 4% of them with a random fault: 10,000 rows, all of them right."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from orchestrator.config.parts import Limits
from orchestrator.point import Point
from orchestrator.scheduling.interfaces import Slot
from orchestrator.storage.folder import FolderStore
from orchestrator.storage.row import Row
from orchestrator.worker.messages import Task
from tests.helpers.fake_pool import FakePool, batches_of, scheduler_of
from tests.helpers.runs import rows_of

GROUPS, SIZE, SLOTS = 2000, 5, 32
BECOMES = {"ok": "ok", "dies": "failed", "breaks": "failed", "hangs": "timeout", "no memory": "oom", "wrong": "mismatch"}
# What happens at every attempt of a point, and what happens at its first attempt only.
ALWAYS = [does + when for does in ("dies", "breaks", "hangs") for when in ("", " measured")] + ["no memory", "wrong"]
ONCE = ["dies", "machine dies"]


class Fates:
    """What a worker does at each point. Drawn once a point, so that the test knows how its row must end."""

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


def test_10000_points_with_random_faults_end_with_one_right_row_each(tmp_path: Path):
    fates = Fates(seed=7, faulty=0.04)
    batches = batches_of(GROUPS, SIZE)
    store = FolderStore(str(tmp_path))
    told: list[Row] = []

    fresh: list[Row] = []

    def keep(rows: Sequence[Row]) -> None:
        told.extend(rows)
        fresh.extend(rows)
        if len(fresh) >= 500:  # syncing each would measure the disk
            store.add(fresh)
            fresh.clear()

    pool = FakePool(fates, [Slot(f"n:{i}", "gpu") for i in range(SLOTS)])
    fates.tried = pool.attempts
    scheduler_of(pool, keep, Limits(point_seconds=0.1)).run(batches)
    store.add(fresh)
    store.close()
    table = rows_of(tmp_path)

    assert len(told) == len(table) == table["point_id"].nunique() == GROUPS * SIZE
    assert dict(zip(table["point_id"], table["status"], strict=True)) == {
        task.point.point_id: fates.ends(task.point) for batch in batches for task in batch.tasks
    }
    assert table["attempt"].max() == 2
    assert {does for does, _ in fates.of.values()} == {"ok", *ALWAYS, *ONCE}
    assert len(pool.workers) > SLOTS + 0.01 * GROUPS * SIZE
    assert not any(worker.alive for worker in pool.workers)

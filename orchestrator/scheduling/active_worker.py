"""A worker and the items that it was given."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from orchestrator.config.parts import Limits
from orchestrator.scheduling.interfaces import MEASURE, START, Batch, PendingResult, Pool, Slot, Worker, WorkItem
from orchestrator.worker.messages import Task, WorkerConfig


@dataclass(eq=False)
class ActiveWorker:
    """The worker of a slot, and its unfinished items, the first of which runs now.

    `deadline` (of `time.monotonic`) is that of the current item. `devices` are the kinds that may run its batch.
    `prepared` tasks have passed their check and wait to be measured; `refused` ones came after the worker lost its device.
    """

    slot: Slot
    worker: Worker
    limits: Limits
    items: deque[tuple[WorkItem, PendingResult]]
    deadline: float
    devices: tuple[str, ...] = ()
    prepared: list[Task] = field(default_factory=list)
    refused: list[Task] = field(default_factory=list)

    @classmethod
    def start(cls, pool: Pool, slot: Slot, config: WorkerConfig, limits: Limits) -> ActiveWorker:
        worker, ready = pool.start(slot, config)
        return cls(slot, worker, limits, deque([(START, ready)]), time.monotonic() + limits.start_seconds)

    @property
    def current(self) -> tuple[WorkItem, PendingResult]:
        """The item that runs now. Raises IndexError for an idle worker."""
        return self.items[0]

    @property
    def is_idle(self) -> bool:
        return not self.items

    @property
    def is_late(self) -> bool:
        """Whether the current item has had its time: the worker hangs, or its answer has just come."""
        return not self.is_idle and time.monotonic() > self.deadline

    @property
    def is_starting(self) -> bool:
        return bool(self.items) and self.items[0][0].kind == "start"

    @property
    def has_tasks(self) -> bool:
        return any(item.kind != "start" for item, _ in self.items)

    @property
    def has_unfinished(self) -> bool:
        """Whether tasks are prepared or wait. The worker may have begun the next item before the answer of this one is here."""
        return bool(self.prepared) or any(item.task is not None for item, _ in self.items)

    def give(self, batch: Batch) -> None:
        """Submits all items of a batch at once; the worker takes them in order."""
        self.items.extend((WorkItem("prepare", task), self.worker.prepare(task)) for task in batch.tasks)
        self.items.append((MEASURE, self.worker.measure()))
        self.devices, self.deadline = batch.devices, time.monotonic() + self.limits.point_seconds

    def finish_item(self) -> None:
        self.items.popleft()

    def extend_deadline(self) -> None:
        """The time of the item that begins now: that of one point, or of every point that is measured."""
        measuring = bool(self.items) and self.items[0][0].kind == "measure"
        points = max(1, len(self.prepared)) if measuring else 1
        self.deadline = time.monotonic() + self.limits.point_seconds * points

    def take_running(self) -> list[Task]:
        """Removes the current item, and returns its tasks: the one that was prepared, or all that were measured together."""
        item, _ = self.items.popleft()
        if item.task is not None:
            return [item.task]
        running, self.prepared = self.prepared, []
        return running

    def take_unfinished(self) -> list[Task]:
        """Removes everything that is left, and returns its tasks. Nobody waits for a worker that is gone."""
        tasks = [*self.prepared, *self.refused, *(item.task for item, _ in self.items if item.task is not None)]
        self.items.clear()
        self.prepared, self.refused = [], []
        return tasks

"""A worker and the steps that it was given."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from orchestrator.config.parts import Limits
from orchestrator.scheduling.interfaces import MEASURE, START, Batch, Pending, Pool, Slot, Step, Worker
from orchestrator.worker.messages import Task, WorkerConfig


@dataclass(eq=False)
class ActiveWorker:
    """The worker of a slot, and its unfinished steps, the first of which runs now.

    `deadline` (of `time.monotonic`) is that of the current step. `devices` are the kinds that may run its batch.
    `prepared` tasks have passed their check and wait to be measured; `refused` ones came after the worker lost its device.
    """

    slot: Slot
    worker: Worker
    limits: Limits
    steps: deque[tuple[Step, Pending]]
    deadline: float
    devices: tuple[str, ...] = ()
    prepared: list[Task] = field(default_factory=list)
    refused: list[Task] = field(default_factory=list)

    @classmethod
    def start(cls, pool: Pool, slot: Slot, config: WorkerConfig, limits: Limits) -> ActiveWorker:
        worker, ready = pool.start(slot, config)
        return cls(slot, worker, limits, deque([(START, ready)]), time.monotonic() + limits.start_seconds)

    @property
    def current(self) -> tuple[Step, Pending]:
        """The step that runs now. Raises IndexError for an idle worker."""
        return self.steps[0]

    @property
    def is_idle(self) -> bool:
        return not self.steps

    @property
    def is_starting(self) -> bool:
        return bool(self.steps) and self.steps[0][0].kind == "start"

    @property
    def has_tasks(self) -> bool:
        return any(step.kind != "start" for step, _ in self.steps)

    def give(self, batch: Batch) -> None:
        """Submits all steps of a batch at once; the worker takes them in order."""
        self.steps.extend((Step("prepare", task), self.worker.prepare(task)) for task in batch.tasks)
        self.steps.append((MEASURE, self.worker.measure()))
        self.devices, self.deadline = batch.devices, time.monotonic() + self.limits.point_seconds

    def finish_step(self) -> None:
        self.steps.popleft()

    def extend_deadline(self) -> None:
        """The time of the step that begins now: that of one point, or of every point that is measured."""
        measuring = bool(self.steps) and self.steps[0][0].kind == "measure"
        points = max(1, len(self.prepared)) if measuring else 1
        self.deadline = time.monotonic() + self.limits.point_seconds * points

    def take_running(self) -> list[Task]:
        """Removes the current step, and returns its tasks: the one that was prepared, or all that were measured together."""
        step, _ = self.steps.popleft()
        if step.task is not None:
            return [step.task]
        running, self.prepared = self.prepared, []
        return running

    def take_unfinished(self) -> list[Task]:
        """Removes everything that is left, and returns its tasks. Nobody waits for a worker that is gone."""
        tasks = [*self.prepared, *self.refused, *(step.task for step, _ in self.steps if step.task is not None)]
        self.steps.clear()
        self.prepared, self.refused = [], []
        return tasks

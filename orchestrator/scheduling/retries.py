"""Decides about the tasks of a worker after each event: a final row, or another place in the queue.

The table in `scheduler.py` says it for each event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from orchestrator.config.parts import Limits
from orchestrator.errors import WorkerDied
from orchestrator.scheduling.active_worker import ActiveWorker
from orchestrator.scheduling.interfaces import Slot
from orchestrator.scheduling.work_queue import WorkQueue
from orchestrator.storage.row import Row, Status
from orchestrator.worker.messages import Task, WorkResult

OnFault = Callable[[Task, Slot, Status, str], Row]


class Retries:
    """Puts tasks back into `queue` and final rows into `rows`; `on_fault` makes the row of a task whose worker cannot."""

    def __init__(self, queue: WorkQueue, rows: list[Row], on_fault: OnFault, limits: Limits) -> None:
        self.queue, self.rows, self.on_fault, self.limits = queue, rows, on_fault, limits

    def prepared(self, active: ActiveWorker, task: Task, result: WorkResult) -> None:
        """A task was prepared, or has its row, or was refused."""
        if result.rows:
            self._keep(result.rows, [task], active)
        elif result.exclusive:
            self._retry_exclusively(task, active)
        else:
            (active.prepared if result.healthy else active.refused).append(task)

    def measured(self, active: ActiveWorker, result: WorkResult) -> None:
        """The prepared tasks were measured; if the device or a process of an environment broke, some have no row."""
        tasks, active.prepared = active.prepared, []
        self._keep(result.rows, tasks, active)
        done = {row["point_id"] for row in result.rows}
        self._each_exclusively([task for task in tasks if task.point.point_id not in done], active)

    def worker_died(self, active: ActiveWorker, death: WorkerDied) -> None:
        """A dead worker costs the task that it ran an attempt; if it ran several, nobody knows which one was the cause."""
        running = active.take_running()
        if len(running) == 1:
            self._retry_or_fail(running[0], active, death)
        else:
            self._each_exclusively([replace(task, shared_deaths=task.shared_deaths + 1) for task in running], active)

    def timed_out(self, active: ActiveWorker) -> None:
        """A task that does not end has its row, if it is surely the one that hangs.

        If it shared the worker with others, one of these may have stopped the process before the answer of this one had left it.
        Then this one runs once more, alone.
        """
        running = active.take_running()
        if len(running) == 1 and (running[0].exclusive or not active.has_unfinished):
            reason = f"no answer after limits.point_seconds={self.limits.point_seconds:g}; the worker was killed"
            self.rows.append(self.on_fault(running[0], active.slot, "timeout", reason))
        else:
            self._each_exclusively(running, active)

    def machine_lost(self, active: ActiveWorker) -> None:
        """A lost machine costs no task an attempt, but a task must not take every machine with it, one after another."""
        for task in active.take_running():
            again = replace(task, exclusive=True, machines_lost=task.machines_lost + 1)
            if again.machines_lost <= self.limits.attempts:
                self.queue.put_last(again, active.devices)
            else:
                reason = f"{again.machines_lost} machines were lost one after another while it ran there"
                self.rows.append(self.on_fault(again, active.slot, "failed", reason))

    def put_back(self, active: ActiveWorker) -> None:
        """The worker is gone: what it had not finished goes to the front of the queue, together."""
        self.queue.put_first(active.take_unfinished(), active.devices)

    def _keep(self, rows: Iterable[Row], tasks: Sequence[Task], active: ActiveWorker) -> None:
        """Keeps rows, except those of tasks that ran out of memory and have not had the worker to themselves yet."""
        crowded = {task.point.point_id: task for task in tasks if not task.exclusive}
        for row in rows:
            if row["status"] == "oom" and row["point_id"] in crowded:
                self._retry_exclusively(crowded[row["point_id"]], active)
            else:
                self.rows.append(row)

    def _retry_exclusively(self, task: Task, active: ActiveWorker) -> None:
        self.queue.put_last(replace(task, attempt=task.attempt + 1, exclusive=True), active.devices)

    def _each_exclusively(self, tasks: Sequence[Task], active: ActiveWorker) -> None:
        self.queue.put_each_first([replace(task, exclusive=True) for task in tasks], active.devices)

    def _retry_or_fail(self, task: Task, active: ActiveWorker, death: WorkerDied) -> None:
        """Deaths that the task shared with others count as attempts from now on."""
        memory = death.cause == "memory"
        attempt = task.attempt + task.shared_deaths
        if attempt < self.limits.attempts and not (memory and task.exclusive):
            retry = replace(task, attempt=attempt + 1, exclusive=True, shared_deaths=0)
            self.queue.put_first([retry], active.devices)
            return
        status: Status = "oom" if memory else "failed"
        reason = f"host memory: {death}" if memory else f"the worker process died: {death}"
        self.rows.append(self.on_fault(replace(task, attempt=attempt), active.slot, status, reason))

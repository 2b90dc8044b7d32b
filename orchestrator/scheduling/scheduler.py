"""Gives batches of tasks to workers and passes their rows on.

A worker prepares and checks the points of a batch one by one, so that a point that ends it is known, and then measures
those that passed, interleaved. A worker that dies, hangs or breaks its device is killed and replaced, never revived.
Machines may come and go: the pool's slots are those that it has now. Knows nothing of Ray: a `Pool` starts workers.

What each event costs, and where tasks without a row are queued again ("the rest" is every other task of the worker's batch;
it costs the rest nothing, and the rest goes to the front, together, unless the table says otherwise):

event                                      who pays an attempt               where the work is queued again
-----------------------------------------  --------------------------------  ----------------------------------------------
a row, or `oom` of an exclusive task       nobody: the row is final          nowhere
`oom`, or no room beside other points      that task                         at the back, exclusive; the rest goes on
the device's context is lost               nobody: the culprit has its row   the rest; if measured together, each exclusive
the worker dies while it prepares a task   that task                         in front, exclusive, behind the rest; without
  or measures one alone                                                      attempts left: `failed`
the same, because host memory ran out      that task                         the same; if it was exclusive already: `oom`
the worker dies while it measures several  nobody yet: `shared_deaths`       each in front, exclusive
                                           counts at the next death
a process of an environment ends while     nobody                            each in front, exclusive
  several are measured
no answer in time, one task in the worker  nobody: `timeout` is final        nowhere
no answer in time, several in the worker   nobody                            what ran: each in front, exclusive
the machine is lost                        nobody: `machines_lost` counts    what ran there: at the back, exclusive, and only
                                                                             while nothing else runs; after more than
                                                                             `limits.attempts` machines: `failed`
a bad row after another's plugin ran       that task                         at the back, exclusive, in a new worker; the
  in the worker, attempts are left                                           rest goes to the front
a worker dies or hangs before it is ready  the slot: after more than         nothing was given to it
                                           `limits.attempts` it is given up
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.config.parts import Limits
from orchestrator.errors import NoWorkers, WorkerDied
from orchestrator.scheduling.interfaces import MEASURE, START, Batch, PendingResult, Pool, Slot, Worker, WorkItem, described
from orchestrator.scheduling.ready_groups import ReadyGroups
from orchestrator.storage.row import Row, Status
from orchestrator.worker.messages import Task, WorkerConfig, WorkResult

ARRIVAL_SECONDS = 0.25  # how soon a batch whose modules have been compiled is noticed
LOOK_SECONDS = 2.0  # how often machines that have joined are looked for
log = logging.getLogger(__name__)
OnRows = Callable[[Sequence[Row]], None]
OnFault = Callable[[Task, Slot, Status, str], Row]


class Scheduler:
    """Runs batches to their end on the slots of a pool, one batch at a time on each worker.

    `on_rows` gets rows as they come, once the worker that answered has its next batch.
    `on_fault` makes the row of a task whose worker cannot make it.
    With `arrivals`, whose batches wait for their kernel modules, these run as they arrive.
    If no worker is left, the scheduler waits up to `wait_seconds` for a machine to join.
    """

    def __init__(
        self,
        pool: Pool,
        config: WorkerConfig,
        limits: Limits,
        *,
        on_rows: OnRows,
        on_fault: OnFault,
        wait_seconds: float = 0.0,
        arrivals: ReadyGroups | None = None,
    ) -> None:
        self.pool, self.config, self.limits, self.on_rows = pool, config, limits, on_rows
        self.wait_seconds, self.arrivals = wait_seconds, arrivals
        self.queue = WorkQueue()
        self.active: list[ActiveWorker] = []
        self._rows: list[Row] = []  # finished, and not passed on yet
        self._retries = Retries(self.queue, self._rows, on_fault, limits)
        self._failed_starts: Counter[Slot] = Counter()  # since a worker was last ready on the slot
        self._look_at = 0.0  # when free slots are looked at next
        self._stuck_since: float | None = None  # since when nobody can run what waits
        self._last_death = ""  # the message of the last worker that died before it was ready

    def run(self, batches: Sequence[Batch] = ()) -> None:
        """Returns when every task has its row. Raises NoWorkers if tasks are left and no worker can be had."""
        self.queue.append(batches)
        try:
            while self.queue or self._more_to_come or any(item.kind != "start" for one in self.active for item, _ in one.items):
                self._start_workers()
                self._step()
        finally:
            try:
                self._pass_rows_on()
            finally:
                for active in self.active:
                    active.worker.kill()

    def _pass_rows_on(self) -> None:
        """If this is interrupted, the rows stay and are passed on again: the dataset keeps each once."""
        if self._rows:
            self.on_rows([*self._rows])
            self._rows.clear()

    @property
    def _more_to_come(self) -> bool:
        return self.arrivals is not None and self.arrivals.left

    def _enqueue_ready(self, timeout_s: float) -> None:
        if self.arrivals is not None and self.arrivals.left:
            self.queue.append(self.arrivals.batches(timeout_s))

    def _start_workers(self) -> None:
        """A worker for every free slot that has work, no more for a kind of device than batches that may run there."""
        if not (self.queue or self._more_to_come) or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_SECONDS
        taken = {active.slot for active in self.active}
        free = [slot for slot in self.pool.slots if slot not in taken and self._failed_starts[slot] <= self.limits.attempts]
        if not free:
            return
        room = self.queue.device_counts
        if self.arrivals is not None and self._more_to_come:
            room.update(self.arrivals.expected)
        room.subtract(active.slot.device_name for active in self.active if active.is_starting or active.is_idle)
        for slot in free:
            if room[slot.device_name] > 0:
                room[slot.device_name] -= 1
                self._start(slot)

    def _start(self, slot: Slot) -> None:
        log.info("%s: a worker starts", slot.name)
        self.active.append(ActiveWorker.start(self.pool, slot, self.config, self.limits))

    def _step(self) -> None:
        """Gives work to idle workers, waits for the next result or deadline, and deals with it."""
        self._enqueue_ready(0.0)
        for active in [active for active in self.active if active.is_idle]:
            self._assign_batch(active)
        self._pass_rows_on()  # now, because a worker that has something to do does not wait for the disk
        current = {id(active.current[1]): active for active in self.active if not active.is_idle}
        if not current:  # either batches are still to come, or no device that is left may run what waits
            if self._more_to_come:
                self._enqueue_ready(ARRIVAL_SECONDS)
            elif self.queue:
                self._wait_for_machine()
            return
        self._stuck_since = None
        soonest = min(active.deadline for active in current.values())
        longest = ARRIVAL_SECONDS if self._more_to_come else 1.0
        timeout_s = max(0.0, min(soonest - time.monotonic(), longest))
        for pending in self.pool.wait([active.current[1] for active in current.values()], timeout_s):
            self._on_result(current[id(pending)])
        for active in current.values():
            if active.is_late:
                self._on_deadline(active)

    def _wait_for_machine(self) -> None:
        """Looks for a machine that joins, and in the end gives up: raises NoWorkers."""
        self._stuck_since = self._stuck_since or time.monotonic()
        left_s = self._stuck_since + self.wait_seconds - time.monotonic()
        if left_s <= 0:
            names = ", ".join(sorted(self.queue.device_counts))
            waited = f" after cluster.wait_seconds={self.wait_seconds:g}" if self.wait_seconds else ""
            raise NoWorkers(
                f"{self.queue.num_tasks} points are left for {names}, and no worker can be started there{waited}{self._last_death}"
            )
        time.sleep(min(left_s, LOOK_SECONDS))

    def _assign_batch(self, active: ActiveWorker) -> None:
        others_at_work = self._more_to_come or any(not other.is_idle and not other.is_starting for other in self.active)
        if batch := self.queue.take(active.slot.device_name, others_at_work):
            if batch.tasks[0].exclusive and active.ran_plugin_of_another(batch.tasks[0]):
                self.queue.put_first(batch.tasks, batch.devices)
                self._replace(active)
                self._start(active.slot)
                return
            log.info("%s: takes %s", active.slot.name, described(batch))
            active.give(batch)

    def _on_result(self, active: ActiveWorker) -> None:
        item, pending = active.current
        try:
            result = pending.result()
        except WorkerDied as death:
            self._on_death(active, death)
            return
        active.items.popleft()
        if item.task is not None:
            self._retries.prepared(active, item.task, result)
        elif item.kind == "measure":
            self._retries.measured(active, result)
        else:
            log.info("%s: its worker is ready", active.slot.name)
            self._failed_starts[active.slot] = 0
        active.extend_deadline()
        if not result.healthy or active.is_suspect:
            self._replace(active)

    def _on_death(self, active: ActiveWorker, death: WorkerDied) -> None:
        log.info("%s: its worker died (%s): %s", active.slot.name, death.cause, death)
        if active.is_starting:
            self._start_failed(active, f": {death}")
        elif death.cause == "machine":
            self._retries.machine_lost(active)
        else:
            self._retries.worker_died(active, death)
        self._replace(active)

    def _on_deadline(self, active: ActiveWorker) -> None:
        _, pending = active.current
        if self.pool.wait([pending], timeout_s=0.0):  # the result arrived while the driver was busy
            self._on_result(active)
            return
        log.info("%s: its worker did not answer in time", active.slot.name)
        if active.is_starting:
            self._start_failed(active, f": a worker was not ready after limits.start_seconds={self.limits.start_seconds:g}")
        elif not self.pool.reaches(active.slot):
            self._retries.machine_lost(active)
        else:
            self._retries.timed_out(active)
        self._replace(active)

    def _start_failed(self, active: ActiveWorker, message: str) -> None:
        """A slot on which workers only ever fail to start is given up in the end."""
        self._failed_starts[active.slot] += 1
        self._last_death = message

    def _replace(self, active: ActiveWorker) -> None:
        """Ends the worker. What it had not finished goes to the front of the queue, and its slot is free."""
        active.worker.kill()
        self.queue.put_first(active.take_unfinished(), active.devices)
        self.active.remove(active)
        self._look_at = 0.0


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
        """A task that surely hangs has its row. If another of the worker may have stopped it, it runs once more, alone."""
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

    def _keep(self, rows: Iterable[Row], tasks: Sequence[Task], active: ActiveWorker) -> None:
        """Keeps rows, but no `oom`, and no fault that a plugin may share in, of a task that was not alone in its worker yet."""
        crowded = {task.point.point_id: task for task in tasks if not task.exclusive}
        for row in rows:
            task = crowded.get(row["point_id"])
            blameless = task is not None and row["status"] in ("failed", "mismatch") and active.ran_plugin_of_another(task)
            active.is_suspect |= blameless and self.limits.attempts > 1
            if task is not None and (row["status"] == "oom" or (blameless and active.is_suspect)):
                self._retry_exclusively(task, active)
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


class WorkQueue:
    """First in, first out, except for tasks during which a machine was lost: they come after all others."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def num_tasks(self) -> int:
        return sum(len(batch.tasks) for batch in self._batches)

    @property
    def device_counts(self) -> Counter[str]:
        """How many batches each kind of device may run."""
        return Counter(device for batch in self._batches for device in batch.devices)

    def append(self, batches: Iterable[Batch]) -> None:
        self._batches.extend(batches)

    def put_first(self, tasks: Sequence[Task], devices: tuple[str, ...]) -> None:
        """At the front, together."""
        if tasks:
            self._batches.appendleft(Batch(tuple(tasks), devices))

    def put_each_first(self, tasks: Sequence[Task], devices: tuple[str, ...]) -> None:
        """At the front, each in a batch of its own, in order."""
        self._batches.extendleft(Batch((task,), devices) for task in reversed(tasks))

    def put_last(self, task: Task, devices: tuple[str, ...]) -> None:
        self._batches.append(Batch((task,), devices))

    def take(self, device_name: str, others_at_work: bool) -> Batch | None:
        """The next batch for a device, if any. A task that lost a machine waits while others are at work (`others_at_work`)."""
        found = next((b for b in self._batches if device_name in b.devices and not b.tasks[0].machines_lost), None)
        if found is None and not others_at_work:
            found = next((b for b in self._batches if device_name in b.devices), None)
        if found is not None:
            self._batches.remove(found)
        return found


@dataclass(eq=False)
class ActiveWorker:
    """The worker of a slot, and its unfinished items, the first of which runs now.

    `deadline` (of `time.monotonic`) is that of the current item. `devices` are the kinds that may run its batch.
    `prepared` tasks have passed their check and wait to be measured; `refused` ones came after the worker lost its device.
    `plugins` are the hashes of those whose code it was given. It `is_suspect` if one of them may have made another's point fail.
    """

    slot: Slot
    worker: Worker
    limits: Limits
    items: deque[tuple[WorkItem, PendingResult]]
    deadline: float
    devices: tuple[str, ...] = ()
    prepared: list[Task] = field(default_factory=list)
    refused: list[Task] = field(default_factory=list)
    plugins: set[str] = field(default_factory=set)
    is_suspect: bool = False

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
    def has_unfinished(self) -> bool:
        """Whether tasks are prepared or wait. The worker may have begun the next item before the answer of this one is here."""
        return bool(self.prepared) or any(item.task is not None for item, _ in self.items)

    def give(self, batch: Batch) -> None:
        """Submits all items of a batch at once; the worker takes them in order."""
        self.items.extend((WorkItem("prepare", task), self.worker.prepare(task)) for task in batch.tasks)
        self.items.append((MEASURE, self.worker.measure()))
        self.plugins |= {task.point.plugin_code for task in batch.tasks} - {""}
        self.devices = batch.devices
        self.extend_deadline()

    def ran_plugin_of_another(self, task: Task) -> bool:
        """Whether code of a plugin that the task is not of may have run in the worker."""
        return bool(self.plugins - {task.point.plugin_code})

    def extend_deadline(self) -> None:
        """The time of the item that begins now: that of one point, or of every point that is measured. It may start an engine."""
        item = self.items[0][0] if self.items else None
        points = max(1, len(self.prepared)) if item and item.kind == "measure" else 1
        more_s = self.limits.start_seconds if item and item.task and item.task.point.engine else 0.0
        self.deadline = time.monotonic() + self.limits.point_seconds * points + more_s

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

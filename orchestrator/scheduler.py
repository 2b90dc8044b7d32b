"""Gives groups to workers and takes rows back. A worker that dies, hangs or loses its device is replaced, never revived.

Knows nothing of Ray: a `Pool` starts workers. A `Worker` prepares and checks the points of a group one at a time, so that
a point that ends it is known, then measures those that passed in turns. It can be killed. Machines may come and go: a pool's
slots are those it has now, and what a lost machine was given is given to others.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from orchestrator.plan import Group
from orchestrator.pool import NoWorkers, Pending, Pool, Slot, Step, Task, Worker, WorkerDied
from orchestrator.row import Row, Status
from orchestrator.settings import Limits
from orchestrator.sweep import Point

ARRIVAL_SECONDS = 0.25  # how soon a group whose modules have been compiled is noticed
LOOK_SECONDS = 2.0  # how often machines that have joined are looked for


class Arrivals(Protocol):
    """Groups that can start later than others: they wait for their kernel modules."""

    @property
    def left(self) -> bool:
        """Whether any may still come."""

    def groups(self, timeout_s: float) -> Sequence[Group]:
        """Those that can start now, each once; waits at most that long where there is none."""


@dataclass(eq=False)
class _Lane:
    """A slot at work: its worker and the steps it has been given, of which the first runs now."""

    slot: Slot
    worker: Worker
    waits: deque[tuple[Step, Pending]]
    deadline: float
    devices: tuple[str, ...] = ()  # kinds that may run what this lane was given
    held: list[Task] = field(default_factory=list)  # passed their check and wait to be measured
    refused: list[Task] = field(default_factory=list)  # a worker that lost its device does not touch them

    @property
    def starting(self) -> bool:
        return bool(self.waits) and self.waits[0][0] == "start"


OnRows = Callable[[Sequence[Row]], None]
OnFault = Callable[[Task, Slot, Status, str], Row]


class Scheduler:
    """Runs groups to their end on the slots of a pool, one group in flight a worker.

    `on_rows` gets rows as they come, once the worker that answered has its next group; `on_fault` makes the row of a point whose
    worker cannot. Where no worker is left, one is waited for as long as `wait_seconds`.
    """

    def __init__(self, pool: Pool, limits: Limits, on_rows: OnRows, on_fault: OnFault, wait_seconds: float = 0.0) -> None:
        self.pool, self.limits, self.on_rows, self.on_fault, self.wait_seconds = pool, limits, on_rows, on_fault, wait_seconds
        self.waiting: deque[tuple[tuple[Task, ...], tuple[str, ...]]] = deque()
        self.lanes: list[_Lane] = []
        self._deaths: Counter[Slot] = Counter()  # workers that died on a slot since one was ready there
        self._look_at = 0.0  # when free slots are looked at next
        self._rows: list[Row] = []  # answered, and not passed on yet
        self._deserted: float | None = None  # since when nobody can run what waits
        self._last_words = ""  # of the last worker that died before it was ready

    def run(self, groups: Sequence[Group], command: Callable[[Point], str], arrivals: Arrivals | None = None) -> None:
        """Returns when every point has its row. Raises NoWorkers when points are left and no worker can be had.

        With `arrivals`, groups run as they arrive, and `groups` only says for which devices workers are started meanwhile.
        """
        self.command, self.arrivals = command, arrivals
        self._coming = Counter(device for group in groups for device in group.devices)
        if arrivals is None:
            self._enqueue(groups)
        try:
            while self._busy():
                self._staff()
                self._step()
        finally:
            try:
                self._deliver()
            finally:
                for lane in self.lanes:
                    lane.worker.kill()

    def _deliver(self) -> None:
        """Passes on what was answered. Interrupted, the rows stay, and are passed on once more: the dataset has each once."""
        if self._rows:
            self.on_rows(self._rows)
            self._rows = []

    def _enqueue(self, groups: Sequence[Group]) -> None:
        self.waiting.extend((tuple(Task(p, self.command(p)) for p in g.points), g.devices) for g in groups)
        self._coming.subtract(device for group in groups for device in group.devices)

    @property
    def _more(self) -> bool:
        return self.arrivals is not None and self.arrivals.left

    def _welcome(self, timeout_s: float) -> None:
        if self.arrivals is not None and self.arrivals.left:
            self._enqueue(self.arrivals.groups(timeout_s))

    def _busy(self) -> bool:
        return bool(self.waiting) or self._more or any(step != "start" for lane in self.lanes for step, _ in lane.waits)

    def _staff(self) -> None:
        """A worker for every free slot that has work, no more of a kind than groups that may run there."""
        if not (self.waiting or self._more) or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_SECONDS
        taken = {lane.slot for lane in self.lanes}
        # A slot where workers only ever die is given up.
        free = [slot for slot in self.pool.slots if slot not in taken and self._deaths[slot] <= self.limits.attempts]
        if not free:
            return
        room = Counter(device for _, devices in self.waiting for device in devices)
        if self._more:
            room.update(self._coming)
        room.subtract(lane.slot.device_name for lane in self.lanes if lane.starting or not lane.waits)
        for slot in free:
            if room[slot.device_name] > 0:
                room[slot.device_name] -= 1
                self.lanes.append(self._open(slot))

    def _idle(self) -> None:
        """No lane has anything to do: the next groups are awaited, or what is left, no device that is left may run."""
        if self._more:
            self._welcome(ARRIVAL_SECONDS)
        elif self.waiting:
            self._desert()

    def _desert(self) -> None:
        """Nobody can run what waits: looks out for a machine to join, and gives up in the end."""
        self._deserted = self._deserted or time.monotonic()
        left_s = self._deserted + self.wait_seconds - time.monotonic()
        if left_s <= 0:
            left = sum(len(tasks) for tasks, _ in self.waiting)
            names = ", ".join(sorted({device for _, devices in self.waiting for device in devices}))
            waited = f" after cluster.wait_seconds={self.wait_seconds:g}" if self.wait_seconds else ""
            raise NoWorkers(f"{left} points are left for {names}, and no worker can be started there{waited}{self._last_words}")
        time.sleep(min(left_s, LOOK_SECONDS))

    def _step(self) -> None:
        """Gives work to idle lanes, waits for the next answer or deadline, deals with it."""
        self._welcome(0.0)
        for lane in [lane for lane in self.lanes if not lane.waits]:
            self._feed(lane)
        self._deliver()  # now, since a worker that has something to do does not wait for the disk
        heads = {id(pending): lane for lane in self.lanes if lane.waits for _, pending in [lane.waits[0]]}
        if not heads:
            self._idle()
            return
        self._deserted = None
        soonest = min(lane.deadline for lane in heads.values())
        longest = ARRIVAL_SECONDS if self._more else 1.0
        ready = self.pool.wait(
            [lane.waits[0][1] for lane in heads.values()], timeout_s=max(0.0, min(soonest - time.monotonic(), longest))
        )
        for pending in ready:
            self._answer(heads[id(pending)])
        for lane in heads.values():
            if lane.waits and time.monotonic() > lane.deadline:
                self._overdue(lane)

    def _open(self, slot: Slot) -> _Lane:
        worker, ready = self.pool.start(slot)
        return _Lane(slot, worker, deque([("start", ready)]), time.monotonic() + self.limits.start_seconds)

    def _feed(self, lane: _Lane) -> None:
        if (index := self._next(lane)) is None:
            return
        tasks, devices = self.waiting[index]
        del self.waiting[index]
        lane.waits.extend((task, lane.worker.submit(task)) for task in tasks)
        lane.waits.append(("measure", lane.worker.measure()))
        lane.devices, lane.deadline = devices, time.monotonic() + self.limits.point_seconds

    def _next(self, lane: _Lane) -> int | None:
        """Where the next group is that this lane's device may run. One under which a machine was lost comes after all others,
        and while nothing else runs that could be lost with it."""
        suspect = None
        for index, (tasks, devices) in enumerate(self.waiting):
            if lane.slot.device_name in devices:
                if not tasks[0].lost:
                    return index
                suspect = index if suspect is None else suspect
        others = self._more or any(other.waits and not other.starting for other in self.lanes)
        return None if others else suspect

    def _answer(self, lane: _Lane) -> None:
        step, pending = lane.waits[0]
        try:
            outcome = pending.result()
        except WorkerDied as death:
            self._died(lane, step, death)
            return
        lane.waits.popleft()
        if step == "start":
            self._deaths[lane.slot] = 0
        elif step == "measure":
            self._take(outcome.rows, lane.held, lane)
            done = {row["point_id"] for row in outcome.rows}
            self._each_alone([task for task in lane.held if task.point.point_id not in done], lane)
        elif outcome.rows:
            self._take(outcome.rows, [step], lane)
        elif outcome.alone:
            self._once_more(step, lane)
        else:
            (lane.held if outcome.fit else lane.refused).append(step)
        lane.deadline = time.monotonic() + self._allowance(lane)
        if not outcome.fit:
            self._replace(lane)

    def _take(self, rows: Iterable[Row], tasks: Sequence[Task], lane: _Lane) -> None:
        """Keeps rows, but for points that found no memory and have not had the worker to themselves yet."""
        crowded = {task.point.point_id: task for task in tasks if not task.alone}
        for row in rows:
            if row["status"] == "oom" and row["point_id"] in crowded:
                self._once_more(crowded[row["point_id"]], lane)
            else:
                self._rows.append(row)

    def _once_more(self, task: Task, lane: _Lane) -> None:
        self.waiting.append(((replace(task, attempt=task.attempt + 1, alone=True),), lane.devices))

    def _allowance(self, lane: _Lane) -> float:
        """Seconds for the step that begins now: those of a point, or of every point that is measured."""
        measuring = bool(lane.waits) and lane.waits[0][0] == "measure"
        return self.limits.point_seconds * (max(1, len(lane.held)) if measuring else 1)

    def _each_alone(self, tasks: Sequence[Task], lane: _Lane, suspect: int = 0) -> None:
        """Back to the queue one by one: measured together, nobody knows which of them it was."""
        each = [replace(task, alone=True, suspect=task.suspect + suspect) for task in tasks]
        self.waiting.extendleft(((task,), lane.devices) for task in reversed(each))
        lane.held.clear()

    def _died(self, lane: _Lane, step: Step, death: WorkerDied) -> None:
        """A dead worker costs the point it was running an attempt, and no other point anything."""
        if step == "start":
            self._deaths[lane.slot] += 1
            self._last_words = f": {death}"
        elif death.blame == "machine":
            self._machine_lost(lane, step)
        elif culprit := self._culprit(lane, step, suspect=1):
            self._blame(culprit, lane, death)
        self._replace(lane)

    def _machine_lost(self, lane: _Lane, step: Task | Literal["measure"]) -> None:
        """A lost machine costs no point an attempt. But what ran there runs alone from now on, after all else, and is given up if
        more than `limits.attempts` machines are lost under it: or it would take every one of them."""
        lane.waits.popleft()
        suspects = [step] if step != "measure" else list(lane.held)
        lane.held = lane.held if step != "measure" else []
        for task in suspects:
            again = replace(task, alone=True, lost=task.lost + 1)
            if again.lost <= self.limits.attempts:
                self.waiting.append(((again,), lane.devices))
            else:
                reason = f"{again.lost} machines were lost one after another while it ran there"
                self._rows.append(self.on_fault(again, lane.slot, "failed", reason))

    def _blame(self, culprit: Task, lane: _Lane, death: WorkerDied) -> None:
        """One more attempt, or the row of a point that has had its attempts: what died beside others counts as well."""
        memory = death.blame == "memory"
        attempt = culprit.attempt + culprit.suspect
        if attempt < self.limits.attempts and not (memory and culprit.alone):
            retry = replace(culprit, attempt=attempt + 1, alone=True, suspect=0)
            self.waiting.appendleft(((retry,), lane.devices))
            return
        reason = f"host memory: {death}" if memory else f"the worker process died: {death}"
        self._rows.append(self.on_fault(replace(culprit, attempt=attempt), lane.slot, "oom" if memory else "failed", reason))

    def _overdue(self, lane: _Lane) -> None:
        step, pending = lane.waits[0]
        if self.pool.wait([pending], timeout_s=0.0):  # it is here: we were the ones who were late
            self._answer(lane)
            return
        if step == "start":
            self._deaths[lane.slot] += 1
            self._last_words = f": a worker was not ready after limits.start_seconds={self.limits.start_seconds:g}"
        elif not self.pool.reaches(lane.slot):
            self._machine_lost(lane, step)
        elif culprit := self._culprit(lane, step):
            reason = f"no answer after limits.point_seconds={self.limits.point_seconds:g}; the worker was killed"
            self._rows.append(self.on_fault(culprit, lane.slot, "timeout", reason))
        self._replace(lane)

    def _culprit(self, lane: _Lane, step: Task | Literal["measure"], suspect: int = 0) -> Task | None:
        """The point that a worker was at, taken from its lane; None where several were being measured."""
        lane.waits.popleft()
        if step != "measure":
            return step
        if len(lane.held) == 1:
            return lane.held.pop()
        self._each_alone(lane.held, lane, suspect)
        return None

    def _replace(self, lane: _Lane) -> None:
        """The worker's end; what it had not ended goes back to the front of the queue, and its slot is free."""
        lane.worker.kill()
        left = (*lane.held, *lane.refused, *(step for step, _ in lane.waits if isinstance(step, Task)))
        lane.waits.clear()  # nobody waits for a worker that is gone
        if left:
            self.waiting.appendleft((left, lane.devices))
        self.lanes.remove(lane)
        self._look_at = 0.0

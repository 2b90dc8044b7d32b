"""Gives groups to workers and takes rows back. A worker that dies, hangs or loses its device is replaced, never revived.

Knows nothing of Ray: a `Pool` starts workers, and a `Worker` runs one point at a time and can be killed.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from orchestrator.plan import Group
from orchestrator.row import Row, Status
from orchestrator.settings import Limits
from orchestrator.sweep import Point
from orchestrator.worker import Outcome


class WorkerDied(Exception):
    """The worker's process is gone; the message says what is known of its end."""


@dataclass(frozen=True)
class Task:
    """One attempt at one point."""

    point: Point
    command: str
    attempt: int = 1


class Pending(Protocol):
    """An answer that is on its way."""

    def result(self) -> Outcome:
        """The answer. Raises WorkerDied if none will come."""


class Worker(Protocol):
    """One exclusive device and the process that holds it."""

    def submit(self, task: Task) -> Pending: ...

    def kill(self) -> None:
        """Ends the process at once and for good."""


@dataclass
class Slot:
    """A place for one worker: a device of a machine."""

    name: str
    device_name: str
    node_id: str = ""


class Pool(Protocol):
    """Where workers come from."""

    @property
    def slots(self) -> Sequence[Slot]: ...

    def start(self, slot: Slot) -> tuple[Worker, Pending]:
        """A new worker, and the answer that comes when it is ready."""

    def wait(self, pending: Sequence[Pending], timeout_s: float) -> list[Pending]:
        """Those that have an answer, or none once the time is over."""


class NoWorkers(Exception):
    """No worker is left and none can be started."""


@dataclass(eq=False)
class _Lane:
    """A slot at work: its worker and the tasks it has been given, of which the first runs now."""

    slot: Slot
    worker: Worker
    waits: deque[tuple[Task | None, Pending]]  # a task of None is the worker's start
    deadline: float
    starts: int = 1  # how often a worker was started here since one was ready
    devices: tuple[str, ...] = ()  # kinds that may run what this lane was given


OnRow = Callable[[Row], None]
OnFault = Callable[[Task, Slot, Status, str], Row]


class Scheduler:
    """Runs groups to their end on the slots of a pool, one group in flight a worker.

    `on_row` gets every row as it comes; `on_fault` makes the row of a point whose worker cannot.
    """

    def __init__(self, pool: Pool, limits: Limits, on_row: OnRow, on_fault: OnFault) -> None:
        self.pool, self.limits, self.on_row, self.on_fault = pool, limits, on_row, on_fault
        self.waiting: deque[tuple[tuple[Task, ...], tuple[str, ...]]] = deque()
        self.lanes: list[_Lane] = []
        self._last_words = ""  # of the last worker that died before it was ready

    def run(self, groups: Sequence[Group], command: Callable[[Point], str]) -> None:
        """Returns when every point has its row. Raises NoWorkers when points are left and no worker can be had."""
        self.waiting = deque((tuple(Task(p, command(p)) for p in g.points), g.devices) for g in groups)
        room = Counter(device for group in groups for device in group.devices)
        for slot in self.pool.slots:  # no more workers of a kind than groups that may run there
            if room[slot.device_name] > 0:
                room[slot.device_name] -= 1
                self.lanes.append(self._open(slot))
        try:
            while self._busy():
                self._step()
        finally:
            for lane in self.lanes:
                lane.worker.kill()

    def _busy(self) -> bool:
        if self.waiting and not self.lanes:
            self._give_up()
        return bool(self.waiting) or any(task for lane in self.lanes for task, _ in lane.waits)

    def _give_up(self) -> None:
        left = sum(len(tasks) for tasks, _ in self.waiting)
        names = ", ".join(sorted({device for _, devices in self.waiting for device in devices}))
        raise NoWorkers(f"{left} points are left for {names}, and no worker can be started there{self._last_words}")

    def _step(self) -> None:
        """Gives work to idle lanes, waits for the next answer or deadline, deals with it."""
        for lane in [lane for lane in self.lanes if not lane.waits]:
            self._feed(lane)
        heads = {id(pending): lane for lane in self.lanes if lane.waits for _, pending in [lane.waits[0]]}
        if not heads:  # what is left, no device that is left may run
            self._give_up()
        soonest = min(lane.deadline for lane in heads.values())
        ready = self.pool.wait(
            [lane.waits[0][1] for lane in heads.values()], timeout_s=max(0.0, min(soonest - time.monotonic(), 1.0))
        )
        for pending in ready:
            self._answer(heads[id(pending)])
        for lane in heads.values():
            if lane.waits and time.monotonic() > lane.deadline:
                self._overdue(lane)

    def _open(self, slot: Slot, starts: int = 1) -> _Lane:
        worker, ready = self.pool.start(slot)
        return _Lane(slot, worker, deque([(None, ready)]), time.monotonic() + self.limits.start_seconds, starts)

    def _feed(self, lane: _Lane) -> None:
        """The next group that this lane's device may run."""
        for index, (tasks, devices) in enumerate(self.waiting):
            if lane.slot.device_name in devices:
                del self.waiting[index]
                lane.waits.extend((task, lane.worker.submit(task)) for task in tasks)
                lane.devices, lane.deadline = devices, time.monotonic() + self.limits.point_seconds
                return

    def _answer(self, lane: _Lane) -> None:
        task, pending = lane.waits[0]
        try:
            outcome = pending.result()
        except WorkerDied as death:
            self._died(lane, task, str(death))
            return
        lane.waits.popleft()
        lane.deadline = time.monotonic() + self.limits.point_seconds
        if task is None:
            lane.starts = 0
        elif outcome.row is not None:
            self.on_row(outcome.row)
        if not outcome.fit:
            self._replace(lane)

    def _died(self, lane: _Lane, task: Task | None, words: str) -> None:
        """A dead worker costs the point it was running an attempt, and no other point anything."""
        if task is None:
            self._last_words = f": {words}"
        else:
            lane.waits.popleft()
            if task.attempt < self.limits.attempts:
                retry = replace(task, attempt=task.attempt + 1)
                self.waiting.appendleft(((retry,), lane.devices))
            else:
                self.on_row(self.on_fault(task, lane.slot, "failed", f"the worker process died: {words}"))
        self._replace(lane)

    def _overdue(self, lane: _Lane) -> None:
        task, _ = lane.waits.popleft()
        if task is None:
            self._last_words = f": a worker was not ready after limits.start_seconds={self.limits.start_seconds:g}"
        else:
            reason = f"no answer after limits.point_seconds={self.limits.point_seconds:g}; the worker was killed"
            self.on_row(self.on_fault(task, lane.slot, "timeout", reason))
        self._replace(lane)

    def _replace(self, lane: _Lane) -> None:
        """A new worker for the slot; what the old one had not begun goes back to the front of the queue."""
        lane.worker.kill()
        left = tuple(task for task, _ in lane.waits if task is not None)
        lane.waits.clear()  # nobody waits for a worker that is gone
        if left:
            self.waiting.appendleft((left, lane.devices))
        self.lanes.remove(lane)
        needed = any(lane.slot.device_name in devices for _, devices in self.waiting)
        if needed and lane.starts <= self.limits.attempts:  # a slot where workers only ever die is given up
            self.lanes.append(self._open(lane.slot, lane.starts + 1))

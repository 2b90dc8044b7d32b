"""Gives groups to workers and takes rows back. A worker that dies, hangs or loses its device is replaced, never revived.

Knows nothing of Ray: a `Pool` starts workers. A `Worker` prepares and checks the points of a group one at a time, so that
a point that ends it is known, then measures those that passed in turns. It can be killed.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from orchestrator.plan import Group
from orchestrator.row import Row, Status
from orchestrator.settings import Limits
from orchestrator.sweep import Point
from orchestrator.worker import Outcome

ARRIVAL_SECONDS = 0.25  # how soon a group whose modules have been compiled is noticed


class WorkerDied(Exception):
    """The worker's process is gone; the message says what is known of its end."""


@dataclass(frozen=True)
class Task:
    """One attempt at one point."""

    point: Point
    command: str
    attempt: int = 1


Step = Task | Literal["start", "measure"]


class Pending(Protocol):
    """An answer that is on its way."""

    def result(self) -> Outcome:
        """The answer. Raises WorkerDied if none will come."""


class Worker(Protocol):
    """One exclusive device and the process that holds it."""

    def submit(self, task: Task) -> Pending:
        """Prepares and checks a point. The answer has its row, or none where it passed and is kept for `measure`."""

    def measure(self) -> Pending:
        """Measures what is kept, in turns. The answer has a row for each."""

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


class Arrivals(Protocol):
    """Groups that can start later than others: they wait for their kernel modules."""

    @property
    def left(self) -> bool:
        """Whether any may still come."""

    def groups(self, timeout_s: float) -> Sequence[Group]:
        """Those that can start now, each once; waits at most that long where there is none."""


class NoWorkers(Exception):
    """No worker is left and none can be started."""


@dataclass(eq=False)
class _Lane:
    """A slot at work: its worker and the steps it has been given, of which the first runs now."""

    slot: Slot
    worker: Worker
    waits: deque[tuple[Step, Pending]]
    deadline: float
    starts: int = 1  # how often a worker was started here since one was ready
    devices: tuple[str, ...] = ()  # kinds that may run what this lane was given
    held: list[Task] = field(default_factory=list)  # passed their check and wait to be measured
    refused: list[Task] = field(default_factory=list)  # a worker that lost its device does not touch them


OnRows = Callable[[Sequence[Row]], None]
OnFault = Callable[[Task, Slot, Status, str], Row]


class Scheduler:
    """Runs groups to their end on the slots of a pool, one group in flight a worker.

    `on_rows` gets rows as they come, those of one answer together; `on_fault` makes the row of a point whose worker cannot.
    """

    def __init__(self, pool: Pool, limits: Limits, on_rows: OnRows, on_fault: OnFault) -> None:
        self.pool, self.limits, self.on_rows, self.on_fault = pool, limits, on_rows, on_fault
        self.waiting: deque[tuple[tuple[Task, ...], tuple[str, ...]]] = deque()
        self.lanes: list[_Lane] = []
        self._last_words = ""  # of the last worker that died before it was ready

    def run(self, groups: Sequence[Group], command: Callable[[Point], str], arrivals: Arrivals | None = None) -> None:
        """Returns when every point has its row. Raises NoWorkers when points are left and no worker can be had.

        With `arrivals`, groups run as they arrive, and `groups` only says for whom workers are started meanwhile.
        """
        self.command, self.arrivals = command, arrivals
        if arrivals is None:
            self._enqueue(groups)
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

    def _enqueue(self, groups: Sequence[Group]) -> None:
        self.waiting.extend((tuple(Task(p, self.command(p)) for p in g.points), g.devices) for g in groups)

    @property
    def _more(self) -> bool:
        return self.arrivals is not None and self.arrivals.left

    def _welcome(self, timeout_s: float) -> None:
        if self.arrivals is not None and self.arrivals.left:
            self._enqueue(self.arrivals.groups(timeout_s))

    def _idle(self) -> None:
        """No lane has anything to do: the next groups are awaited, or what is left, no device that is left may run."""
        if self._more:
            self._welcome(ARRIVAL_SECONDS)
        elif self.waiting:
            self._give_up()

    def _busy(self) -> bool:
        if self.waiting and not self.lanes:
            self._give_up()
        return bool(self.waiting) or self._more or any(step != "start" for lane in self.lanes for step, _ in lane.waits)

    def _give_up(self) -> None:
        left = sum(len(tasks) for tasks, _ in self.waiting)
        names = ", ".join(sorted({device for _, devices in self.waiting for device in devices}))
        raise NoWorkers(f"{left} points are left for {names}, and no worker can be started there{self._last_words}")

    def _step(self) -> None:
        """Gives work to idle lanes, waits for the next answer or deadline, deals with it."""
        self._welcome(0.0)
        for lane in [lane for lane in self.lanes if not lane.waits]:
            self._feed(lane)
        heads = {id(pending): lane for lane in self.lanes if lane.waits for _, pending in [lane.waits[0]]}
        if not heads:
            self._idle()
            return
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

    def _open(self, slot: Slot, starts: int = 1) -> _Lane:
        worker, ready = self.pool.start(slot)
        return _Lane(slot, worker, deque([("start", ready)]), time.monotonic() + self.limits.start_seconds, starts)

    def _feed(self, lane: _Lane) -> None:
        """The next group that this lane's device may run."""
        for index, (tasks, devices) in enumerate(self.waiting):
            if lane.slot.device_name in devices:
                del self.waiting[index]
                lane.waits.extend((task, lane.worker.submit(task)) for task in tasks)
                lane.waits.append(("measure", lane.worker.measure()))
                lane.devices, lane.deadline = devices, time.monotonic() + self.limits.point_seconds
                return

    def _answer(self, lane: _Lane) -> None:
        step, pending = lane.waits[0]
        try:
            outcome = pending.result()
        except WorkerDied as death:
            self._died(lane, step, str(death))
            return
        lane.waits.popleft()
        if outcome.rows:
            self.on_rows(outcome.rows)
        if step == "start":
            lane.starts = 0
        elif step == "measure":
            done = {row["point_id"] for row in outcome.rows}
            self._each_alone([task for task in lane.held if task.point.point_id not in done], lane)
        elif not outcome.rows:
            self._without_a_row(step, outcome, lane)
        lane.deadline = time.monotonic() + self._allowance(lane)
        if not outcome.fit:
            self._replace(lane)

    def _without_a_row(self, task: Task, outcome: Outcome, lane: _Lane) -> None:
        if outcome.alone:
            self.waiting.append(((task,), lane.devices))
        else:
            (lane.held if outcome.fit else lane.refused).append(task)

    def _allowance(self, lane: _Lane) -> float:
        """Seconds for the step that begins now: those of a point, or of every point that is measured."""
        measuring = bool(lane.waits) and lane.waits[0][0] == "measure"
        return self.limits.point_seconds * (max(1, len(lane.held)) if measuring else 1)

    def _each_alone(self, tasks: Sequence[Task], lane: _Lane) -> None:
        """Back to the queue one by one: measured together, nobody knows which of them it was."""
        self.waiting.extendleft(((task,), lane.devices) for task in reversed(tasks))
        lane.held.clear()

    def _died(self, lane: _Lane, step: Step, words: str) -> None:
        """A dead worker costs the point it was running an attempt, and no other point anything."""
        if step == "start":
            self._last_words = f": {words}"
        elif culprit := self._culprit(lane, step):
            if culprit.attempt < self.limits.attempts:
                retry = replace(culprit, attempt=culprit.attempt + 1)
                self.waiting.appendleft(((retry,), lane.devices))
            else:
                self.on_rows([self.on_fault(culprit, lane.slot, "failed", f"the worker process died: {words}")])
        self._replace(lane)

    def _overdue(self, lane: _Lane) -> None:
        step, _ = lane.waits[0]
        if step == "start":
            self._last_words = f": a worker was not ready after limits.start_seconds={self.limits.start_seconds:g}"
        elif culprit := self._culprit(lane, step):
            reason = f"no answer after limits.point_seconds={self.limits.point_seconds:g}; the worker was killed"
            self.on_rows([self.on_fault(culprit, lane.slot, "timeout", reason)])
        self._replace(lane)

    def _culprit(self, lane: _Lane, step: Task | Literal["measure"]) -> Task | None:
        """The point that a worker was at, taken from its lane; None where several were being measured."""
        lane.waits.popleft()
        if step != "measure":
            return step
        if len(lane.held) == 1:
            return lane.held.pop()
        self._each_alone(lane.held, lane)
        return None

    def _replace(self, lane: _Lane) -> None:
        """A new worker for the slot; what the old one had not ended goes back to the front of the queue."""
        lane.worker.kill()
        left = (*lane.held, *lane.refused, *(step for step, _ in lane.waits if isinstance(step, Task)))
        lane.waits.clear()  # nobody waits for a worker that is gone
        if left:
            self.waiting.appendleft((left, lane.devices))
        self.lanes.remove(lane)
        needed = self._more or any(lane.slot.device_name in devices for _, devices in self.waiting)
        if needed and lane.starts <= self.limits.attempts:  # a slot where workers only ever die is given up
            self.lanes.append(self._open(lane.slot, lane.starts + 1))

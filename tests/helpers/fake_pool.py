"""A pool whose workers compute nothing: its `behaviour` says how each task ends."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kernels.problem import Problem
from kernels.timing.config import Timing
from orchestrator.config.parts import Limits
from orchestrator.errors import DeathCause, WorkerDied
from orchestrator.point import Point
from orchestrator.scheduling.interfaces import MEASURE, START, Batch, PendingResult, Slot, WorkItem
from orchestrator.scheduling.ready_groups import ReadyGroups
from orchestrator.scheduling.scheduler import OnRows, Scheduler
from orchestrator.storage.row import Row, Status, describe, finish
from orchestrator.worker.messages import Task, WorkerConfig, WorkResult

Behaviour = Callable[[Task], str]  # ok | wrong | wants all | dies | hangs | breaks, the last three also "... measured"


@dataclass
class Answer:
    worker: FakeWorker
    item: WorkItem

    def result(self) -> WorkResult:
        return self.worker.answer(self.item)


@dataclass
class FakeWorker:
    pool: FakePool
    slot: Slot
    alive: bool = True
    healthy: bool = True
    hung: bool = False
    prepared_tasks: list[Task] = field(default_factory=list)

    def prepare(self, task: Task) -> PendingResult:
        return Answer(self, WorkItem("prepare", task))

    def measure(self) -> PendingResult:
        return Answer(self, MEASURE)

    def kill(self) -> None:
        self.alive = False

    def answer(self, item: WorkItem) -> WorkResult:
        assert not self.hung
        if item.kind == "start":
            self.alive = not self.pool.starts_fail
        if not self.alive:
            raise WorkerDied("signal 9")
        if item.kind == "start" or not self.healthy:
            return WorkResult(healthy=self.healthy)
        return self.prepared(item.task) if item.task else self.measured()

    def prepared(self, task: Task) -> WorkResult:
        self.pool.attempts[task.point] += 1
        match self.pool.behaviour(task):
            case "dies":
                self.alive = False
                raise WorkerDied("signal 9")
            case "breaks":
                self.healthy = False
                return WorkResult((row_of(task, "failed"),), healthy=False)
            case "wrong":
                return WorkResult((row_of(task, "mismatch"),))
            case "machine dies":
                self.alive = False
                raise WorkerDied("no answer", "machine")
            case "starves":
                self.alive = False
                raise WorkerDied("signal 9", "memory")
            case "no memory":
                return WorkResult((row_of(task, "oom"),))
            case "wants all" if self.prepared_tasks:
                return WorkResult(exclusive=True)
        self.prepared_tasks.append(task)
        return WorkResult()

    def measured(self) -> WorkResult:
        tasks, self.prepared_tasks = self.prepared_tasks, []
        fates = {self.pool.behaviour(task): task for task in tasks}
        causes: dict[str, DeathCause] = {"dies": "point", "machine dies": "machine", "starves": "memory"}
        for fate, cause in causes.items():
            if f"{fate} measured" in fates:
                self.alive = False
                raise WorkerDied("signal 9", cause)
        if "breaks measured" in fates:
            self.healthy = False
            return WorkResult((row_of(fates["breaks measured"], "failed"),), healthy=False)
        return WorkResult(tuple(row_of(task, "ok") for task in tasks))


def row_of(task: Task, status: Status) -> Row:
    times = {"median_us": 1.0} if status == "ok" else {}
    return finish({**describe(task.point), "attempt": task.attempt, **times}, status)


@dataclass
class FakePool:
    behaviour: Behaviour
    own: Sequence[Slot]
    starts_fail: bool = False
    attempts: Counter[Point] = field(default_factory=Counter)
    workers: list[FakeWorker] = field(default_factory=list)
    unreached: list[Slot] = field(default_factory=list)  # each is found out once
    joins: tuple[float, Sequence[Slot]] = (math.inf, ())  # when, and with what

    @property
    def slots(self) -> Sequence[Slot]:
        at, more = self.joins
        return [*self.own, *(more if time.monotonic() >= at else ())]

    def reaches(self, slot: Slot) -> bool:
        if slot in self.unreached:
            self.unreached.clear()
            return False
        return True

    def start(self, slot: Slot, config: WorkerConfig) -> tuple[FakeWorker, PendingResult]:
        worker = FakeWorker(self, slot)
        self.workers.append(worker)
        return worker, Answer(worker, START)

    def wait(self, pending: Sequence[PendingResult], timeout_s: float) -> list[PendingResult]:
        for answer in (p for p in pending if isinstance(p, Answer)):
            self._hang(answer)
            if not answer.worker.hung:
                return [answer]
        return []

    def _hang(self, answer: Answer) -> None:
        """The worker of an answer hangs, if the task that runs in it does so."""
        measured = answer.worker.prepared_tasks if answer.item == MEASURE else []
        fates = [self.behaviour(task) for task in measured]
        if answer.item.task:
            fates = ["hangs" if self.behaviour(answer.item.task) == "hangs" else ""]
        if answer.worker.alive and ("hangs" in fates or "hangs measured" in fates):
            answer.worker.hung = True


def batches_of(count: int, size: int, devices: tuple[str, ...] = ("gpu",)) -> list[Batch]:
    """So many batches of `size` tasks each."""
    shape = {"s_qo": 1, "s_kv": 64, "num_qo_heads": 8, "num_kv_heads": 1, "head_dim_qk": 64, "head_dim_vo": 64}
    problems = [Problem.model_validate({**shape, "batch_size": n + 1}) for n in range(count)]
    return [Batch(tuple(Task(Point(p, f"backend{b}", "how"), "replay") for b in range(size)), devices) for p in problems]


def scheduler_of(
    pool: FakePool,
    on_rows: OnRows,
    limits: Limits | None = None,
    wait_seconds: float = 0.0,
    arrivals: ReadyGroups | None = None,
) -> Scheduler:
    """A scheduler over a fake pool."""

    def fault_row(task: Task, slot: Slot, status: Status, reason: str) -> Row:
        return finish({**describe(task.point), "attempt": task.attempt}, status, reason)

    config = WorkerConfig(Timing(), True, (), {})
    return Scheduler(
        pool,
        config,
        limits or Limits(),
        on_rows=on_rows,
        on_fault=fault_row,
        wait_seconds=wait_seconds,
        arrivals=arrivals,
    )

"""Groups, workers and their ends, on workers made of nothing: every point gets one row, and only the guilty pay."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from kernels.problem import Problem
from orchestrator import scheduler as schedulers
from orchestrator.plan import Group
from orchestrator.pool import NoWorkers, Pending, Slot, Step, Task, WorkerDied
from orchestrator.row import Row, Status, describe, finish
from orchestrator.scheduler import Scheduler
from orchestrator.settings import Limits
from orchestrator.sweep import Point
from orchestrator.worker import Outcome

Behaviour = Callable[[Task], str]  # ok | wrong | wants all | dies | hangs | unfit, the last three also "... measured"


@dataclass
class Answer:
    worker: FakeWorker
    step: Step

    def result(self) -> Outcome:
        return self.worker.answer(self.step)


@dataclass
class FakeWorker:
    pool: FakePool
    slot: Slot
    alive: bool = True
    fit: bool = True
    hung: bool = False
    held: list[Task] = field(default_factory=list)

    def submit(self, task: Task) -> Pending:
        return Answer(self, task)

    def measure(self) -> Pending:
        return Answer(self, "measure")

    def kill(self) -> None:
        self.alive = False

    def answer(self, step: Step) -> Outcome:
        assert not self.hung
        if step == "start":
            self.alive = not self.pool.starts_fail
        if not self.alive:
            raise WorkerDied("signal 9")
        if step == "start" or not self.fit:
            return Outcome(fit=self.fit)
        return self.measured() if step == "measure" else self.prepared(step)

    def prepared(self, task: Task) -> Outcome:
        self.pool.attempts[task.point] += 1
        match self.pool.behaviour(task):
            case "dies":
                self.alive = False
                raise WorkerDied("signal 9")
            case "unfit":
                self.fit = False
                return Outcome((row_of(task, "failed"),), fit=False)
            case "wrong":
                return Outcome((row_of(task, "mismatch"),))
            case "machine dies":
                self.alive = False
                raise WorkerDied("no answer", "machine")
            case "starves":
                self.alive = False
                raise WorkerDied("signal 9", "memory")
            case "no memory":
                return Outcome((row_of(task, "oom"),))
            case "wants all" if self.held:
                return Outcome(alone=True)
        self.held.append(task)
        return Outcome()

    def measured(self) -> Outcome:
        held, self.held = self.held, []
        fates = {self.pool.behaviour(task): task for task in held}
        for fate, blame in (("dies measured", "point"), ("machine dies measured", "machine"), ("starves measured", "memory")):
            if fate in fates:
                self.alive = False
                raise WorkerDied("signal 9", blame)
        if "unfit measured" in fates:
            self.fit = False
            return Outcome((row_of(fates["unfit measured"], "failed"),), fit=False)
        return Outcome(tuple(row_of(task, "ok") for task in held))


def row_of(task: Task, status: Status) -> Row:
    return finish({**describe(task.point), "attempt": task.attempt}, status)


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

    def start(self, slot: Slot) -> tuple[FakeWorker, Pending]:
        worker = FakeWorker(self, slot)
        self.workers.append(worker)
        return worker, Answer(worker, "start")

    def wait(self, pending: Sequence[Pending], timeout_s: float) -> list[Pending]:
        answers = [p for p in pending if isinstance(p, Answer)]
        for answer in answers:
            fates = [self.behaviour(task) for task in answer.worker.held] if answer.step == "measure" else []
            if isinstance(answer.step, Task):
                fates = ["hangs" if self.behaviour(answer.step) == "hangs" else ""]
            if answer.worker.alive and ("hangs" in fates or "hangs measured" in fates):
                answer.worker.hung = True
        return [a for a in answers if not a.worker.hung][:1]


def groups_of(count: int, size: int, devices: tuple[str, ...] = ("gpu",)) -> list[Group]:
    shape = {"s_qo": 1, "s_kv": 64, "num_qo_heads": 8, "num_kv_heads": 1, "head_dim_qk": 64, "head_dim_vo": 64}
    problems = [Problem.model_validate({**shape, "batch_size": n + 1}) for n in range(count)]
    return [Group(tuple(Point(p, f"backend{b}", "how") for b in range(size)), devices, 1.0) for p in problems]


def run(pool: FakePool, groups: list[Group], limits: Limits | None = None, wait_seconds: float = 0.0) -> list[Row]:
    rows: list[Row] = []

    def fault(task: Task, slot: Slot, status: Status, reason: str) -> Row:
        return finish({**describe(task.point), "attempt": task.attempt}, status, reason)

    scheduler = Scheduler(pool, limits or Limits(point_seconds=0.05), rows.extend, fault, wait_seconds)
    scheduler.run(groups, lambda point: f"replay {point.point_id}")
    assert not any(worker.alive for worker in pool.workers)
    return rows


def statuses(rows: list[Row]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for row in rows:
        found.setdefault(row["backend"], Counter())[row["status"]] += 1
    return {backend: dict(counts) for backend, counts in found.items()}


SLOTS = [Slot("n:0", "gpu"), Slot("n:1", "gpu")]


TWICE = ("dies", "dies measured", "starves", "starves measured", "no memory", "wants all")


def on(backend: str, does: str) -> Behaviour:
    return lambda task: does if task.point.backend == backend else "ok"


@pytest.mark.parametrize(
    ("does", "status", "attempts"),
    [
        ("dies", "failed", 2),
        ("unfit", "failed", 1),
        ("hangs", "timeout", 0),
        ("wrong", "mismatch", 1),
        ("wants all", "ok", 1),
        ("ok", "ok", 1),
        # Once beside others, which then all run alone, and then alone.
        ("dies measured", "failed", 2),
        ("starves", "oom", 2),
        ("starves measured", "oom", 2),
        ("no memory", "oom", 2),
        ("hangs measured", "timeout", 2),
        ("unfit measured", "failed", 1),
    ],
)
def test_a_fault_costs_the_point_that_caused_it_and_no_other(does: str, status: str, attempts: int):
    pool = FakePool(on("backend1", does), SLOTS)
    rows = run(pool, groups_of(4, 3))
    of_culprit = Counter(row["attempt"] for row in rows if row["backend"] == "backend1")

    assert statuses(rows) == {"backend0": {"ok": 4}, "backend1": {status: 4}, "backend2": {"ok": 4}}
    assert len({row["point_id"] for row in rows}) == len(rows) == 12
    assert max((n for p, n in pool.attempts.items() if p.backend == "backend1"), default=0) <= attempts + (does == "wants all")
    assert {row["attempt"] for row in rows if row["backend"] != "backend1"} == {1}
    assert set(of_culprit) == {2 if does in TWICE else 1}


def test_a_worker_that_dies_once_costs_nothing():
    pool = FakePool(lambda task: "dies" if task.point.backend == "backend1" and task.attempt == 1 else "ok", SLOTS)
    rows = run(pool, groups_of(3, 3))

    assert statuses(rows) == {f"backend{b}": {"ok": 3} for b in range(3)}
    assert {row["attempt"] for row in rows if row["backend"] == "backend1"} == {2}


def test_groups_go_to_devices_that_may_run_them():
    pool = FakePool(lambda task: "ok", [Slot("n:0", "h200"), Slot("n:1", "b200")])
    rows = run(pool, groups_of(2, 2, ("h200",)) + groups_of(4, 2, ("b200", "h200"))[2:])

    assert len(rows) == 8


def test_a_slot_where_workers_never_start_is_given_up_with_what_is_left():
    pool = FakePool(lambda task: "ok", SLOTS, starts_fail=True)
    with pytest.raises(NoWorkers, match="6 points are left"):
        run(pool, groups_of(2, 3))

    assert len(pool.workers) == 2 * 3


def test_points_for_a_device_that_is_not_there_are_named():
    with pytest.raises(NoWorkers, match="b200"):
        run(FakePool(lambda task: "ok", SLOTS), groups_of(1, 1, ("b200",)))


def test_a_start_that_dies_as_its_time_runs_out_is_replaced_once():
    pool = FakePool(lambda task: "ok", SLOTS, starts_fail=True)
    with pytest.raises(NoWorkers, match="6 points are left for gpu, and no worker can be started there"):
        run(pool, groups_of(2, 3), Limits(start_seconds=1e-9))

    assert len(pool.workers) == 2 * 3


def test_no_work_starts_no_worker():
    pool = FakePool(lambda task: "ok", SLOTS)

    assert run(pool, []) == []
    assert pool.workers == []


@pytest.mark.parametrize("when", ["", " measured"])
def test_a_lost_machine_costs_no_point_an_attempt(when: str):
    deaths: Counter[Point] = Counter()

    def behaviour(task: Task) -> str:
        deaths[task.point] += 1
        return f"machine dies{when}" if task.point.backend == "backend1" and deaths[task.point] <= 2 else "ok"

    rows = run(FakePool(behaviour, SLOTS), groups_of(3, 3))

    assert statuses(rows) == {f"backend{b}": {"ok": 3} for b in range(3)}
    assert {row["attempt"] for row in rows} == {1}


@pytest.mark.parametrize("when", ["", " measured"])
def test_a_point_under_which_machines_go_on_being_lost_is_given_up_after_all_others_have_run(when: str):
    pool = FakePool(lambda task: f"machine dies{when}" if task.point.backend == "backend1" else "ok", SLOTS)
    rows = run(pool, groups_of(3, 3))

    assert statuses(rows) == {"backend0": {"ok": 3}, "backend1": {"failed": 3}, "backend2": {"ok": 3}}
    assert {row["backend"] for row in rows[:6]} == {"backend0", "backend2"}
    assert {row["reason"] for row in rows[6:]} == {"3 machines were lost one after another while it ran there"}
    assert all(pool.attempts[point] == 3 for point in pool.attempts if point.backend == "backend1")


class Gone(FakePool):
    """A machine that dies with its worker is gone for good."""

    @property
    def slots(self) -> Sequence[Slot]:
        dead = {worker.slot for worker in self.workers if not worker.alive}
        return [slot for slot in self.own if slot not in dead]


class Late:
    """The first group is there at once, the others after a while."""

    def __init__(self, groups: list[Group]) -> None:
        self.waiting, self.asked = groups, 0

    @property
    def left(self) -> bool:
        return bool(self.waiting)

    def groups(self, timeout_s: float) -> list[Group]:
        self.asked += 1
        if 1 < self.asked < 12:
            return []
        arrived, self.waiting = (self.waiting[:1], self.waiting[1:]) if self.asked == 1 else (self.waiting, [])
        return arrived


def test_a_point_under_which_a_machine_was_lost_runs_after_groups_that_still_wait_for_their_modules():
    def behaviour(task: Task) -> str:
        return "machine dies" if (task.point.backend, task.point.problem.batch_size) == ("backend0", 1) else "ok"

    groups, rows = groups_of(3, 2), list[Row]()
    scheduler = Scheduler(Gone(behaviour, SLOTS), Limits(), rows.extend, lambda *_: {})
    with pytest.raises(NoWorkers, match="1 points are left"):
        scheduler.run(groups, lambda point: "replay", Late(groups))

    assert statuses(rows) == {"backend0": {"ok": 2}, "backend1": {"ok": 3}}


def test_rows_whose_storing_was_interrupted_are_stored_once_more():
    stored: list[Row] = []

    def interrupted_once(rows: Sequence[Row]) -> None:
        stored.extend(rows)
        if len(stored) == len(rows):
            raise KeyboardInterrupt

    pool = FakePool(lambda task: "ok", SLOTS[:1])
    with pytest.raises(KeyboardInterrupt):
        Scheduler(pool, Limits(), interrupted_once, lambda *_: {}).run(groups_of(3, 2), lambda point: "replay")

    assert [row["backend"] for row in stored] == ["backend0", "backend1"] * 2
    assert not any(worker.alive for worker in pool.workers)


def test_a_point_that_is_overdue_on_a_machine_that_does_not_answer_runs_elsewhere():
    pool = FakePool(lambda task: "hangs" if pool.unreached else "ok", SLOTS[:1], unreached=SLOTS[:1])
    rows = run(pool, groups_of(2, 2))

    assert statuses(rows) == {f"backend{b}": {"ok": 2} for b in range(2)}


def test_a_run_without_a_worker_waits_for_one_to_join(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedulers, "LOOK_SECONDS", 0.01)
    pool = FakePool(lambda task: "ok", [])
    pool.joins = (time.monotonic() + 0.2, SLOTS)
    rows = run(pool, groups_of(2, 3), wait_seconds=60)

    assert len(rows) == 6


def test_a_run_that_waited_in_vain_says_how_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedulers, "LOOK_SECONDS", 0.01)
    with pytest.raises(NoWorkers, match=r"6 points are left for gpu, .* after cluster.wait_seconds=0.1"):
        run(FakePool(lambda task: "ok", []), groups_of(2, 3), wait_seconds=0.1)


def test_a_machine_that_joins_a_run_gets_work(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedulers, "LOOK_SECONDS", 0.0)
    pool = FakePool(lambda task: "ok", SLOTS[:1])
    pool.joins = (0.0, SLOTS[1:])
    run(pool, groups_of(20, 3))

    assert {worker.slot for worker in pool.workers} == set(SLOTS)


def test_answers_that_came_while_nobody_looked_are_no_timeouts():
    rows = run(FakePool(lambda task: "ok", SLOTS), groups_of(20, 3), Limits(point_seconds=1e-9))

    assert {row["status"] for row in rows} == {"ok"}

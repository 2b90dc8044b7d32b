"""Batches and workers that die: every point gets one row, and a fault costs only the point that caused it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestrator.config.parts import Limits
from orchestrator.errors import NoWorkers
from orchestrator.point import Point
from orchestrator.scheduling import scheduler as schedulers
from orchestrator.scheduling.interfaces import Batch, Slot
from orchestrator.scheduling.ready_groups import ReadyGroups
from orchestrator.storage.row import Row
from orchestrator.worker.messages import Task
from tests.helpers.fake_pool import Behaviour, FakePool, batches_of, scheduler_of


def run(pool: FakePool, batches: list[Batch], limits: Limits | None = None, wait_seconds: float = 0.0) -> list[Row]:
    rows: list[Row] = []
    scheduler_of(pool, rows.extend, limits or Limits(point_seconds=0.05), wait_seconds).run(batches)
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
        ("breaks", "failed", 1),
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
        ("breaks measured", "failed", 1),
    ],
)
def test_a_fault_costs_the_point_that_caused_it_and_no_other(does: str, status: str, attempts: int):
    pool = FakePool(on("backend1", does), SLOTS)
    rows = run(pool, batches_of(4, 3))
    of_culprit = Counter(row["attempt"] for row in rows if row["backend"] == "backend1")

    assert statuses(rows) == {"backend0": {"ok": 4}, "backend1": {status: 4}, "backend2": {"ok": 4}}
    assert len({row["point_id"] for row in rows}) == len(rows) == 12
    assert max((n for p, n in pool.attempts.items() if p.backend == "backend1"), default=0) <= attempts + (does == "wants all")
    assert {row["attempt"] for row in rows if row["backend"] != "backend1"} == {1}
    assert set(of_culprit) == {2 if does in TWICE else 1}


def test_a_worker_that_dies_once_costs_nothing():
    pool = FakePool(lambda task: "dies" if task.point.backend == "backend1" and task.attempt == 1 else "ok", SLOTS)
    rows = run(pool, batches_of(3, 3))

    assert statuses(rows) == {f"backend{b}": {"ok": 3} for b in range(3)}
    assert {row["attempt"] for row in rows if row["backend"] == "backend1"} == {2}


def test_groups_go_to_devices_that_may_run_them():
    pool = FakePool(lambda task: "ok", [Slot("n:0", "h200"), Slot("n:1", "b200")])
    rows = run(pool, batches_of(2, 2, ("h200",)) + batches_of(4, 2, ("b200", "h200"))[2:])

    assert len(rows) == 8


def test_a_slot_where_workers_never_start_is_given_up_with_what_is_left():
    pool = FakePool(lambda task: "ok", SLOTS, starts_fail=True)
    with pytest.raises(NoWorkers, match="6 points are left"):
        run(pool, batches_of(2, 3))

    assert len(pool.workers) == 2 * 3


def test_points_for_a_device_that_is_not_there_are_named():
    with pytest.raises(NoWorkers, match="b200"):
        run(FakePool(lambda task: "ok", SLOTS), batches_of(1, 1, ("b200",)))


def test_a_start_that_dies_as_its_time_runs_out_is_replaced_once():
    pool = FakePool(lambda task: "ok", SLOTS, starts_fail=True)
    with pytest.raises(NoWorkers, match="6 points are left for gpu, and no worker can be started there"):
        run(pool, batches_of(2, 3), Limits(start_seconds=1e-9))

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

    rows = run(FakePool(behaviour, SLOTS), batches_of(3, 3))

    assert statuses(rows) == {f"backend{b}": {"ok": 3} for b in range(3)}
    assert {row["attempt"] for row in rows} == {1}


@pytest.mark.parametrize("when", ["", " measured"])
def test_a_point_that_loses_machine_after_machine_is_given_up_last(when: str):
    pool = FakePool(lambda task: f"machine dies{when}" if task.point.backend == "backend1" else "ok", SLOTS)
    rows = run(pool, batches_of(3, 3))

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


class Late(ReadyGroups):
    """The first batch is there at once, the others after a while."""

    def __init__(self, batches: list[Batch]) -> None:
        self.waiting, self.asked = batches, 0
        self.expected = Counter(device for batch in batches for device in batch.devices)

    @property
    def left(self) -> bool:
        return bool(self.waiting)

    def batches(self, timeout_s: float) -> list[Batch]:
        self.asked += 1
        if 1 < self.asked < 12:
            return []
        arrived, self.waiting = (self.waiting[:1], self.waiting[1:]) if self.asked == 1 else (self.waiting, [])
        return arrived


def test_a_point_that_lost_a_machine_runs_after_batches_still_to_come():
    def behaviour(task: Task) -> str:
        return "machine dies" if (task.point.backend, task.point.problem.batch_size) == ("backend0", 1) else "ok"

    rows: list[Row] = []
    scheduler = scheduler_of(Gone(behaviour, SLOTS), rows.extend, arrivals=Late(batches_of(3, 2)))
    with pytest.raises(NoWorkers, match="1 points are left"):
        scheduler.run()

    assert statuses(rows) == {"backend0": {"ok": 2}, "backend1": {"ok": 3}}


def test_rows_whose_storing_was_interrupted_are_stored_once_more():
    stored: list[Row] = []

    def interrupted_once(rows: Sequence[Row]) -> None:
        stored.extend(rows)
        if len(stored) == len(rows):
            raise KeyboardInterrupt

    pool = FakePool(lambda task: "ok", SLOTS[:1])
    with pytest.raises(KeyboardInterrupt):
        scheduler_of(pool, interrupted_once).run(batches_of(3, 2))

    assert [row["backend"] for row in stored] == ["backend0", "backend1"] * 2
    assert not any(worker.alive for worker in pool.workers)


def test_a_point_overdue_on_a_machine_that_is_cut_off_runs_elsewhere():
    pool = FakePool(lambda task: "hangs" if pool.unreached else "ok", SLOTS[:1], unreached=SLOTS[:1])
    rows = run(pool, batches_of(2, 2))

    assert statuses(rows) == {f"backend{b}": {"ok": 2} for b in range(2)}


def test_a_run_without_a_worker_waits_for_one_to_join(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedulers, "LOOK_SECONDS", 0.01)
    pool = FakePool(lambda task: "ok", [])
    pool.joins = (time.monotonic() + 0.2, SLOTS)
    rows = run(pool, batches_of(2, 3), wait_seconds=60)

    assert len(rows) == 6


def test_a_run_that_waited_in_vain_says_how_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedulers, "LOOK_SECONDS", 0.01)
    with pytest.raises(NoWorkers, match=r"6 points are left for gpu, .* after cluster.wait_seconds=0.1"):
        run(FakePool(lambda task: "ok", []), batches_of(2, 3), wait_seconds=0.1)


def test_a_machine_that_joins_a_run_gets_work(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedulers, "LOOK_SECONDS", 0.0)
    pool = FakePool(lambda task: "ok", SLOTS[:1])
    pool.joins = (0.0, SLOTS[1:])
    run(pool, batches_of(20, 3))

    assert {worker.slot for worker in pool.workers} == set(SLOTS)


@pytest.mark.parametrize(("innocent", "hangs"), [("backend0", "hangs"), ("backend2", "hangs measured")])
def test_an_answer_that_another_point_kept_in_a_stopped_worker_costs_its_point_nothing(innocent: str, hangs: str):
    def behaviour(task: Task) -> str:
        return {innocent: "ok" if task.exclusive else "hangs", "backend1": hangs}.get(task.point.backend, "ok")

    rows = run(FakePool(behaviour, SLOTS), batches_of(4, 3))

    assert statuses(rows) == {f"backend{b}": {"timeout" if b == 1 else "ok": 4} for b in range(3)}
    assert {row["attempt"] for row in rows} == {1}


def test_answers_that_came_while_nobody_looked_are_no_timeouts():
    rows = run(FakePool(lambda task: "ok", SLOTS), batches_of(20, 3), Limits(point_seconds=1e-9))

    assert {row["status"] for row in rows} == {"ok"}


def test_a_point_that_fails_beside_a_plugin_of_another_runs_again_alone_in_a_new_worker():
    (batch,) = batches_of(1, 3)
    bad, *others = batch.tasks
    mixed = Batch((replace(bad, point=bad.point._replace(plugin_code="0a1b")), *others), batch.devices)
    soiled: list[object] = []

    def behaviour(task: Task) -> str:
        if task.point.plugin_code:
            soiled.append(pool.workers[-1])
        return "ok" if task.point.plugin_code or pool.workers[-1] not in soiled else "wrong"

    pool = FakePool(behaviour, SLOTS[:1])
    rows = run(pool, [mixed])

    assert statuses(rows) == {f"backend{b}": {"ok": 1} for b in range(3)}
    assert {row["backend"]: row["attempt"] for row in rows} == {"backend0": 1, "backend1": 2, "backend2": 2}

"""The columns of the host's time in rows, on a CPU, and from costs that were made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernels.inputs import Inputs
from kernels.problem import Problem
from kernels.timing import host_time
from kernels.timing.config import Timing
from kernels.timing.host_time import NO_DEVICE, UNSTATED, HostCost, HostTime
from kernels.timing.profiled import Work
from orchestrator.machines import cpu
from orchestrator.point import Point
from orchestrator.storage.columns import SECTIONS
from orchestrator.storage.row import Row
from orchestrator.worker.measured_row import host_columns
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner
from tests.backends.planning import PLAN_S

COLUMNS = set(SECTIONS["host"].__annotations__)
WHOLE = HostCost(HostTime(40.0, 60.0, 0.05), HostTime(20.0, 25.0, 0.02), Work(2, 1, 3, 4, 9.5), Work(0, 0, 1, 2, 30.0))


def rows_of(problem: Problem, *backends: str, host: bool = True) -> dict[str, Row]:
    timing = Timing(min_samples=10, max_samples=20, host=host)
    worker = PointRunner.create(WorkerConfig(timing, True, ("tests.backends.planning",), {"run_id": "r"}), cpu())
    rows = [row for name in backends for row in worker.prepare(Task(Point(problem, name, "how"), "replay")).rows]
    return {row["backend"]: row for row in (*rows, *worker.measure().rows)}


def test_a_plan_is_timed_and_counts_need_a_gpu(problem: Callable[..., Problem]):
    found = rows_of(problem(), "planned", "without_plan", "says_nothing")

    assert {row["status"] for row in found.values()} == {"ok"}, [row["reason"] for row in found.values()]
    assert (planned := found["planned"]["plan_host_us"]) is not None and planned >= PLAN_S * 1e6
    assert (found["without_plan"]["plan_host_us"], found["says_nothing"]["plan_host_us"]) == (0.0, None)
    assert found["says_nothing"]["host_note"] == f"{UNSTATED}; {NO_DEVICE}"
    assert {row["call_host_us"] for row in found.values()} == {None}


def test_without_the_key_no_column_is_filled(problem: Callable[..., Problem]):
    row = rows_of(problem(), "planned", host=False)["planned"]

    assert row["status"] == "ok"
    assert {row[name] for name in COLUMNS} == {None}  # type: ignore[literal-required]


def test_a_plan_that_raises_fails_its_backend_alone(problem: Callable[..., Problem]):
    found = rows_of(problem(), "raises_in_plan", "planned")

    failed = found["raises_in_plan"]
    assert (failed["status"], failed["reason"]) == ("failed", "RuntimeError: the plan found no room")
    assert found["planned"]["status"] == "ok"


def test_a_plan_that_leaves_other_lengths_behind_is_a_mismatch(problem: Callable[..., Problem]):
    row = rows_of(problem(), "keeps_the_shortest")["keeps_the_shortest"]

    assert (row["status"], row["plan_host_us"]) == ("mismatch", None)
    assert row["reason"].startswith("right before it was timed, and then: ")


def test_every_column_is_filled_from_a_whole_cost():
    row: dict[str, Any] = dict(host_columns(WHOLE))

    assert set(row) == COLUMNS
    assert (row["plan_host_us"], row["plan_host_p95_us"], row["plan_host_ci95_rel"]) == (40.0, 60.0, 0.05)
    assert (row["plan_syncs"], row["plan_d2h_copies"], row["plan_h2d_copies"], row["plan_kernels"]) == (2, 1, 3, 4)
    assert (row["call_host_us"], row["call_host_p95_us"]) == (20.0, 25.0)
    assert (row["call_syncs"], row["call_copies"], row["call_kernels"], row["host_note"]) == (0, 1, 2, None)


def test_a_row_gets_what_was_measured(problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch):
    def measured(runner: object, inputs: Inputs) -> HostCost:
        return WHOLE

    monkeypatch.setattr(host_time, "measure", measured)
    row = rows_of(problem(), "planned")["planned"]

    assert {name: row[name] for name in COLUMNS} == host_columns(WHOLE)  # type: ignore[literal-required]

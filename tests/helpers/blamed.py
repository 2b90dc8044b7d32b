"""A group of backends of `tests/backends/indexing.py` on one problem, and what its rows must say."""

from __future__ import annotations

import sys

from kernels.problem import Problem
from kernels.timing.config import Timing
from orchestrator.config.environment import Environment
from orchestrator.machines import cpu
from orchestrator.point import Point
from orchestrator.storage.row import Row
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner
from orchestrator.worker.shared_inputs import WROTE_INPUTS, WROTE_OUTSIDE
from tests.backends.indexing import TIMED

HONEST = ("follows", "follows_too")
PAIR = {"tree": (-1, 0, 0), "mask": "pair"}  # so that there is a mask
TIMING = Timing(min_samples=TIMED, max_samples=TIMED, max_seconds=60.0)
TWICE = Environment(name="twice", python=sys.executable)


def rows_of(problem: Problem, backends: list[str], env: str | None = None, timing: Timing = TIMING) -> dict[str, Row]:
    """A group of backends on one problem, measured together, here or in an environment."""
    environments = (TWICE,) if env else ()
    config = WorkerConfig(timing, True, ("tests.backends.indexing",), {"run_id": "r"}, environments=environments)
    worker = PointRunner.create(config, cpu())
    rows = [row for name in backends for row in worker.prepare(Task(Point(problem, name, "how", env=env), "replay")).rows]
    rows += worker.measure().rows
    worker.environments.close()
    return {row["backend"]: row for row in rows}


def assert_each_is_named_and_nobody_else_suffers(rows: dict[str, Row], guilty: list[str]):
    assert {name: (row["status"], WROTE_INPUTS in row["reason"], row["check"]) for name, row in rows.items() if name in guilty} == (
        dict.fromkeys(guilty, ("mismatch", True, "failed"))
    )
    assert all(WROTE_OUTSIDE not in row["reason"] for row in rows.values())
    assert [rows[name]["status"] for name in HONEST] == ["ok", "ok"]
    assert all(rows[name]["num_samples"] == TIMED for name in HONEST)

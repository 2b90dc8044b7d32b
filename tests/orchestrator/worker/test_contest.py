"""A group with timing.precision=decide: who is measured, who is credited, and what happens if the one they lean on fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernels.problem import Problem
from kernels.timing.config import Timing
from kernels.timing.nvml import DeviceMonitor
from kernels.timing.racing import STOPPED_EARLY
from kernels.timing.timers import Block, WallClock
from orchestrator.machines import cpu
from orchestrator.point import Point
from orchestrator.storage.row import Row
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner

Measured = Callable[..., dict[str, Row]]


SLOW_US, US = 1500.0, 1000.0  # what a call of the backend `slow` takes, and one of any other


@pytest.fixture(scope="module")
def worker() -> PointRunner:
    timing = Timing(min_samples=10, max_samples=20, block_gap_seconds=0, precision="decide")
    return PointRunner.create(WorkerConfig(timing, True, ("tests.backends.alike",), {}), cpu())


@pytest.fixture
def measured(worker: PointRunner, problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch) -> Measured:
    """The rows of backends that are measured together, by name; a name with a ' is the second of an A/A pair."""

    def block(self: WallClock, count: int, monitor: DeviceMonitor) -> Block:
        self.runner()
        return Block([SLOW_US if self.runner.resolved_backend == "slow" else US] * count, telemetry=monitor.read())

    monkeypatch.setattr(WallClock, "block", block)
    small = problem(batch_size=1, s_kv=20)

    def rows_of(*names: str) -> dict[str, Row]:
        for name in names:
            point = Point(small, name.rstrip("'"), "how", twin=int(name.endswith("'")))
            assert worker.prepare(Task(point, "")).rows == ()
        return {row["backend"] + "'" * row["twin"]: row for row in worker.measure().rows}

    return rows_of


def test_the_same_call_is_measured_once_and_checked_twice(measured: Measured):
    rows = measured("picks_own", "own", "says_it_is_own")
    own, credited = rows["own"], rows["picks_own"]

    assert {name: row["measured_as"] for name, row in rows.items()} == {"own": None, "picks_own": "own", "says_it_is_own": None}
    assert (credited["status"], credited["check"], credited["samples_us"]) == ("ok", "passed", own["samples_us"])
    assert credited["launches_checked"] > 1 and credited["rest_s"] == 0


def test_an_a_a_pair_is_measured_twice(measured: Measured):
    rows = measured("own", "own'", "picks_own")

    assert {row["measured_as"] for row in rows.values()} == {None}


def test_a_backend_that_is_certainly_not_the_best_stops_early(measured: Measured):
    rows = measured("own", "slow")
    slow = rows["slow"]

    assert (slow["status"], slow["stop_reason"], rows["own"]["reason"]) == ("ok", "decided", "")
    assert 2 <= slow["num_samples"] < 10 and slow["ci95_rel"] == pytest.approx(0.05)
    assert slow["reason"] == "decided: over 5% slower than own for certain; its time is rough"


def test_what_depended_on_a_wrong_backend_is_measured_itself(measured: Measured):
    both = measured("spoils", "picks_spoils", "slow")
    alone = measured("spoils", "slow")

    assert [both[name]["status"] for name in ("spoils", "picks_spoils", "slow")] == ["mismatch", "ok", "ok"]
    assert (both["picks_spoils"]["measured_as"], both["picks_spoils"]["num_samples"] >= 10) == (None, True)
    assert "than spoils" not in both["slow"]["reason"]
    assert (alone["slow"]["reason"], alone["slow"]["num_samples"] >= 10) == ("", True)
    assert alone["slow"]["stop_reason"] not in STOPPED_EARLY

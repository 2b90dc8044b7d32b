"""One worker in this process: what a point's row holds, and what becomes of a point that goes wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels.problem import Problem
from kernels.timing.config import Timing
from kernels.timing.nvml import DeviceMonitor, Telemetry
from kernels.timing.pacing import Pacer
from orchestrator.machines import cpu
from orchestrator.point import Point
from orchestrator.storage.row import COLUMNS, RESULT_COLUMNS, Row
from orchestrator.worker.messages import Task, WorkerConfig, WorkResult
from orchestrator.worker.point_runner import PointRunner

FAST = Timing(min_samples=10, max_samples=20)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> PointRunner:
    common: Row = {"run_id": "r", "sweep": "s", "cluster": "c"}
    return PointRunner.create(WorkerConfig(FAST, True, ("tests.backends.faulty",), common), cpu())


def task(problem: Problem, backend: str) -> Task:
    return Task(Point(problem, backend, "how"), "replay")


def ran(worker: PointRunner, problem: Problem, backend: str) -> Row:
    result = worker.prepare(task(problem, backend))
    (row,) = result.rows or worker.measure().rows
    return row


def test_an_ok_row_holds_its_samples_its_check_and_its_origin(worker: PointRunner, problem: Callable[..., Problem]):
    row = ran(worker, problem(), "torch_sdpa")

    assert list(row) == list(COLUMNS)
    assert (row["status"], row["check"], row["oracle"]) == ("ok", "passed", "fp32_streaming_softmax")
    assert (row["timer"], row["cuda_graph"], row["l2"], row["stop_reason"]) == (
        "perf_counter",
        False,
        "uncontrolled",
        "max_samples",
    )
    assert len(row["samples_us"]) == row["num_samples"] == sum(row["block_sizes"]) == 20
    assert (row["num_set_aside"], row["set_aside_us"], row["twin"]) == (0, [], 0)
    assert row["min_us"] <= row["median_us"] <= row["p95_us"]
    assert row["tb_per_sec"] == pytest.approx(row["bytes"] / row["median_us"] / 1e6)
    assert row["tflops"] == pytest.approx(row["flops"] / row["median_us"] / 1e6)
    assert 0 < row["rel_err"] < row["tolerance"]
    assert row["err_over_tolerance"] == row["rel_err"] / row["tolerance"]
    assert (row["command"], row["run_id"], row["sweep"], row["cluster"], row["device_name"]) == ("replay", "r", "s", "c", "cpu")
    assert row["inputs_s"] > 0 and row["check_s"] > 0 and row["measure_s"] > 0
    assert row["total_s"] >= row["inputs_s"] + row["check_s"] + row["measure_s"] + row["rest_s"]


@pytest.mark.parametrize(
    ("backend", "status", "words"),
    [
        ("raises", "failed", "RuntimeError: no kernel for a group of 8 on this day"),
        ("wrong", "mismatch", "off by more than"),
        ("nan", "mismatch", "1 of 48 rows hold NaN"),
        ("unwritten", "mismatch", "8 of 48 rows hold NaN"),
        ("out_of_memory", "oom", "tried to allocate 20 GiB"),
    ],
)
def test_a_fault_becomes_its_row_and_the_next_point_is_right(
    worker: PointRunner, problem: Callable[..., Problem], backend: str, status: str, words: str
):
    row = ran(worker, problem(), backend)

    assert row["status"] == status
    assert words in row["reason"]
    assert all(row[name] is None for name in RESULT_COLUMNS)
    assert ran(worker, problem(), "nothing")["status"] == "ok"


def test_a_group_draws_its_inputs_and_its_reference_once(worker: PointRunner, problem: Callable[..., Problem]):
    first, second, other = (
        ran(worker, problem(), "torch_sdpa"),
        ran(worker, problem(), "nothing"),
        ran(worker, problem(seed=1), "nothing"),
    )

    assert first["inputs_s"] > 0 and other["inputs_s"] > 0
    assert second["inputs_s"] is None


def test_inputs_that_do_not_fit_are_an_oom_row(
    worker: PointRunner, problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    def full(*_args: object) -> None:
        raise torch.OutOfMemoryError("no room for 34 GB")

    monkeypatch.setattr("kernels.inputs.generate.draw", full)

    assert (ran(worker, problem(), "nothing")["status"], ran(worker, problem(), "slow")["status"]) == ("oom", "oom")


def test_a_worker_that_lost_its_device_touches_no_other_point(
    worker: PointRunner, problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("orchestrator.worker.point_runner.answers", lambda device: False)
    first = worker.prepare(task(problem(), "raises"))
    second = worker.prepare(task(problem(), "nothing"))

    assert [row["status"] for row in first.rows] == ["failed"]
    assert not first.healthy
    assert (second.rows, second.healthy) == ((), False)
    assert worker.measure() == WorkResult(healthy=False)


def test_without_the_check_a_row_says_that_it_was_not_checked(problem: Callable[..., Problem]):
    runner = PointRunner.create(WorkerConfig(FAST, False, (), {}), cpu())
    row = ran(runner, problem(), "torch_sdpa")

    assert (row["status"], row["check"], row["rel_err"]) == ("ok", "not_checked: check.enabled is false", None)


def test_the_points_of_a_group_are_measured_together(worker: PointRunner, problem: Callable[..., Problem]):
    backends = ("torch_sdpa", "wrong", "nothing")
    answers = [worker.prepare(task(problem(), backend)) for backend in backends]
    rows = {row["backend"]: row["status"] for answer in (*answers, worker.measure()) for row in answer.rows}

    assert [len(answer.rows) for answer in answers] == [0, 1, 0]
    assert rows == {"torch_sdpa": "ok", "wrong": "mismatch", "nothing": "ok"}
    assert worker.measure().rows == ()


def test_a_kernel_that_keeps_an_answer_from_its_preparation_is_caught(worker: PointRunner, problem: Callable[..., Problem]):
    row = ran(worker, problem(), "remembers")

    assert (row["status"], row["check"]) == ("mismatch", "failed")


def test_a_fault_while_measuring_ends_that_point_alone(worker: PointRunner, problem: Callable[..., Problem]):
    for backend in ("torch_sdpa", "raises_later"):
        assert worker.prepare(task(problem(), backend)).rows == ()
    rows = {row["backend"]: (row["status"], row["reason"]) for row in worker.measure().rows}

    assert rows == {"torch_sdpa": ("ok", ""), "raises_later": ("failed", "RuntimeError: it ran 8 times")}


def test_an_answer_that_is_not_written_again_is_none(worker: PointRunner, problem: Callable[..., Problem]):
    row = ran(worker, problem(), "writes_once")

    assert row["status"] == "mismatch"
    assert "48 of 48 rows hold NaN" in row["reason"]  # and not the answer to other queries, which it still had


def test_a_backend_that_reads_unused_slots_is_caught(worker: PointRunner, problem: Callable[..., Problem]):
    row = ran(worker, problem(), "reads_unused")

    assert (row["status"], row["check"]) == ("mismatch", "failed")


def test_only_backends_that_skip_unused_slots_get_nan_there(worker: PointRunner, problem: Callable[..., Problem]):
    backends = ("multiplies_unused", "skips_unused_it_says", "multiplies_unused")
    rows = [ran(worker, problem(), backend) for backend in backends]

    assert [row["status"] for row in rows] == ["ok", "mismatch", "ok"]
    assert "hold NaN" in rows[1]["reason"]


def test_unused_slots_are_filled_anew_for_the_check_after_timing(worker: PointRunner, problem: Callable[..., Problem]):
    backends = ("multiplies_unused", "skips_unused")
    for backend in backends:
        assert worker.prepare(task(problem(), backend)).rows == ()

    assert [(row["backend"], row["status"]) for row in worker.measure().rows] == [(backend, "ok") for backend in backends]


def test_a_runner_s_own_arithmetic_says_how_far_off_it_may_be(worker: PointRunner, problem: Callable[..., Problem]):
    half = problem(q_dtype="fp16", kv_dtype="fp16")

    assert ran(worker, half, "half_sums")["status"] == "ok"
    assert ran(worker, half, "a_little_off")["status"] == "mismatch"


class Throttled(DeviceMonitor):
    def read(self) -> list[Telemetry]:
        return [Telemetry(1400, 3201, 60, 700.0, frozenset({"SwPowerCap"}))]


@pytest.mark.parametrize(("throttled", "status"), [("keep", "ok"), ("refuse", "failed")])
def test_a_throttled_point_is_kept_with_its_reason_or_refused(problem: Callable[..., Problem], throttled: str, status: str):
    timing = FAST.model_copy(update={"throttled": throttled, "max_pause_seconds": 0.1})
    runner = PointRunner.create(WorkerConfig(timing, True, (), {}), cpu())
    runner.provenance.pacer = Pacer(Throttled())
    row = ran(runner, problem(), "torch_sdpa")

    assert row["status"] == status
    assert "samples were taken while the clock was throttled (SwPowerCap); the median is of all of them" in row["reason"]
    assert ("timing.throttled=refuse" in row["reason"]) == (throttled == "refuse")


def test_other_processes_on_the_device_are_named_before_and_after(
    worker: PointRunner, problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch
):
    seen = iter([["71 (python)"], ["71 (python)", "80 (nvtop)"]])
    monkeypatch.setattr(worker.provenance, "other_processes", lambda: next(seen))
    row = ran(worker, problem(), "torch_sdpa")

    assert row["other_processes"] == "71 (python), 80 (nvtop)"
    assert row["reason"] == "shared: other processes on the device: 71 (python), 80 (nvtop)"


def test_a_kernel_that_goes_wrong_while_it_is_timed_is_caught(worker: PointRunner, problem: Callable[..., Problem]):
    row = ran(worker, problem(), "spoils_later")

    assert (row["status"], row["check"], row["median_us"]) == ("mismatch", "failed", None)
    assert "right before it was timed, and then: 8 of 48 rows are off" in row["reason"]


def test_a_point_that_finds_no_room_beside_others_asks_to_be_alone(worker: PointRunner, problem: Callable[..., Problem]):
    worker.prepare(task(problem(), "torch_sdpa"))
    beside = worker.prepare(task(problem(), "out_of_memory"))
    worker.measure()
    alone = worker.prepare(task(problem(), "out_of_memory"))

    assert (beside.rows, beside.exclusive) == ((), True)
    assert [row["status"] for row in alone.rows] == ["oom"]


@pytest.mark.parametrize(
    ("backend", "status", "words"),
    [("nothing", "ok", "the rule is too strict"), ("raises", "unsupported", "needs a GPU (forced: failed: RuntimeError")],
)
def test_a_row_has_its_compile_time_and_what_overriding_its_rule_showed(
    worker: PointRunner, problem: Callable[..., Problem], backend: str, status: str, words: str
):
    point = Point(problem(), backend, "how")
    result = worker.prepare(Task(point, "replay", compile_s={"cpu": 2.0, "9.0a": 7.0}, forced_rule="needs a GPU"))
    (row,) = result.rows or worker.measure().rows

    assert (row["status"], row["compile_s"]) == (status, 2.0)
    assert words in row["reason"]

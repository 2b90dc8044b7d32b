"""Padded graphs in a worker: what a backend may do with a padded request, and who is called wrong."""

from __future__ import annotations

import pytest

from kernels.problem import Problem
from kernels.timing.config import Timing
from orchestrator.machines import cpu
from orchestrator.point import Point
from orchestrator.storage.row import Row
from orchestrator.worker import output_check
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner

HEADS = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 32, "head_dim_vo": 32, "page_size": 16}
FP32 = {"q_dtype": "fp32", "kv_dtype": "fp32", "mask": "full"}
SMALL = {**HEADS, **FP32, "batch_size": 3, "s_qo": 2, "s_kv": 77, "graph_batch": 4}
CULPRITS = {
    "writes_to_request_0": "rows are off by more than",
    "writes_behind": "it wrote outside its output",
    "counts_the_null_page": "rows hold NaN, infinity or unwritten values",
    "mixes_queries": "rows are off by more than",
    "counts_up": "it wrote to the inputs, which it may only read",
    "races": "rows are off by more than",
}


@pytest.fixture(autouse=True)
def _as_many_launches_as_on_a_quiet_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(output_check, "LAUNCH_SECONDS", 60.0)


def rows_of(problem: Problem, *backends: str) -> dict[str, Row]:
    config = WorkerConfig(Timing(min_samples=10, max_samples=20), True, ("tests.backends.padding",), {"run_id": "r"})
    worker = PointRunner.create(config, cpu())
    rows = [row for name in backends for row in worker.prepare(Task(Point(problem, name, "how"), "replay")).rows]
    return {row["backend"]: row for row in (*rows, *worker.measure().rows)}


@pytest.mark.parametrize("fill", [0, 1])
@pytest.mark.parametrize("backend", [*CULPRITS, "reads_past_the_table"])
def test_a_padded_request_that_reads_or_writes_elsewhere_is_named_beside_right_backends(backend: str, fill: int):
    rows = rows_of(Problem.model_validate({**SMALL, "graph_fill": fill}), "skips", backend, "answers")

    if backend in CULPRITS:
        assert rows[backend]["status"] == "mismatch"
        assert CULPRITS[backend] in rows[backend]["reason"]
    else:  # what it finds there is no page
        assert rows[backend]["status"] == "failed"
        assert "IndexError" in rows[backend]["reason"]
    assert {name: rows[name]["status"] for name in ("skips", "answers")} == {"skips": "ok", "answers": "ok"}


@pytest.mark.parametrize("fill", [0, 1])
def test_rows_of_padded_requests_may_hold_anything_and_rates_count_the_others(fill: int):
    exact = Problem.model_validate({**SMALL, "graph_batch": None})
    padded = Problem.model_validate({**SMALL, "graph_fill": fill, "return_lse": True})
    rows = rows_of(padded, "skips", "answers")

    assert [row["status"] for row in rows.values()] == ["ok", "ok"], rows
    assert all(row["lse_err"] <= row["lse_tolerance"] and row["launches_checked"] == output_check.LAUNCHES for row in rows.values())
    assert {(row["batch_size"], row["graph_batch"], row["graph_fill"]) for row in rows.values()} == {(3, 4, fill)}
    assert {row["flops"] for row in rows.values()} == {exact.flops}
    assert {row["bytes"] for row in rows.values()} == {exact.bytes + 4 * exact.num_q_tokens * exact.num_qo_heads}  # the log-sum-exp

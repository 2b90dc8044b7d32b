"""Compositions that get one thing wrong are mismatches that say so, and the right ones beside them pass."""

from __future__ import annotations

import math

import pytest

from kernels.adapter import Adapter
from kernels.adapters.torch_states import TorchTwoCalls
from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.check.oracle import Verdict
from kernels.inputs.generate import draw
from kernels.problem import Problem
from kernels.timing.config import Timing
from orchestrator.machines import cpu
from orchestrator.point import Point
from orchestrator.storage.row import Row
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner
from tests.backends import merging

HEADS = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 16, "head_dim_vo": 16, "page_size": 16}
CASCADE = {**HEADS, "routine": "cascade", "batch_size": 3, "s_qo": 2, "s_kv": 300, "shared_prefix": 160, "return_lse": True}
RAGGED = {**HEADS, "routine": "ragged_prefill", "batch_spec": "q8s200_2q4s20_q3s50_q9", "return_lse": True}


def verdict_of(adapter: Adapter, p: Problem) -> Verdict:
    x = draw(p, "cpu")
    runner = adapter.prepare(x, cpu())
    runner()
    how = runner.arithmetic
    return judge_whole(runner.out, x, oracle.answer(x), how, runner.written_lse())


def test_the_right_compositions_pass():
    for adapter, keys in ((TorchTwoCalls(), CASCADE), (merging.chunks, RAGGED)):
        verdict = verdict_of(adapter, Problem.model_validate(keys))

        assert verdict.passed, verdict.reason
        assert verdict.lse_err is not None and verdict.lse_tolerance is not None
        assert verdict.lse_err < verdict.lse_tolerance < 2e-4


@pytest.mark.parametrize("adapter", merging.OUTPUT_WRONG, ids=lambda adapter: adapter.name)
@pytest.mark.parametrize("keys", [{}, {"s_qo": 1, "batch_size": 2}, {"kv_dtype": "fp8_e4m3", "shared_prefix": 32}])
def test_a_wrong_merge_is_off(adapter: Adapter, keys: dict[str, object]):
    verdict = verdict_of(adapter, Problem.model_validate({**CASCADE, **keys}))

    assert not verdict.passed
    assert verdict.of_tolerance > 1.5 or math.isinf(verdict.rel_err)


@pytest.mark.parametrize("adapter", merging.LSE_WRONG, ids=lambda adapter: adapter.name)
def test_a_right_output_with_a_wrong_log_sum_exp_does_not_pass(adapter: Adapter):
    p = Problem.model_validate(CASCADE)
    verdict = verdict_of(adapter, p)

    assert verdict.of_tolerance < 1  # the output is right
    assert not verdict.passed
    assert "log-sum-exp" in verdict.reason
    if adapter.name == "in_the_other_base":
        assert "it is right in base 2, and the backend states base e" in verdict.reason


@pytest.mark.parametrize("adapter", merging.CHUNKS_WRONG, ids=lambda adapter: adapter.name)
def test_an_empty_chunk_that_counts_and_a_chunk_that_is_cut_short_are_found(adapter: Adapter):
    assert not verdict_of(adapter, Problem.model_validate(RAGGED)).passed


@pytest.mark.parametrize(
    "adapter", [a for a in merging.CHUNKS_WRONG if a.name != "less_workspace"], ids=lambda adapter: adapter.name
)
def test_what_empty_chunks_do_needs_requests_of_different_lengths(adapter: Adapter):
    """Of equal requests none has an empty chunk, and these kernels are right: so the sweep has very different ones."""
    equal = {key: value for key, value in RAGGED.items() if key != "batch_spec"}

    assert verdict_of(adapter, Problem.model_validate({**equal, "batch_size": 3, "s_qo": 4, "s_kv": 100})).passed


def row_of(p: Problem, backend: str) -> Row:
    config = WorkerConfig(Timing(min_samples=10, max_samples=12), True, ("tests.backends.merging",), {"run_id": "r"})
    worker = PointRunner.create(config, cpu())
    (row,) = worker.prepare(Task(Point(p, backend, "how"), "replay")).rows or worker.measure().rows
    return row


def test_a_row_holds_the_error_of_the_log_sum_exp_and_its_base():
    p = Problem.model_validate(CASCADE)
    right, wrong = row_of(p, "torch_two_calls"), row_of(p, "in_the_other_base")

    assert (right["status"], right["reason"], right["lse_base"], right["return_lse"]) == ("ok", "", "e", True)
    assert (right["shared_prefix"], right["launches_checked"] or 0) >= (160, 2)
    assert 0 <= (right["lse_err"] or 0.0) < (right["lse_tolerance"] or 0.0)
    assert wrong["status"] == "mismatch" and "the log-sum-exp of" in wrong["reason"]
    assert (wrong["lse_err"] or 0.0) > 100 * (wrong["lse_tolerance"] or 0.0)
    assert (wrong["rel_err"] or 1.0) < (wrong["tolerance"] or 0.0)


def test_a_row_of_a_problem_that_asks_for_none_holds_none():
    row = row_of(Problem.model_validate({**CASCADE, "return_lse": False}), "torch_two_calls")

    assert (row["status"], row["lse_err"], row["lse_tolerance"], row["lse_base"]) == ("ok", None, None, None)

"""Several inputs together: what one leaves in the noise they show, and a right kernel stays right."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from kernels.check import oracle, weighing
from kernels.check.judgement import Pooled
from kernels.check.oracle import Verdict
from kernels.check.significance import WeightTest, _Reading, _Worst
from kernels.inputs import Inputs
from kernels.inputs.generate import draw, draw_other_values, redraw
from kernels.mutants.drawn import Fault, answer_with
from kernels.mutants.reference_case import case_of
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic

FEW_ROWS = {"num_kv_heads": 1, "head_dim_qk": 128, "head_dim_vo": 128, "page_size": 64, "batch_size": 1, "s_qo": 1}
SCALE_8_BITS = 256.0


def problem(dtype: str) -> Problem:
    """With too few rows for one input to show a lost page."""
    few = {"num_qo_heads": 4, "s_kv": 20000} if dtype == "fp8_e4m3" else {"num_qo_heads": 2, "s_kv": 30000}
    return Problem.model_validate({**FEW_ROWS, **few, "q_dtype": dtype, "kv_dtype": dtype})


def rounded(x: Inputs, fault: Fault | None) -> torch.Tensor:
    """The output of a kernel that rounds probabilities to the dtype of the queries, with a fault in it."""
    case = case_of(x, 0)
    scores = case.scores()
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    narrow = weights.bfloat16() if x.q.dtype == torch.bfloat16 else (weights * SCALE_8_BITS).to(torch.float8_e4m3fn)
    scale = 1.0 if x.q.dtype == torch.bfloat16 else SCALE_8_BITS
    out = case.merge(narrow.float() / scale, weights.sum(-1, keepdim=True))
    if fault:
        out += answer_with(case, fault) - case.answer()
    return out.to(x.empty_output().dtype)


@cache
def verdict(p: Problem, inputs: int, fault: Fault | None = None) -> Verdict:
    x, pooled = draw(p, "cpu"), Pooled(p, Arithmetic(p.q_dtype))
    for number in range(inputs):
        if number:
            draw_other_values(x, number)
        pooled.add(rounded(x, fault), x, oracle.answer(x))
    return pooled.verdict()


@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3"])
def test_several_inputs_show_a_page_that_one_does_not_and_say_so(dtype: str):
    p = problem(dtype)
    alone, needed = verdict(p, 1), verdict(p, 1).inputs_needed
    assert alone.passed and (alone.min_tokens is None or alone.min_tokens > 64)
    assert needed is not None and needed > 1

    together = verdict(p, needed)
    assert together.passed and together.min_tokens is not None and together.min_tokens <= 64
    lost = [Fault("lost", 64, start, 0) for start in (64 * 20 + 17, 64 * 200)]
    assert not any(verdict(p, needed, fault).passed for fault in lost)


def test_a_right_kernel_passes_on_many_inputs():
    found = verdict(problem("fp8_e4m3"), 8)

    assert found.passed, found.reason
    assert found.weight_over_limit is not None and found.weight_over_limit < 0.9


def test_requests_are_weighed_together_as_for_the_first_input_whatever_memory_is_free_later(monkeypatch: pytest.MonkeyPatch):
    """Sums of several inputs are of the same requests. Seen on an H200 where other programs took memory meanwhile."""
    p = Problem.model_validate({**FEW_ROWS, "num_qo_heads": 2, "s_kv": 700, "batch_size": 5})
    x, found = draw(p, "cpu"), list[Verdict]()
    monkeypatch.setattr(weighing, "CHUNK_BYTES", 1)
    one = p.s_kv * weighing._bytes_a_key(x, p.s_qo)
    for rooms in ([2, 3], [5, 5]):
        redraw(x)
        pooled, free = Pooled(p, Arithmetic("bf16")), iter(rooms)
        monkeypatch.setattr(weighing, "_group_bytes", lambda _, free=free: next(free) * one)
        for number in range(2):
            if number:
                draw_other_values(x, number)
            pooled.add((answer := oracle.answer(x)).out.bfloat16(), x, answer)
        found.append(pooled.verdict())
    some_together, all_together = found

    assert all_together.passed and some_together == replace(
        all_together, weight_over_limit=pytest.approx(all_together.weight_over_limit, rel=1e-3)
    )


def test_one_wrong_row_on_any_input_is_enough():
    p = problem("bf16")
    x, pooled = draw(p, "cpu"), Pooled(p, Arithmetic("bf16"))
    for number in range(2):
        if number:
            draw_other_values(x, number)
        out = rounded(x, None)
        out[0, 0] *= 2 if number == 0 else 1
        pooled.add(out, x, oracle.answer(x))

    assert not pooled.verdict().passed
    assert "off by more than" in pooled.verdict().reason


@pytest.mark.parametrize("wrong", [None, 0, 1, 2])
def test_a_wrong_log_sum_exp_on_any_input_is_enough(wrong: int | None):
    """With a right output: as of a kernel that keeps the log-sum-exp of its first input."""
    p = Problem.model_validate({**FEW_ROWS, "num_qo_heads": 2, "s_kv": 3000, "return_lse": True})
    x, pooled = draw(p, "cpu"), Pooled(p, Arithmetic("bf16", lse_base="2"))
    for number in range(3):
        if number:
            draw_other_values(x, number)
        answer = oracle.answer(x)
        pooled.add(rounded(x, None), x, answer, answer.lse / math.log(2) + (0.1 if number == wrong else 1e-3 * number))
    found = pooled.verdict()

    assert found.passed == (wrong is None), found.reason
    assert ("the log-sum-exp of 2 of 2 rows is off" in found.reason) == (wrong is not None)
    if wrong is None:
        assert found.lse_err == pytest.approx(2e-3 * math.log(2), rel=0.01)  # that of the worst input
        assert found.lse_tolerance is not None and found.lse_err < found.lse_tolerance


def test_an_input_without_its_log_sum_exp_does_not_pass():
    p = Problem.model_validate({**FEW_ROWS, "num_qo_heads": 2, "s_kv": 300, "return_lse": True})
    x, pooled = draw(p, "cpu"), Pooled(p, Arithmetic("bf16"))
    pooled.add(rounded(x, None), x, oracle.answer(x))

    assert "returned no log-sum-exp" in pooled.verdict().reason


def test_other_values_leave_plans_valid_and_the_first_ones_come_back():
    p = Problem.model_validate({**FEW_ROWS, "num_qo_heads": 2, "s_kv": 1000, "sinks": True})
    x = draw(p, "cpu")
    before = {name: tensor.clone() for name, tensor in tensors(x).items()}
    draw_other_values(x, 1)

    changed = {name for name, tensor in tensors(x).items() if not torch.equal(tensor, before[name])}
    assert changed == {"q", "k", "v"}
    redraw(x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(x).items())


def tensors(x: Inputs) -> dict[str, torch.Tensor]:
    assert x.sinks is not None
    names = ("q", "page_table", "q_lens", "kv_lens", "qo_indptr", "kv_indptr", "kv_indices", "last_page_len", "sinks")
    return {name: getattr(x, name) for name in names} | dict(zip("kv", x.kv, strict=True))


def certain(by_length: dict[int, dict[int, float]]) -> int | None:
    """N, if the estimates of blocks are so certain, by length of a request and size of a block."""
    test = WeightTest(problem("bf16"), 0.0, 0.01)
    worst = _Worst(*(torch.zeros(()) for _ in range(4)), ())
    test.__dict__["_found"] = _Reading(worst, 0.0, by_length, [])
    return test.min_tokens()


def test_blocks_that_hold_half_of_a_short_request_do_not_hide_what_shows_in_it():
    """Blocks that hold half of a row or more are not estimated: their certainty is 0. N is asked of each length alone."""
    short = {1: 0.0, 8: 1e9, 256: 0.0}

    assert certain({300: short, 8192: {1: 0.0, 8: 0.0, 256: 1e9, 4096: 0.0}}) == 512
    assert certain({300: short, 8192: {1: 0.0, 8: 1e9, 256: 0.0}}) == 16
    assert certain({300: {1: 0.0, 8: 0.0}, 8192: {1: 0.0, 8: 1e9}}) == 301  # all keys of the short one may be lost
    assert certain({300: {1: 1e9}, 8192: {1: 1e9}}) == 1
    assert certain({300: short, 8192: {1: 0.0, 8: 0.0}}) is None
    assert certain({}) is None

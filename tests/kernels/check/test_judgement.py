"""What the whole check says of kernels written out in torch: right ones pass, and a fault is named with its place."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import pytest
import torch

from kernels.check import oracle, weighing
from kernels.check.estimates import OutputErrors, keys_and_values
from kernels.check.judgement import judge_whole
from kernels.check.tolerance import ROUNDING_RMS
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.mutants.drawn import Fault, answer_with
from kernels.mutants.reference_case import ReferenceCase, case_of
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from kernels.problem.dtypes import UNIT_ROUNDOFF

HEADS = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 128, "head_dim_vo": 128}
SHAPES = {**HEADS, "page_size": 64, "batch_size": 1, "s_qo": 2}
SCALE_8_BITS = 256.0  # kernels scale probabilities before they round them to 8 bits
Changed = Callable[[ReferenceCase], ReferenceCase]


def problem(s_kv: int, dtype: str = "bf16", seed: int = 0, **keys: object) -> Problem:
    return Problem.model_validate({**SHAPES, "s_kv": s_kv, "q_dtype": dtype, "kv_dtype": dtype, "seed": seed, **keys})


@lru_cache(maxsize=2)
def drawn(p: Problem) -> tuple[Inputs, oracle.Answer]:
    x = draw(p, "cpu")
    return x, oracle.answer(x)


def computed(p: Problem, change: Changed = lambda case: case) -> torch.Tensor:
    """The output of a kernel that rounds probabilities to the dtype of the queries, and the output to its own."""
    x, _ = drawn(p)
    case = change(case_of(x, 0))
    scores = case.scores()
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    rounded = weights.bfloat16() if p.q_dtype == "bf16" else (weights * SCALE_8_BITS).to(torch.float8_e4m3fn)
    scale = 1.0 if p.q_dtype == "bf16" else SCALE_8_BITS
    return case.merge(rounded.float() / scale, weights.sum(-1, keepdim=True)).to(x.empty_output().dtype)


def judged(p: Problem, out: torch.Tensor) -> oracle.Verdict:
    x, answer = drawn(p)
    return judge_whole(out, x, answer, Arithmetic(p.q_dtype))


def with_fault(p: Problem, out: torch.Tensor, fault: Fault) -> torch.Tensor:
    """The output moved as the fault moves the right answer."""
    x, answer = drawn(p)
    return (out.float() + answer_with(case_of(x, 0), fault) - answer.out).to(out.dtype)


@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3"])
@pytest.mark.parametrize("seed", range(12))
def test_a_right_kernel_passes_whatever_was_drawn(seed: int, dtype: str):
    p = problem(6000, dtype, seed)
    verdict = judged(p, computed(p))

    assert verdict.passed, verdict.reason
    assert verdict.weight_over_limit is not None and verdict.weight_over_limit < 0.9
    assert verdict.pairs_covered == 1 and (verdict.min_tokens or 0) <= 64


def test_an_estimate_without_certainty_says_nothing():
    """Two keys of opposite values share a row: seen on an H200, where |p * (v - o)|^2 came out negative, and the key was blamed."""
    p = problem(64, s_qo=1, batch_size=1, num_qo_heads=1, num_kv_heads=1)
    x = draw(p, "cpu")
    k, v = (t.view(-1, p.page_size, p.head_dim_qk) for t in x.kv)
    page = int(x.page_table[0, 0])
    q = x.q[0, 0].float()
    for slot, (logit, value) in enumerate(((20.0, 1.0), (18.6, -1.0))):
        k[page, slot] = (q * logit / (q.square().sum() * x.sm_scale)).to(k.dtype)
        v[page, slot] = value
    answer = oracle.answer(x)
    errors = OutputErrors(x, answer, 1e-3 * torch.randn(answer.out.shape), ROUNDING_RMS * UNIT_ROUNDOFF[p.output_dtype])

    for weights in weighing.weigh(errors):
        assert (weights.a[weights.b <= 0] == 0).all()
        assert (weights.a.abs() < 10 * (weights.b + weights.variance.sqrt() + 1e-6)).all()


def test_requests_that_are_weighed_together_get_the_estimates_that_each_gets_alone(monkeypatch: pytest.MonkeyPatch):
    """Memory decides how many are; chunks of keys, and so the blocks, do not depend on it."""
    p = problem(700, batch_size=3)
    x, answer = drawn(p)
    errors = OutputErrors(x, answer, 1e-3 * torch.randn(answer.out.shape), ROUNDING_RMS * UNIT_ROUNDOFF[p.output_dtype])
    monkeypatch.setattr(weighing, "CHUNK_BYTES", 4 * 64 * 5 * max(p.num_qo_heads * p.s_qo, p.num_kv_heads * p.head_dim_qk))
    found = []
    for room in (1, 2**31):
        monkeypatch.setattr(weighing, "_group_bytes", lambda _inputs, room=room: room)
        found.append([(weights.kind, weights.requests, weights.start, weights.a) for weights in weighing.weigh(errors)])
    alone, together = found

    assert {len(requests) for _, requests, _, _ in alone} == {1} and {len(requests) for _, requests, _, _ in together} == {3}
    assert len({start for kind, _, start, _ in together if kind == "block"}) == 3  # chunks of 320 keys
    for kind, requests, start, a in together:
        parts = [part for name, one, at, part in alone if (name, at) == (kind, start) and one[0] in requests]
        assert torch.allclose(a, torch.cat(parts), rtol=1e-3, atol=1e-4 * float(a.abs().max()))


def test_a_page_that_one_head_lost_is_named_though_no_row_shows_it():
    p = problem(131072)
    verdict = judged(p, with_fault(p, computed(p), Fault("lost", 64, 6400, 0)))

    assert verdict.of_tolerance < 1 and not verdict.passed
    assert re.match(r"keys 6400 to 6463 of KV head 0 of request 0 count 0.0?\d+ times", verdict.reason)


@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3"])
@pytest.mark.parametrize(("query", "back"), [(1, 2), (1, 1), (0, 2), (0, 1)])
def test_every_pair_of_the_draft_s_mask_counts(query: int, back: int, dtype: str):
    p = problem(20000, dtype)

    assert not judged(p, with_fault(p, computed(p), Fault("pair", 1, p.s_kv - back, 0, query))).passed


@pytest.mark.parametrize(("dtype", "gain"), [("bf16", 1.03), ("fp8_e4m3", 1.05)])
def test_an_output_that_is_too_large_as_a_whole_is_wrong(dtype: str, gain: float):
    p = problem(6000, dtype)
    verdict = judged(p, (computed(p).float() * gain).to(torch.bfloat16))

    assert not verdict.passed


def test_a_softmax_that_does_not_subtract_its_maximum_overflows():
    p = problem(6000)
    case = case_of(drawn(p)[0], 0)
    weights = case.scores().exp()
    out = case.merge(weights, weights.sum(-1, keepdim=True)).to(torch.bfloat16)

    assert "NaN" in judged(p, out).reason


def test_arithmetic_in_bf16_as_on_a_gpu_says_the_same(monkeypatch: pytest.MonkeyPatch):
    p = problem(20000, "fp8_e4m3")
    out = with_fault(p, computed(p), Fault("lost", 128, 6400, 1))
    in_fp32 = judged(p, computed(p)), judged(p, out)
    for module in (weighing, weighing):
        monkeypatch.setattr(module, "keys_and_values", lambda *of: tuple(t.bfloat16() for t in keys_and_values(*of)))
    in_bf16 = judged(p, computed(p)), judged(p, out)

    for one, other in zip(in_fp32, in_bf16, strict=True):
        assert (one.passed, one.min_tokens, one.pairs_covered) == (other.passed, other.min_tokens, other.pairs_covered)
        assert (one.weight_over_limit or 0.0) == pytest.approx(other.weight_over_limit or 0.0, rel=0.1)
    assert not in_bf16[1].passed


@pytest.mark.parametrize(
    ("keys", "how", "words"),
    [
        ({}, Arithmetic("fp8_e4m3"), "multiplies in fp8_e4m3, but no operand is coarser than bf16"),
        ({"dtype": "fp8_e4m3"}, Arithmetic("fp8_e5m2"), "multiplies in fp8_e5m2, but no operand is coarser than fp8_e4m3"),
        ({}, Arithmetic("bf16", accumulator_dtype="fp16"), "sums in fp16; allowed: fp32, or fp16 if it multiplies in fp16"),
        ({}, Arithmetic("bf16", accumulator_dtype="bf16"), "sums in bf16; allowed: fp32, or fp16 if it multiplies in fp16"),
    ],
)
def test_a_dtype_that_no_operand_has_buys_no_tolerance(keys: dict[str, str], how: Arithmetic, words: str):
    p = problem(3000, **keys)
    x, answer = drawn(p)

    assert words in judge_whole(computed(p), x, answer, how).reason

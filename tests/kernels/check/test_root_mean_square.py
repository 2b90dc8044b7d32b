"""A kernel that is off by most of the tolerance in every row is wrong, though no row exceeds it."""

from __future__ import annotations

import pytest
import torch

from kernels.check import oracle
from kernels.check.judgement import judge_rows
from kernels.check.root_mean_square import SHARE, SHARE_NARROWED, limit_of
from kernels.check.tolerance import tolerance
from kernels.inputs.generate import draw
from kernels.mutants.reference_case import ReferenceCase, case_of
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from tests.helpers.right_kernels import RightKernel, Roundings, Schedule

HEADS = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 64, "batch_size": 2}
E4M3 = Roundings("bf16", "fp8_e4m3", "fp8_e4m3")


def half_of_products(case: ReferenceCase) -> torch.Tensor:
    """P.V of the lighter half of the keys of each row is skipped, and the sum is whole."""
    scores = case.scores()
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    heavy = scores > scores.median(-1, keepdim=True).values
    return case.merge(weights * heavy, weights.sum(-1, keepdim=True))


@pytest.mark.parametrize("s_qo", [1, 4])
def test_a_kernel_that_skips_half_of_its_products_is_wrong_in_8_bits(s_qo: int):
    p = Problem.model_validate({**HEADS, "s_qo": s_qo, "s_kv": 8000, "q_dtype": "bf16", "kv_dtype": "fp8_e4m3", "seed": 4})
    kernel, x = RightKernel(E4M3, Schedule(64, 1, False, False, False, "fp32", 256.0)), draw(p, "cpu")
    answer, out, how = oracle.answer(x), kernel(x)[0], kernel.arithmetic(p)
    moved = torch.cat([half_of_products(case) - case.answer() for case in (case_of(x, 0), case_of(x, 1))])
    right, wrong = (judge_rows(of, x, answer, how) for of in (out, (out.float() + moved).to(out.dtype)))

    assert right.passed and right.rms_err is not None and right.max_error is not None
    assert right.rms_err < 0.6 * right.max_error < 0.6 * tolerance(p, how) * 1.001
    assert wrong.of_tolerance < 1 and not wrong.passed
    assert "in root mean square" in wrong.reason


@pytest.mark.parametrize("lengths", [{}, {"min_s_qo": 1, "seq_lens": "random", "seed": 3}])
def test_the_head_that_is_nearest_to_its_limit_is_named_with_its_request(lengths: dict[str, object]):
    p = Problem.model_validate({**HEADS, "batch_size": 4, "s_qo": 8, "s_kv": 300, **lengths})
    x, how = draw(p, "cpu"), Arithmetic("bf16")
    answer, request = oracle.answer(x), max(range(4), key=p.q_lens.__getitem__)
    out = answer.out.clone()
    out[x.queries(request), 5] *= 1 + 0.9 * tolerance(p, how)  # every row of a head by 0.9 of the tolerance
    verdict = judge_rows(out.bfloat16(), x, answer, how)

    assert verdict.reason.startswith(f"the rows of query head 5 of request {request}: off by")
    assert verdict.max_error == pytest.approx(limit_of(min(p.q_lens), p, how) * tolerance(p, how))


@pytest.mark.parametrize(("compute", "share"), [("bf16", SHARE), ("fp8_e4m3", SHARE_NARROWED)])
def test_one_row_may_have_all_of_its_tolerance_and_many_a_share(compute: str, share: float):
    p = Problem.model_validate({**HEADS, "s_qo": 1, "s_kv": 300, "kv_dtype": "fp8_e4m3"})

    assert limit_of(1, p, Arithmetic(compute)) == 1
    assert limit_of(10**8, p, Arithmetic(compute)) == pytest.approx(share, rel=1e-3)

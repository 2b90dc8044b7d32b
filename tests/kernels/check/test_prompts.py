"""Every query token of a prompt is looked at: a wrong mask shows wherever it is wrong, in 16 and in 8 bits."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.mutants.catalogue import ADAPTERS
from kernels.mutants.drawn import Fault, answer_with
from kernels.mutants.mutant import Wrong
from kernels.mutants.reference_case import ReferenceCase, case_of
from kernels.problem import Problem
from tests.helpers.right_kernels import RightKernel, Roundings, Schedule

HEADS = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 128, "head_dim_vo": 128, "page_size": 64, "routine": "paged_prefill"}
E4M3 = Roundings("fp8_e4m3", "fp8_e4m3", "fp8_e4m3")
BF16 = Roundings("bf16", "bf16", "bf16")


@lru_cache(maxsize=3)
def computed(how: Roundings, s_qo: int, s_kv: int, seed: int) -> tuple[RightKernel, Inputs, oracle.Answer, torch.Tensor]:
    """A kernel that is right but for what it rounds, and what it gives."""
    dtypes = {"q_dtype": how.q_dtype, "kv_dtype": how.kv_dtype}
    p = Problem.model_validate({**HEADS, **dtypes, "batch_size": 1, "s_qo": s_qo, "s_kv": s_kv, "seed": seed})
    torch.manual_seed(seed)
    scale = 256.0 if how is E4M3 else 1.0
    kernel = RightKernel(how, Schedule(64, 1, False, False, False, "fp32", scale))
    x = draw(p, "cpu")
    return kernel, x, oracle.answer(x), kernel(x)[0]


def judged(how: Roundings, s_qo: int, s_kv: int, seed: int, wrong: Wrong = ReferenceCase.answer) -> oracle.Verdict:
    """The verdict on that kernel, moved as something wrong moves the right answer."""
    kernel, x, answer, out = computed(how, s_qo, s_kv, seed)
    moved = out.float()
    for case in case_of(x, 0).parts():
        moved[case.tokens.start : case.tokens.stop] += wrong(case) - case.answer()
    return judge_whole(moved.to(out.dtype), x, answer, kernel.arithmetic(x.problem))


@pytest.mark.parametrize(("how", "s_qo", "s_kv", "covered"), [(E4M3, 256, 8192, 0.7), (BF16, 128, 16384, 0.95)])
def test_a_right_kernel_passes_and_the_row_says_how_many_pairs_are_covered(how: Roundings, s_qo: int, s_kv: int, covered: float):
    verdict = judged(how, s_qo, s_kv, 0)

    assert verdict.passed, verdict.reason
    assert (verdict.pairs_covered or 0.0) >= covered


def test_in_8_bits_a_mask_that_is_off_by_one_for_most_of_a_prompt_is_wrong():
    wrong = next(mutant.wrong for mutant in ADAPTERS if mutant.name == "mask_one_early_at_first")

    assert not judged(E4M3, 256, 8192, 0, wrong).passed


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("query", "key"), [(31, 32), (31, 31), (20, 20), (20, 21), (63, 64), (64, 63), (90, 60), (127, 126)])
def test_in_16_bits_one_wrong_pair_of_any_query_of_a_prompt_is_wrong(query: int, key: int, seed: int):
    fault = Fault("pair", 1, 16384 - 128 + key, 0, query)

    assert not judged(BF16, 128, 16384, seed, lambda case: answer_with(case, fault)).passed

"""Outputs in 8 bits stay within their range: rows of one heavy key at any length, and wrong answers that are larger."""

from __future__ import annotations

import pytest
import torch

from kernels.adapters.torch_states import TorchChunks
from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.inputs.generate import draw
from kernels.libraries.flashinfer_common import fp8_output_scale
from kernels.problem import Problem
from orchestrator.machines import cpu

FP8 = {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3", "out_dtype": "fp8_e4m3"}
SHAPE = {"num_qo_heads": 4, "num_kv_heads": 1, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 64, "batch_size": 1, "s_qo": 1}


@pytest.mark.parametrize("s_kv", [16, 500, 32768, 65536])
def test_a_right_answer_fits_at_any_length(s_kv: int):
    x = draw(Problem.model_validate({**SHAPE, **FP8, "s_kv": s_kv}), "cpu")
    answer = oracle.answer(x)
    runner = TorchChunks(routine="paged_decode", chunk=8192).prepare(x, cpu())
    runner()

    assert float(answer.out.abs().max()) / runner.caller_scale < torch.finfo(torch.float8_e4m3fn).max
    assert judge_whole(runner.out, x, answer, runner.arithmetic, None).passed


def test_a_longer_batch_has_no_smaller_divisor_than_the_range_allows():
    scales = [fp8_output_scale(Problem.model_validate({**SHAPE, **FP8, "s_kv": 4**n})) for n in (2, 4, 6, 8, 10)]

    assert scales == [1 / 4, 1 / 16, 1 / 64, 1 / 64, 1 / 64]

"""Derived tolerances against what kernels did: the committed datasets, and kernels of 8 bits written out on today's inputs."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pandas as pd
import pytest
import torch

from kernels.check import oracle
from kernels.check.judgement import judge_rows
from kernels.check.tolerance import SUMMED_AT_ONCE
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.inputs.states import State, attend, merged
from kernels.mutants.reference_case import case_of
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from tests.helpers.committed_rows import frame_of, limit_of, records_of
from tests.helpers.datasets import RESULTS

# Since then a row's own tolerance is today's. Move it if the formula changes.
OWN_TOLERANCE_SINCE = pd.Timestamp("2026-11-25 22:00", tz="UTC")
ROOM = 0.75  # of a tolerance that no right kernel may exceed
WITHOUT_A_SCALE = "flash_mla_fp8"  # loses small probabilities, so it is no right kernel (docs/findings/mla_engines.md)
SHAPE = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 64, "batch_size": 1}


def judged_answers() -> pd.DataFrame:
    """Every committed row of a kernel whose answer was judged, with `limit`, today's tolerance of it.

    That is the row's own if it was written since the formula last changed. Otherwise it is that of a row whose values do not
    cancel, because what widens a row's is not known without its values (docs/correctness_numbers.md).
    Rows that were a `mismatch` then are among them; those that a rule forbids and that failed when forced have another status.
    Rows of fp32 are left out: their errors are as small as the reference's, which is not part of `limit`.
    """
    files = [file for file in sorted(RESULTS.glob("h[12]00_*/*.parquet")) if not file.stem.endswith(("_noise", "_check_power"))]
    table = pd.concat([frame_of(file) for file in files], ignore_index=True)
    judged = table[table["status"].isin(["ok", "mismatch"]) & (table["q_dtype"] != "fp32")]
    older = judged[judged["finished_at"] < OWN_TOLERANCE_SINCE]
    least = pd.Series([limit_of(row) for row in records_of(older)], index=older.index)
    return judged.assign(limit=least.reindex(judged.index).fillna(judged["tolerance"]))


def test_no_right_answer_of_a_gpu_comes_near_its_tolerance():
    judged = judged_answers()
    of_limit, kernel = judged["rel_err"] / judged["limit"], judged["resolved_backend"]
    dims = (judged["head_dim_qk"] == 192) & (judged["head_dim_vo"] <= 128)
    in_fp8, latent = judged["kv_dtype"].isin(["fp8_e4m3", "fp8_e5m2"]), judged["head_dim_ckv"].notna()
    miscompiled = (kernel == "triton_extend") & dims & in_fp8 & ~latent  # by Triton 3.6
    # SGLang's MLA loses small weights over FP8: the estimates and root mean squares say so, and no row alone.
    lost = kernel.isin(["triton_extend", "triton_decode_grouped"]) & in_fp8 & latent & (judged["status"] == "mismatch")
    unified = kernel.isin(["triton_unified_2d", "triton_unified_3d"])  # wrong over FP8 and, in vLLM 0.25.1, under a window
    faulty = unified & ((judged["q_dtype"] == "fp8_e4m3") | (judged["status"] == "mismatch"))
    right = (kernel != WITHOUT_A_SCALE) & ~miscompiled & ~lost & ~faulty

    page = (RESULTS.parent / "docs" / "correctness.md").read_text()
    fp8_q, _, narrowed, kept = map(float, re.findall(r"\d\.\d+", page.partition("over an FP8 cache may be off by ")[2])[:4])
    for name, q_dtype, said in (("flash_attn_3", "fp8_e4m3", fp8_q), ("xqa_hopper_fp8", "bf16", narrowed), ("fa2", "bf16", kept)):
        limit = judged["limit"][(kernel == name) & (judged["q_dtype"] == q_dtype) & in_fp8 & ~latent]
        assert float(limit.median()) == pytest.approx(said, rel=0.1), name
    assert right.sum() > 5000
    assert float(of_limit[miscompiled].min()) > 1 > float(of_limit[lost].max())
    assert set(judged["status"]) == {"ok", "mismatch"}
    assert float(of_limit[right].max()) < ROOM
    assert float(of_limit[~right].max()) > 1


def in_8_bits(x: Inputs, largest: float) -> torch.Tensor:
    """A right kernel of 8 bits: queries and probabilities rounded to fp8_e4m3, the largest of a row at `largest`, sums in fp32."""
    case = case_of(x, 0)
    scores = replace(case, q=case.q.to(torch.float8_e4m3fn).float()).scores()
    weights = (scores - scores.amax(-1, keepdim=True)).exp_()
    rounded = (weights * largest).to(torch.float8_e4m3fn).float() / largest
    return case.merge(rounded, weights.sum(-1, keepdim=True)).to(torch.bfloat16)


@pytest.mark.parametrize("largest", [256.0, 448.0])
@pytest.mark.parametrize("q_dtype", ["bf16", "fp8_e4m3"])
@pytest.mark.parametrize(("s_kv", "s_qo"), [(1024, 4), (8192, 4), (32768, 1)])
def test_a_right_kernel_of_8_bits_passes_on_planted_inputs(s_kv: int, s_qo: int, q_dtype: str, largest: float):
    """Most rows of the datasets are of inputs whose context was not planted yet."""
    for seed in range(3):
        p = Problem.model_validate({**SHAPE, "s_kv": s_kv, "s_qo": s_qo, "q_dtype": q_dtype, "kv_dtype": "fp8_e4m3", "seed": seed})
        x = draw(p, "cpu")
        verdict = oracle.judge(in_8_bits(x, largest), oracle.reference(x), p, Arithmetic("fp8_e4m3"))

        assert 0.1 < verdict.of_tolerance < ROOM
        assert math.isclose(verdict.of_tolerance, verdict.rel_err / verdict.tolerance)


def in_fp16_sums(x: Inputs) -> torch.Tensor:
    """A right kernel whose accumulators are fp16, rounded once for every 16 products."""
    case, group = case_of(x, 0), x.problem.group_size
    out = torch.empty(len(case.q), x.problem.num_qo_heads, x.problem.value_dim, dtype=torch.float16)
    for head in range(x.problem.num_qo_heads):
        q, k, v = case.q[:, head], case.k[:, head // group], case.v[:, head // group]
        scores = (summed(q, k.T) * x.sm_scale).masked_fill(~case.seen, float("-inf"))
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        out[:, head] = summed(weights.half().float(), v) / weights.sum(-1, keepdim=True)
    return out


def summed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(len(a), b.shape[-1])
    for at in range(0, a.shape[-1], SUMMED_AT_ONCE):
        total = (total + a[:, at : at + SUMMED_AT_ONCE] @ b[at : at + SUMMED_AT_ONCE]).half().float()
    return total


@pytest.mark.parametrize(("s_kv", "s_qo"), [(1024, 4), (8192, 2), (32768, 1)])
def test_a_right_kernel_of_fp16_sums_passes_as_such_and_not_as_one_of_fp32_sums(s_kv: int, s_qo: int):
    keys = {"s_kv": s_kv, "s_qo": s_qo, "q_dtype": "fp16", "kv_dtype": "fp16", "num_qo_heads": 8, "num_kv_heads": 1}
    p = Problem.model_validate({**SHAPE, **keys})
    x = draw(p, "cpu")
    answer, right = in_fp16_sums(x), oracle.answer(x)
    verdict = judge_rows(answer, x, right, Arithmetic("fp16", accumulator_dtype="fp16"))

    assert 0.1 < verdict.of_tolerance < ROOM
    assert not judge_rows(answer, x, right, Arithmetic("fp16")).passed


def in_a_chain(x: Inputs, count: int) -> torch.Tensor:
    """Partial answers over equal parts of the keys, merged one after the other into an output that each merge rounds to bf16."""
    size = -(-x.problem.s_kv // count)
    states = [
        attend(x, [range(at, min(at + size, end)) for end in x.problem.kv_lens], torch.bfloat16)
        for at in range(0, x.problem.s_kv, size)
    ]
    state = states[0]
    for other in states[1:]:
        both = merged(state, other)
        state = State(both.out.to(torch.bfloat16), both.lse)
    return state.out


@pytest.mark.parametrize("count", [2, 17, 64, 128])
def test_a_chain_of_merges_passes_as_one_and_a_long_one_not_as_a_single_call(count: int):
    p = Problem.model_validate({**SHAPE, "s_kv": 1024, "s_qo": 4})
    x = draw(p, "cpu")
    answer, found = oracle.answer(x), in_a_chain(x, count)
    as_chain, as_one = (judge_rows(found, x, answer, Arithmetic("bf16", rounded_merges=merges)) for merges in (count - 2, 0))

    assert 0.1 < as_chain.of_tolerance < ROOM
    assert as_one.passed == (count < 64)

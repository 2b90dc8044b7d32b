"""The check finds faults of vLLM 0.25.1's Triton kernel that an H200 showed (findings/wrong_answers.md), as arithmetic on a CPU.

Both are in `softmax_step` and the loop around it (`triton_attention_helpers.py`, `triton_unified_attention.py`).
"""

from __future__ import annotations

import pytest
import torch

from kernels.check import oracle
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic

TILE = 32
E4M3 = torch.float8_e4m3fn
EXP_UNDERFLOW = -87.3  # below it the GPU's fp32 exponential is 0
GPT_OSS = {"num_qo_heads": 8, "num_kv_heads": 1, "head_dim_qk": 64, "head_dim_vo": 64, "s_kv": 2048, "sinks": True}
LIKE_GEMMA = {"num_qo_heads": 8, "num_kv_heads": 4, "head_dim_qk": 128, "head_dim_vo": 128, "s_kv": 256, "window": 128}


def problem(dtype: str, **keys: object) -> Problem:
    given = {"routine": "paged_decode", "batch_size": 1, "s_qo": 4, "q_dtype": dtype, "kv_dtype": dtype, "out_dtype": "bf16"}
    return Problem.model_validate({**given, **keys})


def tokens(inputs: Inputs, cache: torch.Tensor, request: int) -> torch.Tensor:
    """Keys or values of a request as stored, fp32 [s_kv, K, D]."""
    p, pages = inputs.problem, cache[inputs.page_table[request].long()].float()
    pages = pages if p.kv_layout == "NHD" else pages.transpose(1, 2)
    return pages.reshape(-1, *pages.shape[2:])[: p.s_kv]


def of_triton(inputs: Inputs, *, p_scale: float | None, keeps_infinity: bool) -> torch.Tensor:
    """The output [T, H, D] tile by tile. `p_scale`: probabilities times it become e4m3; None: they stay fp32."""
    p, out = inputs.problem, torch.zeros(inputs.problem.num_q_tokens, inputs.problem.num_qo_heads, inputs.problem.head_dim_vo)
    token = torch.arange(p.s_qo)[:, None, None]
    for request in range(p.batch_size):
        keys, values = (tokens(inputs, cache, request).repeat_interleave(p.group_size, 1) for cache in inputs.kv)
        q, rows = inputs.q[request * p.s_qo :][: p.s_qo].float(), slice(request * p.s_qo, (request + 1) * p.s_qo)
        scores = torch.einsum("qhd,nhd->qhn", q, keys) * inputs.sm_scale * inputs.k_scale
        maximum = torch.full(scores.shape[:2], -torch.inf) if inputs.sinks is None else inputs.sinks.float().expand(p.s_qo, -1)
        total, sums = torch.ones_like(maximum), torch.zeros_like(out[rows])
        first = 0 if p.window is None else (p.s_kv - p.s_qo - p.window + 1) // TILE * TILE
        for start in range(first, p.s_kv, TILE):
            at, last = torch.arange(start, min(start + TILE, p.s_kv)), p.s_kv - p.s_qo + token
            hidden = (at > last) | ((at <= last - p.window) if p.window else torch.zeros(1, dtype=torch.bool))
            tile = scores[..., at].masked_fill(hidden, -torch.inf)
            new = torch.maximum(maximum, tile.amax(-1))
            shift = new.masked_fill(new == -torch.inf, 0.0)  # of 0.25.1 also the next maximum
            parts = (tile - shift[..., None]).exp()
            parts, alpha = parts.where(tile - shift[..., None] > EXP_UNDERFLOW, 0.0), (maximum - shift).exp()
            weights = parts if p_scale is None else (parts * p_scale).to(E4M3).float() / p_scale
            total, sums = total * alpha + parts.sum(-1), sums * alpha[..., None] + torch.einsum("qhn,nhd->qhd", weights, values[at])
            maximum = new if keeps_infinity else shift
        out[rows] = sums / total[..., None] * inputs.v_scale
    return out.bfloat16()


@pytest.mark.parametrize(("p_scale", "wrong"), [(1.0, True), (None, False)])
def test_probabilities_in_8_bits_without_a_scale_lose_keys_beside_a_sink(p_scale: float | None, wrong: bool):
    p = problem("fp8_e4m3", **GPT_OSS)
    inputs = draw(p, "cpu")
    found = of_triton(inputs, p_scale=p_scale, keeps_infinity=True)

    assert oracle.judge(found, oracle.reference(inputs), p, Arithmetic("fp8_e4m3")).passed is not wrong


@pytest.mark.parametrize(("dtype", "p_scale"), [("bf16", None), ("fp8_e4m3", 256.0)])
@pytest.mark.parametrize("keeps_infinity", [True, False])
def test_a_maximum_of_0_after_a_hidden_tile_loses_rows_with_small_logits(dtype: str, p_scale: float | None, keeps_infinity: bool):
    p = problem(dtype, **LIKE_GEMMA, batch_size=64)
    inputs = draw(p, "cpu")
    found = of_triton(inputs, p_scale=p_scale, keeps_infinity=keeps_infinity)

    assert oracle.judge(found, oracle.reference(inputs), p, Arithmetic(dtype)).passed is keeps_infinity

"""How heavy a planted key is, and where planted keys stand in the cache."""

from __future__ import annotations

import math

from kernels.inputs import Inputs
from kernels.inputs.nvfp4 import dequantize
from kernels.inputs.shifted_logits import drawn_elements, without_shift
from kernels.inputs.tensors import bits, drawn_scale, token_major
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.dtypes import SIZE_BITS

# Query tokens of a request, from the last, at whom context keys are aimed; and those around a draft key to which it is planted.
PLANTED = 64
SINK_SPREAD = 1024
NEAR_CAP = 0.9  # of a soft cap: the largest planted logit


def parts_of(q_len: int) -> list[range]:
    """All query tokens of a request, in parts of `PLANTED`: the first holds what is left."""
    return [range(max(0, stop - PLANTED), stop) for stop in reversed(range(q_len, 0, -PLANTED))]


def narrowest(problem: Problem) -> str:
    """The fewest bits in which some kernel multiplies: those of the queries or of the cache, which MLA kernels widen."""
    dtypes = (problem.q_dtype,) if problem.latent else (problem.q_dtype, problem.kv_dtype)
    return min(dtypes, key=lambda dtype: SIZE_BITS[dtype])


def planted_logit(problem: Problem, kv_len: int, scale: float) -> float:
    """The logit at which one key weighs as much as the whole output over L random keys; `scale` makes a logit of q.k.

    Logits, without their shift, are N(0, s^2): the weights exp(x) sum to L * exp(s^2/2) and their squares to L * exp(2 s^2). So an
    output over values of its own has the size exp(s^2/2) / sqrt(L), in lengths of a value. Values that are the keys, as in MLA,
    also lean towards the query by c * q, where x = c * q.k. A key of logit t weighs exp(t - s^2/2) / L. A window shortens L.
    """
    variance = drawn_elements(problem) * scale**2
    length = max(1, kv_len if problem.window is None else min(kv_len, problem.window))  # without keys none is planted
    size = math.sqrt(math.exp(variance) / length + (scale**2 if problem.latent else 0.0))
    return variance / 2 + math.log(length * size)


def before_cap(problem: Problem, logit: float) -> float:
    """The scaled logit that the soft cap, if there is one, makes this one. What a cap hardly lets through stays below it."""
    cap = problem.soft_cap
    return logit if cap is None else cap * math.atanh(min(logit / cap, NEAR_CAP))


def sink_logit(problem: Problem, scale: float) -> float:
    """The logit at which a sink weighs about as much as all keys of the longest request: a fixed one is nothing beside 131072.

    Beside a request that is more than `SINK_SPREAD` times shorter it would leave an output below fp16's normal numbers.
    """
    length = min(max(problem.kv_lens), SINK_SPREAD * min(filter(None, problem.kv_lens)), problem.window or problem.s_kv)
    return drawn_elements(problem) * scale**2 / 2 + math.log(length)


def keys_at(inputs: Inputs, at: tuple[Tensor, ...]) -> Tensor:
    """Keys as drawn at pages and slots [n], fp32 [n, K, D], or at pages, slots and KV heads [n], [n, D]."""
    key = token_major(inputs.problem, inputs.kv[0])
    if inputs.kv_scales is None:
        return bits(key)[at].view(key.dtype).float()
    return dequantize(key[at], bits(token_major(inputs.problem, inputs.kv_scales[0]))[at].view(torch.float8_e4m3fn))


def queries_at(inputs: Inputs, rows: Tensor, heads: Tensor) -> Tensor:
    """Queries along which keys are planted, fp32 [..., D]: without what shifts all logits of a row."""
    return without_shift(inputs.problem, inputs.q[rows, heads])


def target_products(inputs: Inputs) -> Tensor:
    """[B]: q.k of a planted key as stored, which the scales turn into its logit, the shift of its row apart."""
    p = inputs.problem
    logits = [before_cap(p, planted_logit(p, length, drawn_scale(p))) for length in p.kv_lens]
    return torch.tensor(logits, device=inputs.device) / (inputs.sm_scale * inputs.k_scale)

"""Logits of both signs and of any size: all logits of a row are moved alike, which changes no softmax.

Some elements of all keys hold one constant, as real models have channels in which all keys are alike. A row's query holds the
same number in all of them: 1 or -1 moves its logits by 16 up or down, and 8 or -8 by 128. A right kernel gives the same output
as without. One that counts a slot of zeros (logit 0), starts its maximum at 0, takes exponentials of logits as they are, or rounds
logits to 16 bits does not.

The numbers of queries are powers of two, and the constant has three binary digits: no 8-bit dtype rounds them. The elements are
among the last ones, since a tensor core that multiplies in 8 bits cuts off what is small beside the largest product so far. Others
lie between them: a kernel that leaves out the last 16 bytes of a key, or the last step of a product, would lose constants alone.
"""

# T = query tokens of all requests, H = num_qo_heads, D = key_dim, n = elements that are constant

from __future__ import annotations

import math

from kernels.inputs import Inputs
from kernels.inputs.nvfp4 import BLOCK, quantize
from kernels.inputs.nvfp4 import LARGEST as LARGEST_CODE
from kernels.inputs.tensors import K_SCALE, bits, is_scaled, rounded, softmax_scale
from kernels.lazy import Tensor, torch
from kernels.problem import Problem

LARGEST = 448.0  # number of fp8_e4m3
SHIFT = 16.0  # of most rows: beside 131,072 keys of logits N(-16, 1) one of logit 0 has nearly all of the weight
FURTHEST = 8.0  # times as far: exp of these logits overflows fp32, or is 0
MAX_CONSTANT = BLOCK  # elements of a key, at most a 16th of it; in nvfp4 a whole block, since it has one scale


def constant_elements(problem: Problem) -> int:
    """n, the number of elements of each key that hold the constant.

    0 where none can: in an nvfp4 key of a single block, in MLA without a position part, whose keys are values, and under a soft
    cap, behind which a shift would change the softmax.
    """
    if problem.soft_cap is not None:
        return 0
    if problem.kv_dtype == "nvfp4":
        return BLOCK if problem.key_dim > BLOCK else 0
    beside_values = problem.key_dim - problem.value_dim if problem.latent else problem.key_dim
    return min(MAX_CONSTANT, problem.key_dim // 16, beside_values // 2)


def constant_at(problem: Problem) -> slice:
    """Which elements of a key hold the constant: every other one of the last 2 n, and in nvfp4 the last block. None if n is 0."""
    n, apart = constant_elements(problem), 1 if problem.kv_dtype == "nvfp4" else 2
    return slice(-apart * (n - 1) - 1, None, apart) if n else slice(0, 0)


def drawn_elements(problem: Problem) -> int:
    """D - n: the elements of a key that differ from key to key, of which logits are made beside their shift."""
    return problem.key_dim - constant_elements(problem)


def shift_logits(inputs: Inputs) -> None:
    """Writes the constant into all keys, and its factors into all queries. Elements between them are moved, alike in both."""
    p, n = inputs.problem, constant_elements(inputs.problem)
    if not n:
        return
    constant = torch.full((BLOCK,), _constant(p), device=inputs.device)
    if inputs.kv_scales is None:
        keys = bits(inputs.kv[0])
        keys[..., -2 * n :: 2] = keys[..., -2 * n : -n].clone()
        keys[..., constant_at(p)] = bits(rounded(constant, inputs.kv[0].dtype))[:n]
        inputs.q[..., -2 * n :: 2] = inputs.q[..., -2 * n : -n].clone()
    else:
        inputs.kv[0][..., -n // 2 :], scale = quantize(constant)
        bits(inputs.kv_scales[0])[..., -1:] = bits(scale)
    of_rows = factors(p).to(inputs.device)
    inputs.q[..., constant_at(p)] = of_rows[..., None].to(inputs.q.dtype)


def factors(problem: Problem) -> Tensor:
    """fp32 [T, H] on the CPU: what a row's query holds, by which its logits are shifted.

    Query heads and query tokens take 1 and -1 in turns; with sinks heads alone, 0 and -1. Of the rows of each request's last two
    tokens one has 8, and another -8; one row alone has -8 and 8 in turns of requests, since more softmaxes are wrong at -8.
    """
    p, heads = problem, problem.num_qo_heads
    token, head = torch.arange(p.num_q_tokens)[:, None], torch.arange(heads)
    found = (1.0 - 2.0 * ((token + head) % 2)) if not p.sinks else -(head % 2).float().repeat(p.num_q_tokens, 1)
    request, rows = torch.arange(p.batch_size), torch.tensor(p.q_lens).clamp(max=2) * heads
    behind = torch.tensor(p.q_starts[1:]) * heads - 1
    if not p.sinks:  # its sink would leave nothing of such a row
        found.view(-1)[behind - (request + rows // 2) % rows] = -FURTHEST
    below = (rows == 1) & (request % 2 == 0) & (not p.sinks)
    found.view(-1)[behind - request % rows] = torch.where(below, -FURTHEST, FURTHEST)
    return found


def shifts_of_sinks(inputs: Inputs) -> Tensor:
    """fp32 [H]: a head has one sink for all of its rows, so it is moved with their logits. Every other head stays as it is."""
    shift = _shift(inputs.problem) if constant_elements(inputs.problem) else 0.0
    return -(torch.arange(inputs.problem.num_qo_heads, device=inputs.device) % 2) * shift


def shifts(inputs: Inputs) -> Tensor:
    """fp32 [T, H]: by how much the logits of each row are moved."""
    if not constant_elements(inputs.problem):
        return torch.zeros(inputs.q.shape[:2], device=inputs.device)
    return bits(inputs.q)[..., -1].view(inputs.q.dtype).float() * _shift(inputs.problem)


def without_shift(problem: Problem, q: Tensor) -> Tensor:
    """Queries [..., D] in fp32 that give logits without a shift: a new tensor."""
    found = q.to(torch.float32, copy=True)
    found[..., constant_at(problem)] = 0.0
    return found


def _shift(problem: Problem) -> float:
    """Of a row's logits, for a factor of 1."""
    return constant_elements(problem) * _constant(problem) * _scale(problem)


def _constant(problem: Problem) -> float:
    """As it is stored."""
    code = LARGEST_CODE if problem.kv_dtype == "nvfp4" else 1.0  # times the scale of its block
    digits, exponent = math.frexp(SHIFT / (constant_elements(problem) * _scale(problem) * code))
    return code * min(math.ldexp(round(digits * 8), exponent - 3), LARGEST)


def _scale(problem: Problem) -> float:
    return softmax_scale(problem) * (K_SCALE if is_scaled(problem) else 1.0)

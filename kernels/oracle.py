"""The right answer, from the dequantised inputs in fp32, and the verdict on an output. Knows no backend.

Streaming softmax over chunks of keys (Milakov and Gimelshein 2018), one request at a time, so that the memory it takes
does not grow with batch or context.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.dtypes import UNIT_ROUNDOFF, torch_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.inputs import Inputs
    from kernels.problem import Problem

NAME = "fp32_streaming_softmax"
CHUNK_BYTES = 256 * 2**20  # fp32 keys of one chunk; values and scores come to about as much again


@dataclass(frozen=True)
class Verdict:
    """What the check found. `rel_err` is the worst row's ||out - ref|| / ||ref||, a row being one query token of one head."""

    passed: bool
    rel_err: float
    max_abs_err: float
    tolerance: float
    reason: str = ""


def reference(inputs: Inputs) -> Tensor:
    """The output of the problem, fp32 [B*Q, H, D_vo]. Raises torch.OutOfMemoryError where the device is full."""
    import torch

    p = inputs.problem
    out = torch.empty(p.batch_size * p.s_qo, p.num_qo_heads, p.head_dim_vo, dtype=torch.float32, device=inputs.device)
    with _exact_fp32():
        for request in range(p.batch_size):
            out[request * p.s_qo : (request + 1) * p.s_qo] = _attend(inputs, request)
    return out


@contextmanager
def _exact_fp32() -> Iterator[None]:
    """Full fp32 products while it lasts, whatever this process was told about TF32."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _attend(inputs: Inputs, request: int) -> Tensor:
    """One request, [Q, H, D_vo]. Scores are [K, G*Q, chunk]: heads that share a KV head form one matrix."""
    import torch

    p = inputs.problem
    length = p.kv_lens[request]
    q = inputs.q[request * p.s_qo : (request + 1) * p.s_qo].float()
    q = q.view(p.s_qo, p.num_kv_heads, p.group_size, -1).permute(1, 2, 0, 3).flatten(1, 2)  # [K, G*Q, D]
    q = q * (inputs.sm_scale * inputs.k_scale)
    best = q.new_full((p.num_kv_heads, q.shape[1], 1), -torch.inf)
    total, acc = torch.zeros_like(best), q.new_zeros(p.num_kv_heads, q.shape[1], p.head_dim_vo)
    chunk = max(1, CHUNK_BYTES // (4 * p.num_kv_heads * p.head_dim_qk))
    for start in range(0, length, chunk):
        stop = min(length, start + chunk)
        k, v = (t.float().transpose(0, 1) for t in inputs.tokens(request, start, stop))  # [K, chunk, D]
        scores = torch.matmul(q, k.transpose(1, 2))
        _hide(scores, inputs, length - p.s_qo - start)
        peak = torch.maximum(best, scores.amax(-1, keepdim=True))
        weights = scores.sub_(peak).exp_()
        rescale = (best - peak).exp()
        total = total * rescale + weights.sum(-1, keepdim=True)
        acc = acc * rescale + torch.matmul(weights, v)
        best = peak
    out = acc / total * inputs.v_scale
    return out.view(p.num_kv_heads, p.group_size, p.s_qo, -1).permute(2, 0, 1, 3).reshape(p.s_qo, p.num_qo_heads, -1)


def _hide(scores: Tensor, inputs: Inputs, draft_start: int) -> None:
    """Sets to -inf what the mask hides, in place. Scores [K, G*Q, chunk]; the draft block starts at column `draft_start`."""
    p, width = inputs.problem, scores.shape[-1]
    first, last = max(draft_start, 0), min(draft_start + p.s_qo, width)
    if first >= last:
        return
    hidden = ~inputs.visible[:, first - draft_start : last - draft_start]
    scores.view(p.num_kv_heads, p.group_size, p.s_qo, width)[..., first:last].masked_fill_(hidden, float("-inf"))


def tolerance(problem: Problem, compute_dtype: str) -> float:
    """Largest relative error of a row that rounding may cause: three unit roundoffs of the narrowest dtype it passes through.

    A row's error is the sum of many independent roundings: of P before P.V, of the output, and of Q where the kernel
    multiplies in 8 bits. Each has a relative size of about u/2; the worst of 100,000 rows lies near 1.5u, and twice that
    is allowed. `compute_dtype` is the dtype in which the kernel multiplies; the inputs are exact for the oracle.
    """
    return 3 * max(UNIT_ROUNDOFF[compute_dtype], UNIT_ROUNDOFF[problem.output_dtype], 2**-16)


def judge(out: Tensor, ref: Tensor, problem: Problem, compute_dtype: str) -> Verdict:
    """Compares an output [B*Q, H, D_vo] with the reference. NaN, infinity, a wrong shape or dtype never pass."""
    import torch

    limit = tolerance(problem, compute_dtype)
    if out.shape != ref.shape or out.dtype != torch_dtype(problem.output_dtype):
        wanted = f"{problem.output_dtype} {tuple(ref.shape)}"
        return Verdict(False, float("inf"), float("inf"), limit, f"output is {out.dtype} {tuple(out.shape)}, not {wanted}")
    error = (out.float() - ref).flatten(0, 1)
    rows = error.norm(dim=-1) / ref.flatten(0, 1).norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
    worst_abs = float(error.abs().max())
    bad = int((~rows.isfinite()).sum())
    if bad:
        return Verdict(
            False, float("inf"), worst_abs, limit, f"{bad} of {rows.numel()} rows hold NaN, infinity or unwritten values"
        )
    worst = float(rows.max())
    if worst <= limit:
        return Verdict(True, worst, worst_abs, limit)
    over = int((rows > limit).sum())
    return Verdict(
        False, worst, worst_abs, limit, f"{over} of {rows.numel()} rows are off by more than {limit:.2g}, worst {worst:.3g}"
    )

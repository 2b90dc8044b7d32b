"""The right answer, from the dequantised inputs in fp32, and the comparison of an output with it row by row. Knows no backend.

Streaming softmax over chunks of keys (Milakov and Gimelshein 2018), one request or several short ones at a time, so that the memory
it takes does not grow with batch or context.
"""

# N = requests of equal lengths, K = stored KV heads, M = N * K, G = query heads of a KV head, Q = query tokens, H = num_qo_heads

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from kernels.check import fused_reference
from kernels.check.answer import Answer
from kernels.check.root_mean_square import MeanErrors, largest
from kernels.check.tolerance import tolerance
from kernels.inputs import Inputs
from kernels.inputs.masks import hidden, seen_to
from kernels.inputs.shifted_logits import shifts
from kernels.inputs.tensors import bits, capped
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from kernels.problem.dtypes import UNIT_ROUNDOFF, torch_dtype
from kernels.problem.routine import by_routine, routine_of

NAME = "fp32_streaming_softmax"
CHUNK_BYTES = 256 * 2**20  # fp32 keys of one chunk; values come to about as much again
SCORE_BYTES = 512 * 2**20  # fp32 scores of one chunk
ROW_BYTES = CHUNK_BYTES // 4  # queries and sums of requests that are computed together
PARTS, FEW_ROWS = 64, 64  # of a chunk of keys; rows of a KV head
ROWS = 256  # query tokens of a request at a time
AGREES = 1 / 16  # of the rounding of an output in 16 bits: how far the kernel's rows may be from torch's
SCRATCH_BYTES = 3 * CHUNK_BYTES + ROW_BYTES + 2 * SCORE_BYTES  # what `reference` takes beside its result


@contextmanager
def _products(precision: str) -> Iterator[None]:
    """How exactly PyTorch multiplies fp32 matrices within a block. The setting of the process is restored after it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


exact = partial(_products, "highest")  # full fp32 products
# TF32 products, about five times as fast: exact if both factors are stored in 16 bits or fewer, summed in fp32.
exact_for_16_bits = partial(_products, "high")


@dataclass(frozen=True)
class Verdict:
    """What the check found. `rel_err` is the worst row's ||out - ref|| / ||ref||, a row being one query token of one head.

    `weight_over_limit` is how far a key's weight is from the right one, in limits (`significance.py`): above 1 the check failed.
    `min_tokens` and `pairs_covered` say what this check would have found. All are None if only rows were compared.
    `lse_err` is the absolute error of the worst row's natural log-sum-exp, `lse_tolerance` the limit of that row; None without one.
    `state_err` is that of the worst row of a state that the call wrote, where a routine has one, and `state_tolerance` its limit.
    `rms_err` is the root mean square of the rows of a query head of a request, in the head nearest to its limit, and `max_error`
    the largest that passes (`root_mean_square.py`). None of an output that failed before, or of which a part was compared.
    """

    passed: bool
    rel_err: float
    max_abs_err: float
    tolerance: float
    reason: str = ""
    weight_over_limit: float | None = None
    min_tokens: int | None = None
    pairs_covered: float | None = None
    inputs_needed: int | None = None  # so many inputs together would make `min_tokens` one page of 64 or less; None: too many
    lse_err: float | None = None
    lse_tolerance: float | None = None
    state_err: float | None = None
    state_tolerance: float | None = None
    rms_err: float | None = None
    max_error: float | None = None

    def failed(self, words: str) -> Verdict:
        """Not passed, in these words, behind those about the output if that is wrong too."""
        return replace(self, passed=False, reason="; ".join(filter(None, (self.reason, words))))

    @property
    def of_tolerance(self) -> float:
        """The error in tolerances: above 1 it failed."""
        return self.rel_err / self.tolerance

    @property
    def shows_no_loss(self) -> bool:
        """Whether keys were weighed, and yet no number of them could be lost that would have shown."""
        return self.weight_over_limit is not None and self.min_tokens is None


def name_of(problem: Problem) -> str:
    """How the reference of this problem is computed, in one word."""
    own = routine_of(problem.routine)
    return own.oracle if own else NAME


def reference(inputs: Inputs) -> Tensor:
    """The output of the problem, fp32 [T, H, D_vo]. Raises torch.OutOfMemoryError if the device is full."""
    return answer(inputs).out


@by_routine
def answer(inputs: Inputs) -> Answer:
    """The output of the problem and the size of each row's softmax. Raises torch.OutOfMemoryError if the device is full."""
    p = inputs.problem
    out = torch.empty(p.num_q_tokens, p.num_qo_heads, p.value_dim, dtype=torch.float32, device=inputs.device)
    lse, peak, condition = (out.new_empty(out.shape[:2]) for _ in range(3))
    with exact():
        by_kernel = fused_reference.serves(inputs) and _agrees(inputs)
        for requests in _of_equal_lengths(p, by_kernel):
            q_len = p.q_lens[requests[0]]
            for start in range(0, q_len, ROWS):
                rows = range(start, min(start + ROWS, q_len))
                into = inputs.query_rows(requests, rows)
                q, has_keys = bits(inputs.q)[into].view(inputs.q.dtype), p.kv_lens[requests[0]] > 0
                out[into], lse[into], peak[into], condition[into] = _attend(inputs, q, requests, rows, by_kernel and has_keys)
    return Answer(out, lse, peak, condition, shifts(inputs))


def _agrees(inputs: Inputs) -> bool:
    """Whether the kernel gives what torch gives, for the last query tokens of a request. Another Triton may not compile it."""
    first = next(request for request, length in enumerate(inputs.problem.kv_lens) if length)
    last = inputs.problem.q_lens[first]
    rows = range(max(0, last - ROWS), last)
    q = bits(inputs.q)[inputs.query_rows((first,), rows)].view(inputs.q.dtype)
    try:
        out, lse, *_ = _attend(inputs, q, (first,), rows, by_kernel=True)
    except Exception:  # Triton has many of its own
        return False
    right, right_lse, _, condition = _attend(inputs, q, (first,), rows)
    off = (out - right).norm(dim=-1) / (right.norm(dim=-1) * condition.clamp_min(1.0))
    most = AGREES * min(UNIT_ROUNDOFF["bf16"], UNIT_ROUNDOFF[inputs.problem.output_dtype])
    return bool(((off < most) & ((lse - right_lse).abs() < most + 2**-21 * right_lse.abs())).all())


def _of_equal_lengths(p: Problem, by_kernel: bool) -> Iterator[tuple[int, ...]]:
    """Groups of requests of equal lengths, several at once if their keys, scores, queries and sums fit into a chunk."""
    for (q_len, length), requests in p.requests_by_lengths.items():
        rows, whole = min(q_len, ROWS), -(-length // PARTS) * PARTS + p.slots_per_page
        bytes_of_rows = 4 * rows * p.num_qo_heads * (p.key_dim + 5 * p.value_dim)
        at_once = max(1, min(_keys_at_once(p, rows) // whole, ROW_BYTES // bytes_of_rows))
        at_once = fused_reference.requests_at_once(p, rows, length) if by_kernel and length else at_once
        for at in range(0, len(requests), at_once):
            yield requests[at : at + at_once]


def _attend(inputs: Inputs, q: Tensor, requests: tuple[int, ...], rows: range, by_kernel: bool = False) -> tuple[Tensor, ...]:
    """Some query tokens `q` [N, Q, H, D_qk]: output [N, Q, H, D_vo], log-sum-exp, largest logit and condition [N, Q, H].

    Scores are [M, G*Q, chunk]: heads that share a KV head form one matrix.
    """
    p = inputs.problem
    grid = (len(requests), len(rows), p.stored_kv_heads, p.group_size, -1)
    q = q.float().view(grid).permute(0, 2, 3, 1, 4).flatten(2, 3).flatten(0, 1)  # [M, G*Q, D]
    best, total, acc, squares = (_by_splits if by_kernel else _by_chunks)(inputs, q, requests, rows)
    condition = squares.sqrt() / acc.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    out = acc / total.clamp_min(torch.finfo(torch.float32).tiny) * inputs.v_scale  # 0 without keys, whose log-sum-exp is -inf
    found = (out, best + total.log(), torch.where(total > 0, best, 0.0), condition)
    by_token = (grid[0], grid[2], grid[3], grid[1], -1)
    out, lse, peak, condition = (t.view(by_token).permute(0, 3, 1, 2, 4).flatten(2, 3) for t in found)
    return out, lse.squeeze(-1), peak.squeeze(-1), condition.squeeze(-1)


def _by_splits(inputs: Inputs, q: Tensor, requests: tuple[int, ...], rows: range) -> tuple[Tensor, ...]:
    """What `_by_chunks` gives, by the kernel of `fused_reference.py`, whose splits are merged here."""
    best, total = _before_any_key(inputs, q, len(rows))
    sums, peaks, totals, squares = fused_reference.split_sums(inputs, q, requests, rows, _seen(inputs.problem, requests, rows))
    peak = torch.maximum(best, peaks.amax(1))
    rescale = (peaks - peak[:, None]).exp()
    total = total * (best - peak).exp() + (totals * rescale).sum(1)
    return peak, total, sums.mul_(rescale).sum(1), (squares * rescale.square()).sum(1)


def _by_chunks(inputs: Inputs, q: Tensor, requests: tuple[int, ...], rows: range) -> tuple[Tensor, ...]:
    """The largest logit of rows `q` [M, G*Q, D_qk], the sum of their weights, of values by weight, and of w^2 |v|^2, as stored."""
    p, q = inputs.problem, q * (inputs.sm_scale * inputs.k_scale)
    best, total = _before_any_key(inputs, q, len(rows))
    acc, squares = q.new_zeros(*q.shape[:2], p.value_dim), torch.zeros_like(total)
    for keys in _chunks(p, requests, rows):
        k, v = inputs.tokens_by_head(requests, keys.start, keys.stop, torch.float32)  # [M, chunk, D]
        scores = capped(torch.matmul(q, k.transpose(1, 2)), p)
        unseen = hidden(p, requests[0], rows, keys, inputs.device)
        if unseen is not None:
            scores.view(len(q), p.group_size, len(rows), len(keys)).masked_fill_(unseen, float("-inf"))
        peak = torch.maximum(best, scores.amax(-1, keepdim=True))
        weights = scores.sub_(peak).exp_()
        rescale = (best - peak).exp()
        total = total * rescale + weights.sum(-1, keepdim=True)
        acc = acc * rescale + _weighted(weights, v, len(requests))
        size = torch.linalg.vector_norm(v, dim=-1, keepdim=True).square_()  # [M, chunk, 1]
        squares = squares * rescale.square() + weights.square_() @ size
        best = peak
    return best, total, acc, squares


def _weighted(weights: Tensor, v: Tensor, requests: int) -> Tensor:
    """The sums of values [M, chunk, D] by weights [M, rows, chunk], in parts of keys, since few rows occupy few multiprocessors."""
    parts = max(1, PARTS >> (requests - 1).bit_length()) if v.shape[1] % PARTS == 0 and weights.shape[1] <= FEW_ROWS else 1
    cut = (v.shape[0], -1, parts, v.shape[1] // parts)
    return torch.matmul(weights.view(cut).transpose(1, 2), v.reshape(v.shape[0], *cut[2:], v.shape[2])).sum(1)


def _before_any_key(inputs: Inputs, q: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Running maximum and sum of each softmax, [M, G*Q, 1] each: those of the sinks, or of nothing.

    Nothing is the lowest finite number rather than -inf, so that a chunk in which a query sees no key leaves no NaN.
    """
    if inputs.sinks is None:
        best = q.new_full((*q.shape[:2], 1), torch.finfo(torch.float32).min)
        return best, torch.zeros_like(best)
    heads = inputs.problem.stored_kv_heads
    best = inputs.sinks.view(1, heads, -1, 1).expand(len(q) // heads, -1, -1, rows).reshape(*q.shape[:2], 1)
    return best, torch.ones_like(best)


def _seen(p: Problem, requests: tuple[int, ...], rows: range) -> range:
    """Keys that these queries may see."""
    before = p.kv_lens[requests[0]] - p.q_lens[requests[0]]
    first = 0 if p.window is None else max(0, before + rows.start - p.window + 1)
    return range(first, seen_to(p, requests[0], rows))


def _chunks(p: Problem, requests: tuple[int, ...], rows: range) -> Iterator[range]:
    """Keys that these queries may see, cut so that neither fp32 keys nor scores take more than their share of memory."""
    seen = _seen(p, requests, rows)
    step = max(1, _keys_at_once(p, len(rows)) // len(requests) // PARTS) * PARTS
    for start in range(seen.start, seen.stop, step):
        yield range(start, min(start + step, seen.stop))


def _keys_at_once(p: Problem, rows: int) -> int:
    """Keys of a chunk, of all requests together."""
    return min(CHUNK_BYTES // (4 * p.stored_kv_heads * p.key_dim), SCORE_BYTES // (4 * p.num_qo_heads * rows))


def sizes(ref: Tensor) -> Tensor:
    """[T, H]: the length of each row of the reference, never 0."""
    lengths: Tensor = ref.norm(dim=-1)
    return lengths.clamp_min(torch.finfo(torch.float32).tiny)


def off_by(out: Tensor, ref: Tensor, how: Arithmetic) -> Tensor:
    """fp32 [T, H, D_vo]: what an output has more than the reference."""
    return (out.float() if how.caller_scale == 1.0 else out.float() * how.caller_scale) - ref


def judge(out: Tensor, ref: Tensor, problem: Problem, how: Arithmetic, limits: Tensor | None = None) -> Verdict:
    """Compares an output [T, H, D_vo] with the reference. NaN, infinity, a wrong shape or dtype never pass.

    `how` the kernel computed says how far off it may be. `limits` [T, H] are those of each row (`row_tolerances`); without them all
    have one.
    """
    limits = torch.full(ref.shape[:-1], tolerance(problem, how), device=ref.device) if limits is None else limits
    return judge_by(out, ref, problem, how, (limits, sizes(ref)))


def judge_by(out: Tensor, ref: Tensor, problem: Problem, how: Arithmetic, by: tuple[Tensor, Tensor]) -> Verdict:
    """What `judge` gives, from the limit and the `sizes` of each row of the reference, [T, H] each."""
    limit, (limits, lengths) = tolerance(problem, how), by
    if out.shape != ref.shape or out.dtype != torch_dtype(problem.output_dtype):
        wanted = f"{problem.output_dtype} {tuple(ref.shape)}"
        return Verdict(False, float("inf"), float("inf"), limit, f"output is {out.dtype} {tuple(out.shape)}, not {wanted}")
    is_whole = len(out) == problem.num_q_tokens  # not some rows of a request, after a change
    if is_whole and problem.lacks_keys and (words := _not_empty(out, problem)):
        return Verdict(False, float("inf"), float("inf"), limit, words)
    error = off_by(out, ref, how)
    rows = error.norm(dim=-1) / lengths
    at = (rows / limits).argmax()  # of a row with NaN or infinity, if there is one
    figures = (error.abs().max(), rows.take(at), limits.take(at))
    means = largest(error.square_(), limits * lengths, problem, how) if is_whole else ()
    worst_abs, worst, limit_there, *found = torch.stack([one.double() for one in (*figures, *means)]).tolist()  # one wait
    if not math.isfinite(worst):
        bad = int((~rows.isfinite()).sum())
        words = f"{bad} of {rows.numel()} rows hold NaN, infinity or unwritten values"
        return Verdict(False, float("inf"), worst_abs, limit, words)
    if worst <= limit_there:
        verdict = Verdict(True, worst, worst_abs, limit_there)
        if not is_whole:
            return verdict
        heads = MeanErrors(found, problem, how)  # of rows that passed, each by itself
        passed, rms_err, most = not heads.reason, limit * heads.worst_head, limit * heads.most
        return replace(verdict, passed=passed, reason=heads.reason, rms_err=rms_err, max_error=most)
    over = int((rows > limits).sum())
    words = f"{over} of {rows.numel()} rows are off by more than {limit_there:.2g}, worst {worst:.3g}"
    return Verdict(False, worst, worst_abs, limit_there, words)


def _not_empty(out: Tensor, problem: Problem) -> str:
    """What is wrong with an output [T, H, D_vo] in the rows of requests without keys, in words: it must be 0 there."""
    starts = problem.q_starts
    wrong = {
        at: int((out[starts[at] : starts[at + 1]] != 0).any(-1).sum()) for at, length in enumerate(problem.kv_lens) if not length
    }
    bad = next((at for at, count in wrong.items() if count), None)
    return "" if bad is None else f"{sum(wrong.values())} rows of requests without keys are not 0, as of request {bad}"

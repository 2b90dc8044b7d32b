"""What takes the place of attention's functions for a gated delta net; `docs/routines.md` says what each does."""

# B = batch_size, T = tokens of all requests, HV = value heads, S = states that are kept, N = slots of the pool

from __future__ import annotations

import math
import random
from dataclasses import replace

from kernels.check.changed_token import VISIBLE, ChangedTokens
from kernels.check.judgement import impossible
from kernels.check.oracle import Verdict
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from kernels.problem.dtypes import torch_dtype
from kernels.routines.gated_delta import inputs as own
from kernels.routines.gated_delta.inputs import DeltaInputs, copied_tokens, draw, other_cache, other_queries, redraw, write_values
from kernels.routines.gated_delta.reference import DeltaAnswer, answer, mean_tolerance, tolerance

__all__ = [
    "answer", "change_tokens", "copied_tokens", "draw", "judge_rows", "judge_whole", "other_cache",
    "other_queries", "redraw", "write_values",
]  # fmt: skip
HEAVIEST = 4  # columns of an output among which one that changes is drawn


def judge_rows(out: Tensor, inputs: DeltaInputs, answer: DeltaAnswer, how: Arithmetic) -> Verdict:
    """Compares an output [T, HV, V] with the answer, by row and by value head of each request, in root mean square."""
    p, mean_limit = inputs.problem, mean_tolerance(inputs.problem, inputs.problem.output_dtype, how, inputs.problem.s_qo)
    limit, wanted = tolerance(p, p.output_dtype, how), torch_dtype(p.output_dtype)
    if out.shape != answer.out.shape or out.dtype != wanted:
        words = f"output is {out.dtype} {tuple(out.shape)}, not {p.output_dtype} {tuple(answer.out.shape)}"
        return Verdict(False, math.inf, math.inf, limit, words)
    error = out.float() * how.caller_scale - answer.out
    rows = _relative(error, answer.out)
    at = int(rows.argmax())
    worst, head, row = float(rows.flatten()[at]), at % p.num_kv_heads, at // p.num_kv_heads
    heads = inputs.by_request(rows).square().mean(1).sqrt().flatten()
    mean, place = float(heads.max()), int(heads.argmax())
    passed = worst <= limit and mean <= mean_limit
    verdict = Verdict(passed, worst, float(error.abs().max()), limit, rms_err=mean, max_error=mean_limit)
    if passed:
        return verdict
    if worst <= limit:
        where = f"value head {place % p.num_kv_heads} of request {place // p.num_kv_heads}"
        return replace(verdict, reason=f"outputs of {where} are off by {mean:.3g} in root mean square, {mean_limit:.2g} is allowed")
    where = f"token {row % p.s_qo} of request {row // p.s_qo}, value head {head}, by {worst:.3g}"
    return replace(verdict, reason=f"{int((rows > limit).sum())} of {rows.numel()} output rows are off, worst {where}")


def judge_whole(out: Tensor, inputs: DeltaInputs, answer: DeltaAnswer, how: Arithmetic, lse: Tensor | None = None) -> Verdict:
    """Compares an output [T, HV, V], and the states `lse`: [B, S, HV, V, K] beside the pool, or the whole pool [N, HV, V, K]."""
    verdict = judge_rows(out, inputs, answer, how)
    if words := impossible(inputs.problem, how):
        verdict = replace(verdict, passed=False, reason=words)
    if lse is None:
        return verdict.failed("the backend returned no states")
    expected = answer.states
    if inputs.problem.axis("states") == "last" and lse.dim() == inputs.pool.dim():
        return _judge_pool(verdict, lse, inputs, expected[:, 0], how)
    return _judge_states(verdict, lse, expected, inputs.problem, how)


def _judge_pool(verdict: Verdict, pool: Tensor, inputs: DeltaInputs, last: Tensor, how: Arithmetic) -> Verdict:
    """A pool in which each request has its last state, and no other slot has changed."""
    slots, others = inputs.slots.long(), torch.ones(len(inputs.pool), dtype=torch.bool, device=inputs.device)
    others[slots] = False
    if pool.shape == inputs.pool.shape and not torch.equal(pool[others], inputs.pool[others].to(pool.dtype)):
        verdict = verdict.failed("it wrote into slots of the pool that no request has")
    found = pool[slots] if pool.shape == inputs.pool.shape else pool
    return _judge_states(verdict, found[:, None], last[:, None], inputs.problem, how)


def _judge_states(verdict: Verdict, found: Tensor, right: Tensor, p: Problem, how: Arithmetic) -> Verdict:
    """States [B, S, HV, V, K], by row and by head, in root mean square."""
    if found.shape != right.shape or found.dtype not in (torch_dtype(p.kv_dtype), torch.float32):
        return verdict.failed(f"the states are {found.dtype} {tuple(found.shape)}, not {p.kv_dtype} {tuple(right.shape)}")
    limit, mean_limit = tolerance(p, p.kv_dtype, how), mean_tolerance(p, p.kv_dtype, how, p.head_dim_vo)
    rows = _relative(found.float() - right, right).flatten(0, -3)  # [states, HV, V]
    heads = rows.square().mean(-1).sqrt()
    over = (rows / limit).amax(-1).maximum(heads / mean_limit).nan_to_num(nan=torch.inf)
    at = int(over.argmax())
    state, head = divmod(at, p.num_kv_heads)
    # Of outputs and states the one that is nearer to its limit is told, and what neither may exceed.
    means = (verdict.rms_err or 0.0, verdict.max_error or math.inf), (float(heads[state, head]), mean_limit)
    rms_err, _ = max(means, key=lambda pair: pair[0] / pair[1])
    verdict = replace(
        verdict, state_err=float(rows[state, head].max()), state_tolerance=limit, rms_err=rms_err,
        max_error=max(verdict.max_error or 0.0, mean_limit),
    )  # fmt: skip
    if float(over.flatten()[at]) <= 1:
        return verdict
    request, kept = divmod(state, right.shape[1])
    count, where = int((over > 1).sum()), f"state {kept} of request {request}, value head {head}"
    words = f"{where}, by {float(rows[state, head].max()):.3g} where {limit:.2g} is allowed"
    return verdict.failed(f"states of {count} of {over.numel()} heads are off, worst {words}")


def _relative(error: Tensor, right: Tensor) -> Tensor:
    """Length of each row's error, over that of the row; infinite for NaN."""
    tiny = torch.finfo(torch.float32).tiny
    found: Tensor = (error.norm(dim=-1) / right.norm(dim=-1).clamp_min(tiny)).nan_to_num(nan=torch.inf)
    return found


def change_tokens(inputs: DeltaInputs, answer: DeltaAnswer, how: Arithmetic, coin: random.Random) -> list[ChangedTokens]:
    """Two changes whose right answers follow without computing them again.

    An element of all values of each request and head turns its sign, one of the largest in the last output. A kernel that gives the
    answer of before is off by twice that element. And all heads, elements of keys and slots exchange their places.
    """
    p, chosen = inputs.problem, coin.randrange(HEAVIEST)
    last = inputs.by_request(answer.out)[:, -1]  # [B, HV, V]
    columns = last.abs().topk(min(HEAVIEST, last.shape[-1]), dim=-1).indices[..., chosen]
    signs = torch.ones_like(last).scatter_(-1, columns[..., None], -1.0)
    moved = _relative(last - last * signs, last).amax(-1)  # [B], in the head that moves most
    shown = int((moved > VISIBLE * tolerance(p, p.output_dtype, how)).sum())
    turned = (inputs.by_request(answer.out) * signs[:, None]).flatten(0, 1), answer.states * signs[:, None, :, :, None]
    rows = torch.arange(p.num_q_tokens, device=inputs.device)

    def change(copied: list[list[int]], after: tuple[Tensor, Tensor], requests: int) -> ChangedTokens:
        return ChangedTokens(copied, rows, replace(answer, out=after[0], states=after[1]), requests)

    return [change(columns.tolist(), turned, shown), change([], own.reordered(answer.out, answer.states), 0)]

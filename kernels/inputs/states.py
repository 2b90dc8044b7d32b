"""Partial answers over parts of the keys, and how two of them become one: with torch alone, on any device.

Write o_A and l_A for the output and the log-sum-exp of a row over the keys A. Over two disjoint sets A and B

    l = log(exp(l_A) + exp(l_B))        o = exp(l_A - l) * o_A + exp(l_B - l) * o_B

(FlashInfer's "recursive attention", Ye et al. 2024; the same merge as of splits in FlashDecoding). A row that sees no key of A has
l_A of minus infinity and weighs nothing, whatever o_A holds. Engines have got this wrong: two empty parts make
exp(-inf - (-inf)), which is NaN, and some kernels write plus infinity for a row without keys.
"""

# T = query tokens, H = num_qo_heads, K = stored KV heads, G = H / K, L = keys, D = head_dim

from __future__ import annotations

from typing import NamedTuple

from kernels.inputs import Inputs
from kernels.inputs.masks import hidden
from kernels.inputs.tensors import capped
from kernels.lazy import Tensor, torch
from kernels.problem import Problem


class State(NamedTuple):
    """A partial answer: the output [T, H, D_vo] over some keys, and its natural log-sum-exp, fp32 [T, H]."""

    out: Tensor
    lse: Tensor


def merged(a: State, b: State) -> State:
    """The answer over the keys of both, in fp32. A row without keys in either stays without, with an output of 0."""
    top = torch.maximum(a.lse, b.lse)
    top = torch.where(top.isinf(), 0.0, top)
    of_a, of_b = (a.lse - top).exp(), (b.lse - top).exp()
    total = of_a + of_b
    share = torch.where(total > 0, of_a / total, 0.0)[..., None]
    rest = torch.where(total > 0, of_b / total, 0.0)[..., None]
    # What a row without keys holds may be NaN; times 0 it would stay NaN.
    out = torch.where(share > 0, share * a.out.float(), 0.0) + torch.where(rest > 0, rest * b.out.float(), 0.0)
    return State(out, top + total.log())


def attend(inputs: Inputs, parts: list[range], dtype: torch.dtype) -> State:
    """The answer of every request over the keys at these positions of its own, under its mask. A range may be empty."""
    states = [_of_request(inputs, request, keys) for request, keys in enumerate(parts)]
    return State(torch.cat([state.out for state in states]).to(dtype), torch.cat([state.lse for state in states]))


def ranges(problem: Problem, state: int) -> list[range]:
    """The keys of each request that a state of `merge_states` is over: of `num_states` ranges of about one length, this one."""
    n = problem.num_states or 1
    return [range(length * state // n, length * (state + 1) // n) for length in problem.kv_lens]


def attend_together(inputs: Inputs, keys: range, dtype: torch.dtype) -> State:
    """The answer of all queries over keys that every request has and every query sees, read once: those of request 0."""
    k, v = inputs.tokens(0, keys.start, keys.stop)
    state = _softmax(inputs, inputs.q, k, v, None)
    return State(state.out.to(dtype), state.lse)


def _of_request(inputs: Inputs, request: int, keys: range) -> State:
    p, q = inputs.problem, inputs.q[inputs.queries(request)]
    if not len(keys):
        empty = q.new_zeros(*q.shape[:2], p.value_dim, dtype=torch.float32)
        return State(empty, torch.full(q.shape[:2], float("-inf"), device=q.device))
    k, v = inputs.tokens(request, keys.start, keys.stop)
    return _softmax(inputs, q, k, v, hidden(p, request, range(len(q)), keys, inputs.device))


def _softmax(inputs: Inputs, q: Tensor, k: Tensor, v: Tensor, unseen: Tensor | None) -> State:
    """From its definition, in fp32. A query that sees none of the keys gets 0 and minus infinity."""
    p, heads = inputs.problem, inputs.problem.stored_kv_heads
    rows = q.float().view(len(q), heads, p.group_size, -1).permute(1, 2, 0, 3).flatten(1, 2)  # [K, G*T, D]
    scores = rows * (inputs.sm_scale * inputs.k_scale) @ k.float().permute(1, 2, 0)
    capped(scores, p)
    if unseen is not None:
        scores.view(heads, p.group_size, *unseen.shape[-2:]).masked_fill_(unseen, float("-inf"))
    peak = scores.amax(-1, keepdim=True)  # [K, G*T, 1]
    weights = (scores - torch.where(peak.isinf(), 0.0, peak)).exp()
    total = weights.sum(-1, keepdim=True)
    out = weights @ v.float().transpose(0, 1) / torch.where(total > 0, total, 1.0) * inputs.v_scale
    lse = peak + total.log()
    grid = (heads, p.group_size, len(q), -1)
    by_query = [t.reshape(grid).permute(2, 0, 1, 3).flatten(1, 2) for t in (out, lse)]
    return State(by_query[0], by_query[1].squeeze(-1))

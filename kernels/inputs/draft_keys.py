"""Makes draft keys heavy for queries that see them and for queries that must not, so that every wrong pair of the mask shows."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kernels.inputs import Inputs
from kernels.inputs.sentinel_logit import PLANTED, keys_at, narrowest, queries_at, target_products
from kernels.inputs.tensors import slots, write
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.dtypes import SIZE_BITS

ELEMENTS_AT_ONCE = 2**25  # of keys that are planted together: a handful of such tensors in fp32
MAX_DRAFT_PLANTS = 8  # queries that can see a draft key, and as many that cannot, to which it is planted beside its neighbours


def plant_drafts(inputs: Inputs) -> None:
    """Draft key j, seen by query j and not by query j - 1 nor, in a tree or under a window, by the next query that is blind to it.

    It gets its logit with each of them, and with one or more others near it that see it and that do not. KV heads and requests take
    these in turns, so that together they plant every pair of the mask that is looked at. One head of a group takes its turn over
    requests, KV heads and draft tokens; one head alone keeps the key short, and with it the rounding error of its logit.
    """
    p, device = inputs.problem, inputs.device
    request = torch.repeat_interleave(torch.arange(p.batch_size, device=device), inputs.q_lens.long())
    own = torch.arange(len(request), device=device) - inputs.qo_indptr[:-1].long()[request]  # the token's number
    if p.s_qo > min(p.kv_lens):  # not every query token has a key
        has_key = own >= (inputs.q_lens - inputs.kv_lens).long()[request]
        request, own = request[has_key], own[has_key]
    at_once = max(1, ELEMENTS_AT_ONCE // (p.stored_kv_heads * p.key_dim))
    for at in range(0, len(own), at_once):
        _plant_some(inputs, request[at : at + at_once], own[at : at + at_once])


def _plant_some(inputs: Inputs, request: Tensor, own: Tensor) -> None:
    """Plants the keys of the query tokens `own` [n] of requests [n]."""
    p, first_row = inputs.problem, inputs.qo_indptr[:-1].long()[request]
    kv_head = torch.arange(p.stored_kv_heads, device=inputs.device)
    turn = (request[:, None] + own[:, None] + kv_head) % p.group_size + kv_head * p.group_size  # [n, K]
    at = slots(inputs, request, (inputs.kv_lens - inputs.q_lens).long()[request] + own)
    moved = keys_at(inputs, at)  # [n, K, D]
    logit = target_products(inputs)[request]
    neighbours = [own, own - 1, _next_blind(inputs, own)]
    if p.window is not None and p.mask == "full":
        neighbours.append(own - p.window)  # the last that it lies too far ahead of
    for other in (*(query[:, None].expand(turn.shape) for query in neighbours), *_others(inputs, request, own)):
        there = (other >= 0) & (other < inputs.q_lens.long()[request][:, None])
        q = queries_at(inputs, (first_row[:, None] + other).clamp(0, p.num_q_tokens - 1), turn)  # [n, K, D]
        short = logit[:, None] - (moved * q).sum(-1)
        moved += torch.where(there, short / q.square().sum(-1), 0.0)[..., None] * q
    write(inputs, 0, at, moved)


def first_near(own: Tensor, q_len: Tensor | int) -> Tensor:
    """The first of the `PLANTED` query tokens around token `own`, or of all if they are fewer, to which its key is planted."""
    latest = q_len - PLANTED
    latest = max(0, latest) if isinstance(latest, int) else latest.clamp(min=0)
    return (own - PLANTED // 2).clamp(min=0).clamp(max=latest)


def draft_plants(problem: Problem) -> int:
    """Queries that see a draft key, and as many that do not, to which each KV head of a request plants it beside its neighbours.

    One, if a kernel may round queries to the bits of the cache: each further one makes the key longer, and its logit's error.
    """
    pairs, heads = min(problem.s_qo, PLANTED) - 1, problem.batch_size * problem.stored_kv_heads
    narrowed = SIZE_BITS[problem.q_dtype] > SIZE_BITS[narrowest(problem)]
    return min(1 if narrowed else MAX_DRAFT_PLANTS, math.ceil(pairs / heads))


def _others(inputs: Inputs, request: Tensor, own: Tensor) -> Iterator[Tensor]:
    """[n, K] each: a query near by that sees key `own` [n], or that does not, another one for every request and KV head."""
    p = inputs.problem
    length = inputs.q_lens.long()[request][:, None]
    query = first_near(own[:, None], length) + torch.arange(min(PLANTED, p.s_qo), device=inputs.device)  # [n, near]
    seen = _sees(inputs, query, own[:, None])
    turn = request[:, None] * p.stored_kv_heads + torch.arange(p.stored_kv_heads, device=inputs.device)  # [n, K]
    for wanted in (seen & (query < length) & (query != own[:, None]), ~seen & (query < length)):
        count, so_far = wanted.sum(1, keepdim=True), wanted.cumsum(1)
        for i in range(draft_plants(p)):
            # All along a prompt, heavy keys that lie together would hold most of many rows.
            place = turn * draft_plants(p) + i if p.s_qo <= PLANTED else turn + i * -(-count // draft_plants(p))
            number = place % count.clamp(min=1) + 1
            column = torch.searchsorted(so_far, number).clamp(max=query.shape[1] - 1)
            yield torch.where(count > 0, query.gather(1, column), -1)


def _sees(inputs: Inputs, query: Tensor, key: Tensor) -> Tensor:
    """Whether these draft queries see these draft keys; the two broadcast."""
    p = inputs.problem
    if p.tree is not None:
        size = len(p.tree)
        seen: Tensor = inputs.visible[query.clamp(max=size - 1), key.clamp(max=size - 1)]
        return seen
    behind = query - key
    if p.window is not None:
        return behind.abs() < p.window if p.mask == "full" else (behind >= 0) & (behind < p.window)
    both_ways = p.s_qo if p.mask == "full" else p.mask_prefix or 0
    return (behind >= 0) | ((query < both_ways) & (key < both_ways))


def _next_blind(inputs: Inputs, own: Tensor) -> Tensor:
    """The first query after `own` [n] that must not see its key, as in a tree or under a short window; -1 where there is none."""
    if inputs.problem.window is not None:
        return own + inputs.problem.window
    if inputs.problem.tree is None:
        return torch.full_like(own, -1)
    later_blind = (~inputs.visible).tril(-1).T  # [key, query]
    first = later_blind.int().argmax(1)
    return torch.where(later_blind.any(1), first, -1)[own]

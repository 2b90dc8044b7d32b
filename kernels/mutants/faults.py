"""The longer faults of `catalogue.py`: each is a function from the right case of a request to what the wrong kernel writes."""

# Q = query tokens, L = KV length, H = num_qo_heads, K = stored KV heads, G = H / K, D = head_dim

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from kernels.inputs.sentinel_keys import context_positions
from kernels.inputs.tensors import bits, token_major
from kernels.lazy import Tensor, torch
from kernels.mutants.reference_case import NONE, ReferenceCase
from kernels.problem import Problem

TILE = 64  # keys that a kernel adds up before it touches its accumulator
TILES = 8  # of all keys, after each of which a running maximum may have grown


def victim(problem: Problem) -> int:
    """The one request with keys that a wrong kernel gets wrong, drawn from the seed."""
    able = [request for request, length in enumerate(problem.kv_lens) if length]
    return able[random.Random(f"victim{problem.seed}").randrange(len(able))]


def donor(problem: Problem) -> int | None:
    """Another request, at least as long as the victim, whose pages a wrong kernel reads; None where there is none."""
    one, lens = victim(problem), problem.kv_lens
    return next((other for other, length in enumerate(lens) if other != one and length >= lens[one]), None)


def tokens_of_one_head(case: ReferenceCase, count: int) -> Tensor:
    """So many tokens from the middle of the context are lost in the first KV head."""
    start = case.draft_start // 2 // count * count
    missing = (case.key >= start) & (case.key < start + count)
    out, group = case.answer().clone(), case.problem.group_size
    out[:, :group] = case.sees(case.seen & ~missing).answer()[:, :group]
    return out


def to_the_end(case: ReferenceCase) -> ReferenceCase:
    """Of the last page its unused slots are read too."""
    page = case.inputs.page_table[case.request, (case.length - 1) // case.problem.slots_per_page].long()
    k, v = (bits(token_major(case.problem, cache))[page].view(cache.dtype).float() for cache in case.inputs.kv)  # [N, K, D]
    used = (case.length - 1) % case.problem.slots_per_page + 1
    more = k.shape[0] - used
    seen = torch.cat((case.seen, case.seen.new_ones(len(case.q), more)), dim=1)
    k, v = torch.cat((case.k, k[used:] * case.inputs.k_scale)), torch.cat((case.v, v[used:] * case.inputs.v_scale))
    return replace(case, k=k, v=v, seen=seen)


def pages_of_another(case: ReferenceCase) -> Tensor:
    return _with_donor(case, 0, case.length)


def page_of_another(case: ReferenceCase) -> Tensor:
    """A page in the middle that holds a planted key is that of another request."""
    n, planted = case.problem.slots_per_page, context_positions(case.problem, case.problem.q_lens[case.request], case.length)
    middle = planted[len(planted) // 2] // n * n
    return _with_donor(case, middle, min(middle + n, case.length))


def _with_donor(case: ReferenceCase, start: int, stop: int) -> Tensor:
    """The answer with keys and values at these positions of the request whose pages are read by mistake."""
    other = donor(case.problem)
    assert other is not None, "applies says where no other request is as long"
    k, v = case.k.clone(), case.v.clone()
    of_other = case.inputs.tokens(other, start, stop)
    k[start:stop], v[start:stop] = of_other[0].float() * case.inputs.k_scale, of_other[1].float() * case.inputs.v_scale
    return replace(case, k=k, v=v).answer()


def two_pages_swapped(case: ReferenceCase) -> Tensor:
    """The last page, with what lies in its unused slots, and the one before it. Of pages that are seen whole no order matters."""
    pages = pages_of(case).clone()
    pages[-2:] = pages[-2:].flip(0)
    return with_pages(case, pages)


def pages_of(case: ReferenceCase) -> Tensor:
    return case.inputs.page_table[case.request, : -(-case.length // case.problem.slots_per_page)].long()


def as_pairs(case: ReferenceCase) -> Tensor:
    """Pages are read where they would lie as [P, 2, ...], whatever strides the cache has."""
    k, whole = case.inputs.kv[0], case.inputs.kv[0]._base
    assert whole is not None  # `applies` says so
    return with_pages(case, pages_of(case), whole.flatten()[: 2 * k.numel()].view(len(k), 2, *k.shape[1:]).unbind(1))


def with_pages(case: ReferenceCase, pages: Tensor, caches: Sequence[Tensor] | None = None) -> Tensor:
    k, v = (
        bits(token_major(case.problem, cache))[pages].view(cache.dtype).float().flatten(0, 1)[: case.length]
        for cache in caches or case.inputs.kv
    )
    return replace(case, k=k * case.inputs.k_scale, v=v * case.inputs.v_scale).answer()


def split_dropped(case: ReferenceCase, splits: int) -> Tensor:
    """The middle one of so many."""
    size = -(-case.length // splits)
    first = splits // 2 * size
    return case.sees(case.seen & ((case.key < first) | (case.key >= first + size))).answer()


def merged_without_weights(case: ReferenceCase) -> Tensor:
    """The first eighth and the rest, each normalised, averaged as if they weighed the same."""
    first = case.key < max(1, case.length // 8)
    return (case.sees(case.seen & first).answer() + case.sees(case.seen & ~first).answer()) / 2


def scales_exchanged(case: ReferenceCase) -> Tensor:
    ratio = case.inputs.v_scale / case.inputs.k_scale
    return replace(case, k=case.k * ratio, v=case.v / ratio).answer()


def elements_lost(case: ReferenceCase, count: int) -> Tensor:
    """So many elements at the end of each key: the last step of a tensor core, or the last 16 bytes."""
    return replace(case, k=torch.nn.functional.pad(case.k[..., :-count], (0, count))).answer()


def heads_exchanged(case: ReferenceCase) -> Tensor:
    """The first two query heads of each group."""
    p = case.problem
    out = case.answer().view(len(case.q), p.stored_kv_heads, p.group_size, -1).clone()
    out[:, :, [0, 1]] = out[:, :, [1, 0]]
    return out.flatten(1, 2)


def next_kv_head(case: ReferenceCase) -> Tensor:
    """Each query head counts itself one further: the last of a group reads the next KV head."""
    p = case.problem
    next_head = replace(case, k=case.k.roll(-1, dims=1), v=case.v.roll(-1, dims=1))
    out, other = (one.answer().view(len(case.q), p.stored_kv_heads, p.group_size, -1) for one in (case, next_head))
    out = out.clone()
    out[:, :, -1] = other[:, :, -1]
    return out.flatten(1, 2)


def row_copied(case: ReferenceCase) -> Tensor:
    """The last draft token gets the answer of the one before."""
    out = case.answer().clone()
    if case.tokens.stop == case.problem.q_lens[case.request]:
        out[-1] = out[-2]
    return out


def zero_keys(case: ReferenceCase, count: int) -> Tensor:
    """So many slots behind the end are loaded as zeros and not masked: keys of logit 0 whose values are 0."""
    scores = case.scores()
    return _softmax(case, scores, scores.amax(-1, keepdim=True), zero_keys=count)


def maximum_replaced(case: ReferenceCase, replaced: Callable[[Tensor], Tensor]) -> Tensor:
    """Another number than the largest logit of each row is subtracted from its logits."""
    scores = case.scores()
    return _softmax(case, scores, replaced(scores.amax(-1, keepdim=True)))


def not_rescaled(case: ReferenceCase, backwards: bool) -> Tensor:
    """An online softmax from either end, whose sum of values stays as it is where the running maximum grows."""
    scores, v, size = case.scores(), case.v.transpose(0, 1)[:, None], -(-case.length // TILES)
    starts = range(0, case.length, size)
    best, out = scores.new_full((*scores.shape[:-1], 1), NONE), scores.new_zeros(())
    total = torch.zeros_like(best)
    for start in reversed(starts) if backwards else starts:
        tile = slice(start, start + size)
        peak = best.maximum(scores[..., tile].amax(-1, keepdim=True))
        weights = (scores[..., tile] - peak).exp_()
        out = out + weights @ v[..., tile, :]
        total, best = total * (best - peak).exp() + weights.sum(-1, keepdim=True), peak
    return (out / case.total(total, best).clamp_min(1e-30)).permute(2, 0, 1, 3).flatten(1, 2)


def bf16_logits(case: ReferenceCase) -> Tensor:
    """Logits are rounded before the softmax, as if they had been written to memory in 16 bits."""
    scores = case.scores().bfloat16().float()
    return _softmax(case, scores, scores.amax(-1, keepdim=True))


def _softmax(case: ReferenceCase, scores: Tensor, subtracted: Tensor, zero_keys: int = 0) -> Tensor:
    weights = (scores - subtracted).exp_()
    total = case.total(weights, subtracted)
    return case.merge(weights, total + zero_keys * (-subtracted).exp() if zero_keys else total)


def bf16_sums(case: ReferenceCase) -> Tensor:
    """Sum and output are kept in bf16 and rounded after each tile of keys."""
    scores = case.scores()
    weights = (scores - scores.amax(-1, keepdim=True)).exp_().flatten(1, 2)  # [K, G*Q, L]
    v = case.v.transpose(0, 1)
    total = torch.zeros(*weights.shape[:2], 1, dtype=torch.bfloat16, device=v.device)
    out = torch.zeros(*weights.shape[:2], v.shape[-1], dtype=torch.bfloat16, device=v.device)
    for start in range(0, case.length, TILE):
        tile = weights[..., start : start + TILE]
        total = (total.float() + tile.sum(-1, keepdim=True)).bfloat16()
        out = (out.float() + tile @ v[:, start : start + TILE]).bfloat16()
    heads = (out.float() / total.float()).view(case.problem.stored_kv_heads, case.problem.group_size, len(case.q), -1)
    return heads.permute(2, 0, 1, 3).flatten(1, 2)

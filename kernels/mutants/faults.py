"""The faults of the wrong kernels: each is a function from the right case of a request to what the wrong kernel writes."""

# Q = query tokens, L = KV length, H = num_qo_heads, K = stored KV heads, G = H / K, D = head_dim

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from kernels.inputs.sentinel_keys import context_positions
from kernels.inputs.tensors import bits, token_major
from kernels.mutants.reference_case import ReferenceCase

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.problem import Problem

TILE = 64  # keys that a kernel adds up before it touches its accumulator
SATURATION = 0.25  # of the largest probability of a row


def victim(problem: Problem) -> int:
    """The one request of the batch that a wrong kernel gets wrong, drawn from the seed."""
    return random.Random(f"victim{problem.seed}").randrange(problem.batch_size)


def donor(problem: Problem) -> int | None:
    """Another request, at least as long as the victim, whose pages a wrong kernel reads; None where there is none."""
    one, lens = victim(problem), problem.kv_lens
    return next((other for other, length in enumerate(lens) if other != one and length >= lens[one]), None)


def full_draft(case: ReferenceCase) -> Tensor:
    import torch

    return case.sees(torch.ones_like(case.seen)).answer()


def mask_late(case: ReferenceCase) -> Tensor:
    return case.sees(case.seen | (case.key == case.own + 1)).answer()


def mask_early(case: ReferenceCase) -> Tensor:
    return case.sees(case.seen & (case.key != case.own)).answer()


def draft_alone(case: ReferenceCase) -> Tensor:
    """Each draft token sees the context and itself, but no draft token before it."""
    return case.sees(case.seen & ((case.key < _draft_start(case)) | (case.key == case.own))).answer()


def previous_draft_missed(case: ReferenceCase) -> Tensor:
    """Each draft token misses the one just before it."""
    before = (case.key == case.own - 1) & (case.key >= _draft_start(case))
    return case.sees(case.seen & ~before).answer()


def first_draft_missed(case: ReferenceCase) -> Tensor:
    """Each draft token but the first misses the first."""
    first = case.key == _draft_start(case)
    return case.sees(case.seen & ~(first & (case.own > _draft_start(case)))).answer()


def _draft_start(case: ReferenceCase) -> int:
    return case.length - case.problem.q_lens[case.request]


def tokens_of_one_head(case: ReferenceCase, count: int) -> Tensor:
    """So many tokens from the middle of the context are lost in the first KV head."""
    start = _draft_start(case) // 2 // count * count
    missing = (case.key >= start) & (case.key < start + count)
    out, group = case.answer().clone(), case.problem.group_size
    out[:, :group] = case.sees(case.seen & ~missing).answer()[:, :group]
    return out


def mask_of_request_0(case: ReferenceCase) -> Tensor:
    """The draft block is taken to begin where that of request 0 does."""
    p = case.problem
    shift = case.length - p.q_lens[case.request] - (p.kv_lens[0] - p.q_lens[0])
    return case.sees(case.key <= (case.own - shift).clamp(min=0)).answer()


def top_left(case: ReferenceCase) -> Tensor:
    return case.sees(case.key <= case.own - (case.length - case.problem.q_lens[case.request])).answer()


def causal_tree(case: ReferenceCase) -> Tensor:
    return case.sees(case.key <= case.own).answer()


def no_window(case: ReferenceCase) -> Tensor:
    return case.sees(case.key <= case.own).answer()


def last_page_ignored(case: ReferenceCase) -> Tensor:
    n = case.problem.slots_per_page
    return case.sees(case.seen & (case.key < (case.length - 1) // n * n)).answer()


def past_the_end(case: ReferenceCase) -> Tensor:
    """The last page is read to its end, unused slots and all."""
    return _to_the_end(case).answer()


def past_the_end_unmasked(case: ReferenceCase) -> Tensor:
    import torch

    longer = _to_the_end(case)
    return longer.sees(torch.ones_like(longer.seen)).answer()


def _to_the_end(case: ReferenceCase) -> ReferenceCase:
    import torch

    page = case.inputs.page_table[case.request, (case.length - 1) // case.problem.slots_per_page].long()
    k, v = (bits(token_major(case.problem, cache))[page].view(cache.dtype).float() for cache in case.inputs.kv)  # [N, K, D]
    used = (case.length - 1) % case.problem.slots_per_page + 1
    more = k.shape[0] - used
    seen = torch.cat((case.seen, case.seen.new_ones(len(case.q), more)), dim=1)
    k, v = torch.cat((case.k, k[used:] * case.inputs.k_scale)), torch.cat((case.v, v[used:] * case.inputs.v_scale))
    return replace(case, k=k, v=v, seen=seen)


def page_of_another(case: ReferenceCase) -> Tensor:
    """A page in the middle that holds a planted key is that of another request."""
    n, planted = case.problem.slots_per_page, context_positions(case.problem, case.problem.q_lens[case.request], case.length)
    middle = planted[len(planted) // 2] // n * n
    stop = min(middle + n, case.length)
    k, v = _of_donor(case, middle, stop)
    changed = replace(case, k=case.k.clone(), v=case.v.clone())
    changed.k[middle:stop], changed.v[middle:stop] = k, v
    return changed.answer()


def pages_of_another(case: ReferenceCase) -> Tensor:
    k, v = _of_donor(case, 0, case.length)
    return replace(case, k=k, v=v).answer()


def _of_donor(case: ReferenceCase, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Keys and values as meant, at these positions of the request whose pages are read by mistake."""
    other = donor(case.problem)
    assert other is not None, "applies says where no other request is as long"
    k, v = (t.float() for t in case.inputs.tokens(other, start, stop))
    return k * case.inputs.k_scale, v * case.inputs.v_scale


def pages_reversed(case: ReferenceCase) -> Tensor:
    """The last page comes first, with what lies in its unused slots, and the first page last, cut short."""
    return _with_pages(case, _pages(case).flip(0))


def two_pages_swapped(case: ReferenceCase) -> Tensor:
    """The last page, with what lies in its unused slots, and the one before it. Of pages that are seen whole no order matters."""
    pages = _pages(case).clone()
    pages[-2:] = pages[-2:].flip(0)
    return _with_pages(case, pages)


def _pages(case: ReferenceCase) -> Tensor:
    return case.inputs.page_table[case.request, : -(-case.length // case.problem.slots_per_page)].long()


def _with_pages(case: ReferenceCase, pages: Tensor) -> Tensor:
    k, v = (
        bits(token_major(case.problem, cache))[pages].view(cache.dtype).float().flatten(0, 1)[: case.length]
        for cache in case.inputs.kv
    )
    return replace(case, k=k * case.inputs.k_scale, v=v * case.inputs.v_scale).answer()


def one_token_short(case: ReferenceCase) -> Tensor:
    return case.sees(case.seen & (case.key < case.length - 1)).answer()


def first_token_dropped(case: ReferenceCase) -> Tensor:
    return case.sees(case.seen & (case.key > 0)).answer()


def split_dropped(case: ReferenceCase, splits: int) -> Tensor:
    """The middle one of so many."""
    size = -(-case.length // splits)
    first = splits // 2 * size
    return case.sees(case.seen & ((case.key < first) | (case.key >= first + size))).answer()


def merged_without_weights(case: ReferenceCase) -> Tensor:
    """The first eighth and the rest, each normalised, averaged as if they weighed the same."""
    cut = max(1, case.length // 8)
    return (case.sees(case.seen & (case.key < cut)).answer() + case.sees(case.seen & (case.key >= cut)).answer()) / 2


def softmax_scale_missing(case: ReferenceCase) -> Tensor:
    return replace(case, sm_scale=1.0).answer()


def k_scale_missing(case: ReferenceCase) -> Tensor:
    return replace(case, k=case.k / case.inputs.k_scale).answer()


def v_scale_missing(case: ReferenceCase) -> Tensor:
    return case.answer() / case.inputs.v_scale


def scales_exchanged(case: ReferenceCase) -> Tensor:
    ratio = case.inputs.v_scale / case.inputs.k_scale
    return replace(case, k=case.k * ratio, v=case.v / ratio).answer()


def heads_exchanged(case: ReferenceCase) -> Tensor:
    """The first two query heads of each group."""
    p = case.problem
    out = case.answer().view(len(case.q), p.stored_kv_heads, p.group_size, -1).clone()
    out[:, :, [0, 1]] = out[:, :, [1, 0]]
    return out.flatten(1, 2)


def next_kv_head(case: ReferenceCase) -> Tensor:
    """Each query head counts itself one further: the last of a group reads the next KV head."""
    p = case.problem
    right, other = (t.view(len(case.q), p.stored_kv_heads, p.group_size, -1) for t in (case.answer(), _of_next_kv_head(case)))
    out = right.clone()
    out[:, :, -1] = other[:, :, -1]
    return out.flatten(1, 2)


def _of_next_kv_head(case: ReferenceCase) -> Tensor:
    return replace(case, k=case.k.roll(-1, dims=1), v=case.v.roll(-1, dims=1)).answer()


def values_one_late(case: ReferenceCase) -> Tensor:
    """Key i meets the value of token i + 1."""
    return replace(case, v=case.v.roll(-1, dims=0)).answer()


def saturated(case: ReferenceCase) -> Tensor:
    """Probabilities are scaled so high that those above a quarter of the largest saturate."""
    return case.answer(saturation=SATURATION)


def row_copied(case: ReferenceCase) -> Tensor:
    """The last draft token gets the answer of the one before."""
    out = case.answer().clone()
    out[-1] = out[-2]
    return out


def bf16_sums(case: ReferenceCase) -> Tensor:
    """Sum and output are kept in bf16 and rounded after each tile of keys."""
    import torch

    scores = case.scores()
    weights = (scores - scores.amax(-1, keepdim=True)).exp_().flatten(1, 2)  # [K, G*Q, L]
    v = case.v.transpose(0, 1)
    total = torch.zeros(*weights.shape[:2], 1, dtype=torch.bfloat16, device=v.device)
    out = torch.zeros(*weights.shape[:2], v.shape[-1], dtype=torch.bfloat16, device=v.device)
    for start in range(0, case.length, TILE):
        tile = weights[..., start : start + TILE]
        total = (total.float() + tile.sum(-1, keepdim=True)).bfloat16()
        out = (out.float() + torch.matmul(tile, v[:, start : start + TILE])).bfloat16()
    heads = (out.float() / total.float()).view(case.problem.stored_kv_heads, case.problem.group_size, len(case.q), -1)
    return heads.permute(2, 0, 1, 3).flatten(1, 2)


def sinks_ignored(case: ReferenceCase) -> Tensor:
    return replace(case, sinks=None).answer()

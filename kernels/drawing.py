"""Draws the inputs of a problem on the device where they are used: no CPU copy of a KV cache exists at any time."""

# B = batch_size, T = query tokens of all requests, K = stored KV heads, D = head_dim, P = pages, N = slots a page

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kernels.dtypes import FP8, torch_dtype
from kernels.inputs import Inputs, bits, token_major
from kernels.nvfp4 import BLOCK, dequantize, quantize

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.problem import Problem

# Not 1, so that a backend that forgets the scale of its keys or its values gives a wrong answer. A latent is both.
K_SCALE, V_SCALE = 0.5, 0.75
UNUSED_SLOT = 240.0  # huge beside N(0, 1), finite in every dtype: a kernel that reads past a request's length shows it
DRAW_ELEMENTS = 2**27  # elements drawn at a time where the dtype cannot be drawn directly

PLANTED = 64  # query tokens of a request, from the last, whose keys are planted


def draw(problem: Problem, device: torch.device | str) -> Inputs:
    """Draws the inputs of a problem on `device`, the same for the same seed, problem and kind of device.

    Queries, keys and values are N(0, 1). Pages lie in the order the problem asks for; unused slots of last pages hold
    `UNUSED_SLOT`. The keys of the draft block are planted (see `_plant`). Raises torch.OutOfMemoryError where the
    device is full.
    """
    import torch

    p = problem
    generator = torch.Generator(device=device).manual_seed(p.seed)
    q = _normal((p.num_q_tokens, p.num_qo_heads, p.key_dim), p.q_dtype, generator)
    lens = torch.tensor(p.kv_lens, dtype=torch.int32, device=device)
    q_lens = torch.tensor(p.q_lens, dtype=torch.int32, device=device)
    pages_of = (lens + p.slots_per_page - 1) // p.slots_per_page
    kv_indptr = _indptr(pages_of)
    indices = _page_order(p, generator)
    kv, kv_scales = _draw_cache(p, generator)
    scaled = p.kv_dtype in FP8 or p.kv_dtype == "nvfp4"
    inputs = Inputs(
        problem=p,
        q=q,
        kv=kv,
        kv_scales=kv_scales,
        page_table=_page_table(indices, kv_indptr, pages_of),
        q_lens=q_lens,
        qo_indptr=_indptr(q_lens),
        kv_lens=lens,
        kv_indptr=kv_indptr,
        kv_indices=indices,
        last_page_len=lens - (pages_of - 1) * p.slots_per_page,
        sinks=torch.empty(p.num_qo_heads, device=device).normal_(3.0, 1.0, generator=generator) if p.sinks else None,
        k_scale=K_SCALE if scaled else 1.0,
        v_scale=(K_SCALE if p.latent else V_SCALE) if scaled else 1.0,
    )
    _plant(inputs)
    _spoil_unused(inputs)
    return inputs


def _normal(shape: tuple[int, ...], dtype: str, generator: torch.Generator) -> Tensor:
    import torch

    out = torch.empty(shape, dtype=torch_dtype(dtype), device=generator.device)
    if dtype not in FP8:
        return out.normal_(generator=generator)
    flat = out.view(-1)
    for start in range(0, flat.numel(), DRAW_ELEMENTS):
        part = flat[start : start + DRAW_ELEMENTS]
        part.copy_(torch.empty(part.shape, dtype=torch.bfloat16, device=out.device).normal_(generator=generator))
    return out


def _draw_cache(p: Problem, generator: torch.Generator) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
    heads, slots = p.stored_kv_heads, p.slots_per_page
    if p.latent:
        cache = _normal((p.num_pages, slots, 1, p.key_dim), p.kv_dtype, generator)
        return (cache, cache[..., : p.value_dim]), None
    inner = (heads, slots) if p.kv_layout == "HND" and p.paged else (slots, heads)
    if p.kv_dtype == "nvfp4":
        return _draw_nvfp4(p, inner, generator)
    if p.head_dim_qk != p.head_dim_vo or not p.paged:
        k, v = (_normal((p.num_pages, *inner, dim), p.kv_dtype, generator) for dim in (p.head_dim_qk, p.head_dim_vo))
        return (k, v), None
    # One allocation [P, 2, ...], as engines hold it; keys and values then have equal strides.
    both = _normal((p.num_pages, 2, *inner, p.head_dim_qk), p.kv_dtype, generator)
    return (both[:, 0], both[:, 1]), None


def _draw_nvfp4(
    p: Problem, inner: tuple[int, int], generator: torch.Generator
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    import torch

    caches, scales = [], []
    for dim in (p.head_dim_qk, p.head_dim_vo):
        cache = torch.empty((p.num_pages, *inner, dim // 2), dtype=torch.uint8, device=generator.device)
        scale = torch.empty((p.num_pages, *inner, dim // BLOCK), dtype=torch.float8_e4m3fn, device=generator.device)
        at_once = max(1, DRAW_ELEMENTS // 4 // (inner[0] * inner[1] * dim))
        for start in range(0, p.num_pages, at_once):
            part = slice(start, start + at_once)
            shape = (*cache[part].shape[:-1], dim)
            cache[part], scale[part] = quantize(torch.empty(shape, device=generator.device).normal_(generator=generator))
        caches.append(cache)
        scales.append(scale)
    return (caches[0], caches[1]), (scales[0], scales[1])


def _indptr(counts: Tensor) -> Tensor:
    import torch

    indptr = torch.zeros(counts.numel() + 1, dtype=torch.int32, device=counts.device)
    indptr[1:] = counts.cumsum(0)
    return indptr


def _page_order(p: Problem, generator: torch.Generator) -> Tensor:
    import torch

    if p.page_order == "random" and p.paged:
        return torch.randperm(p.num_pages, generator=generator, device=generator.device).int()
    return torch.arange(p.num_pages, dtype=torch.int32, device=generator.device)


def _page_table(indices: Tensor, indptr: Tensor, pages_of: Tensor) -> Tensor:
    import torch

    column = torch.arange(int(pages_of.max()), device=indices.device)
    flat = (indptr[:-1, None] + column).clamp(max=indices.numel() - 1)
    return torch.where(column < pages_of[:, None], indices[flat.long()], 0).int().contiguous()


def _slots(inputs: Inputs, request: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Physical page and slot in the page of token positions [n] of requests [n]."""
    n = inputs.problem.slots_per_page
    return inputs.page_table[request, token // n].long(), token % n


def _write(inputs: Inputs, which: int, page: Tensor, slot: Tensor, values: Tensor) -> None:
    """Writes `values`, fp32 broadcast to [n, K, D], into keys (0) or values (1) at the slots that `page` and `slot` [n] name."""
    p = inputs.problem
    cache = token_major(p, inputs.kv[which])
    if not page.numel():
        return
    if inputs.kv_scales is None:
        bits(cache)[page, slot] = bits(values.to(cache.dtype))
        return
    packed, scales = quantize(values.expand(page.numel(), cache.shape[2], 2 * cache.shape[3]))
    cache[page, slot] = packed
    bits(token_major(p, inputs.kv_scales[which]))[page, slot] = bits(scales)


def _plant(inputs: Inputs) -> None:
    """Gives each draft key a fixed logit with queries that must see it and with queries that must not.

    Among thousands of random keys one key more or less changes nothing that a check could see. The key of draft token j keeps
    its random value and is moved until its logit with query j, with query j-1 and with the next query that must not see it
    is `_planted_logit`: there it weighs about as much as the spread of the whole output, so that a query that wrongly sees
    it, or misses it, is wrong by as much as the output holds. One head of a group takes its turn over requests, KV heads and
    draft tokens; one head alone keeps the key short, and with it the rounding error of its logit. Shapes and bytes stay the
    same. Draft tokens beyond the last `PLANTED` of a long prompt stay as they were drawn.
    """
    import torch

    p, device = inputs.problem, inputs.device
    ends = inputs.qo_indptr[1:].long()
    request = torch.repeat_interleave(torch.arange(p.batch_size, device=device), inputs.q_lens.long().clamp(max=PLANTED))
    back = torch.cat([torch.arange(min(q, PLANTED), 0, -1, device=device) for q in p.q_lens])  # 1: the last token
    row = ends[request] - back  # of the token's own query
    own = inputs.q_lens.long()[request] - back  # its number in the draft
    head = torch.arange(p.stored_kv_heads, device=device)
    turn = (request[:, None] + own[:, None] + head) % p.group_size + head * p.group_size  # [n, K]
    page, slot = _slots(inputs, request, inputs.kv_lens.long()[request] - back)
    key = token_major(p, inputs.kv[0])
    drawn = bits(key)[page, slot].view(key.dtype).float()  # [n, K, D]
    if inputs.kv_scales is not None:
        drawn = dequantize(key[page, slot], bits(token_major(p, inputs.kv_scales[0]))[page, slot].view(torch.float8_e4m3fn))
    logit = _planted_logit(inputs)[request] / (inputs.sm_scale * inputs.k_scale)  # [n]
    moved = drawn.clone()
    for other in (own, own - 1, _next_blind(inputs, own)):
        there = (other >= 0) & (other < inputs.q_lens.long()[request])
        q = inputs.q[(row + other - own).clamp(0, p.num_q_tokens - 1)].float()  # [n, H, D]
        q = q.gather(1, turn[..., None].expand(*turn.shape, p.key_dim))
        short = logit[:, None] - (moved * q).sum(-1)
        moved += torch.where(there[:, None], short / q.square().sum(-1), 0.0)[..., None] * q
    _write(inputs, 0, page, slot, moved)


def _planted_logit(inputs: Inputs) -> Tensor:
    """[B]: the logit at which one key weighs as much as the whole output over L keys of N(0, s^2) logits.

    The weights exp(x) sum to L * exp(s^2/2) and their squares to L * exp(2 s^2): an output over values of its own has the
    size exp(s^2/2) / sqrt(L), in lengths of a value. Values that are the keys, as in MLA, also lean towards the query by
    c * q, where x = c * q.k. A key of logit t weighs exp(t - s^2/2) / L. A window shortens L.
    """
    p = inputs.problem
    c = inputs.sm_scale * inputs.k_scale
    variance = p.key_dim * c**2
    lens = inputs.kv_lens.float()
    lens = lens if p.window is None else lens.clamp(max=p.window)
    size = (math.exp(variance) / lens + (c**2 if p.latent else 0.0)).sqrt()
    return variance / 2 + (lens * size).log()


def _next_blind(inputs: Inputs, own: Tensor) -> Tensor:
    """The first query after `own` [n] that must not see its key: a tree has such queries; -1 where there is none."""
    import torch

    if inputs.problem.tree is None:
        return torch.full_like(own, -1)
    later_blind = (~inputs.visible).tril(-1).T  # [key, query]
    first = later_blind.int().argmax(1)
    return torch.where(later_blind.any(1), first, -1)[own]


def _spoil_unused(inputs: Inputs) -> None:
    import torch

    p = inputs.problem
    slot = torch.arange(p.slots_per_page, device=inputs.device)
    last_page = inputs.kv_indices[inputs.kv_indptr[1:].long() - 1].long()
    request, unused = (slot >= inputs.last_page_len[:, None]).nonzero(as_tuple=True)
    for which in range(1 if p.latent else 2):
        _write(inputs, which, last_page[request], unused, torch.tensor([UNUSED_SLOT], device=inputs.device))

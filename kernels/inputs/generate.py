"""Draws the inputs of a problem on the device where they are used: no CPU copy of a KV cache exists at any time.

Padded requests of a captured graph come behind the requests of the batch. Their rows of the page table name the null page alone,
as in vLLM and SGLang, where it belongs to no request. So a right kernel may load it, as it may in an engine. Here its slots are
poisoned as slots without a token are: what a kernel takes from there into the answer of a real request is seen. Around the page
table stand entries that are far outside the cache, so a kernel that reads past the table and follows what it finds crashes.
Queries of padding hold a large number, as finite as those of an engine's dummy tokens. Rows of padding in the output are the
kernel's: it may write numbers, NaN, or nothing there, since engines read none of them.
"""

# B = batch_size, T = query tokens of all requests, K = stored KV heads, D = head_dim, P = pages, N = slots a page
from __future__ import annotations

import math
from dataclasses import replace

from kernels.inputs import Inputs
from kernels.inputs.masks import visibility
from kernels.inputs.nvfp4 import BLOCK, quantize
from kernels.inputs.sentinel_keys import plant
from kernels.inputs.sentinel_logit import sink_logit
from kernels.inputs.shifted_logits import shifts_of_sinks
from kernels.inputs.tensors import K_SCALE, V_SCALE, OwnInputs, generator_of, is_scaled, offsets, query_size, usual_scale, write
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.dtypes import torch_dtype
from kernels.problem.padded import NULL_PAGE, PaddedBatch, launched
from kernels.problem.routine import by_routine

UNUSED_SLOT = 240.0  # huge beside N(0, 1), finite in every dtype: a kernel that reads past a request's length shows it
UNUSED_ENTRY = 2147480000  # in the unused part of a page table: a kernel that follows it reads far outside the cache
DRAW_ELEMENTS = 2**27  # elements drawn at a time where the dtype cannot be drawn directly
PADDED_QUERY = 240.0  # huge beside N(0, 1), finite in every dtype
TABLE_GUARD = 1024  # entries before and behind the page table of a padded batch; the table stays aligned to 4 KiB


@by_routine
def draw(problem: Problem, device: torch.device | str) -> Inputs:
    """Draws the inputs of a problem on `device`, the same for the same seed, problem and kind of device.

    Queries, keys and values are N(0, 1), some keys planted (`sentinel_keys.py`). Pages lie in the order the problem asks for;
    unused slots of last pages hold `UNUSED_SLOT`, unused entries of the page table `UNUSED_ENTRY`. Raises
    torch.OutOfMemoryError if the device is full.
    """
    whole = empty_inputs(launched(problem), device)
    inputs = whole if problem.graph_batch is None else without_padding(whole, problem)
    redraw(inputs)
    return inputs


def empty_inputs(problem: Problem, device: torch.device | str) -> Inputs:
    p = problem
    q = torch.empty((p.num_q_tokens, p.num_qo_heads, p.key_dim), dtype=torch_dtype(p.q_dtype), device=device)
    kv, kv_scales = _empty_cache(p, device)
    scaled = is_scaled(p)

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    n = p.batch_size
    return Inputs(
        problem=p, q=q, kv=kv, kv_scales=kv_scales, page_table=empty_table(p, device, UNUSED_ENTRY),
        q_lens=empty(n), qo_indptr=empty(n + 1), kv_lens=empty(n), kv_indptr=empty(n + 1),
        kv_indices=empty(p.num_listed_pages), last_page_len=empty(n),
        sinks=torch.empty(p.num_qo_heads, device=device) if p.sinks else None,
        k_scale=K_SCALE if scaled else 1.0, v_scale=(K_SCALE if p.latent else V_SCALE) if scaled else 1.0, padded=None,
    )  # fmt: skip


@by_routine
def redraw(inputs: Inputs) -> None:
    """Writes the values of a problem's inputs into their tensors, also if a backend has overwritten these."""
    p, generator = inputs.problem, generator_of(inputs.problem, inputs.device)
    fill_normal(inputs.q, generator, query_size(inputs.problem))
    draw_tables(inputs, generator)
    _fill_cache(inputs, generator)
    if inputs.sinks is not None:
        inputs.sinks.normal_(sink_logit(p, usual_scale(p) * inputs.k_scale), 1.0, generator=generator)
        inputs.sinks.add_(shifts_of_sinks(inputs))
        inputs.sinks.copy_(inputs.sinks.bfloat16())  # as models hold them: FlashAttention-3 takes them in 16 bits, others in 32
    if p.tree is not None:
        inputs.visible.copy_(visibility(p, inputs.device))
    plant(inputs)
    if inputs.padded is not None:
        fill_padding(inputs, inputs.padded)
    poison_unused_slots(inputs, UNUSED_SLOT)


def draw_tables(inputs: Inputs, generator: torch.Generator) -> None:
    p = inputs.problem
    inputs.q_lens.copy_(torch.tensor(p.q_lens, dtype=torch.int32))
    inputs.kv_lens.copy_(torch.tensor(p.kv_lens, dtype=torch.int32))
    pages_of = (inputs.kv_lens + p.slots_per_page - 1) // p.slots_per_page
    inputs.last_page_len.copy_(inputs.kv_lens - (pages_of - 1).clamp(min=0) * p.slots_per_page)
    inputs.qo_indptr.copy_(offsets(inputs.q_lens))
    inputs.kv_indptr.copy_(offsets(pages_of))
    inputs.kv_indices.copy_(_listed_pages(p, _page_order(p, generator), inputs.kv_indptr, pages_of))
    inputs.page_table.fill_(UNUSED_ENTRY)  # also what is beyond the longest request, where an engine's table is wider
    column = torch.arange(int(pages_of.max()), device=inputs.device)
    flat = (inputs.kv_indptr[:-1, None] + column).clamp(max=inputs.kv_indices.numel() - 1).long()
    used = torch.where(column < pages_of[:, None], inputs.kv_indices[flat], UNUSED_ENTRY)
    inputs.page_table[:, : used.shape[1]] = used
    inputs.page_table.masked_fill_((inputs.kv_lens == 0)[:, None], NULL_PAGE)  # as engines leave the row of a request without keys


def draw_other_values(inputs: Inputs, number: int) -> None:
    """Writes other queries, keys and values, the same for the same number from 1 on. All else stays, so that plans stay valid."""
    write_values(inputs, generator_of(inputs.problem, inputs.device, number))


@by_routine
def write_values(inputs: Inputs, generator: torch.Generator) -> None:
    """Writes queries, keys and values, and a number into slots without a token."""
    fill_normal(inputs.q, generator, query_size(inputs.problem))
    _fill_cache(inputs, generator)
    plant(inputs)
    poison_unused_slots(inputs, UNUSED_SLOT)


def fill_normal(out: Tensor, generator: torch.Generator, size: float = 1.0) -> None:
    """N(0, size^2) into a contiguous tensor; dtypes that cannot be drawn directly are drawn in bf16 and rounded."""
    if out.dtype.itemsize > 1:
        out.normal_(0.0, size, generator=generator)
        return
    for part in torch.split(out.view(-1), DRAW_ELEMENTS):
        part.copy_(torch.empty(part.shape, dtype=torch.bfloat16, device=out.device).normal_(0.0, size, generator=generator))


def _empty_cache(p: Problem, device: torch.device | str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
    """Memory for keys and values, and for the block scales of nvfp4."""

    def empty(*shape: int, dtype: str = p.kv_dtype) -> Tensor:
        return torch.empty(shape, dtype=torch_dtype(dtype), device=device)

    heads, slots = p.stored_kv_heads, p.slots_per_page
    if p.latent:
        cache = empty(p.num_pages, slots, 1, p.key_dim)
        return (cache, cache[..., : p.value_dim]), None
    inner, dims = (heads, slots) if p.kv_layout == "HND" and p.paged else (slots, heads), (p.head_dim_qk, p.head_dim_vo)
    if p.kv_dtype == "nvfp4":
        k, v = (empty(p.num_pages, *inner, dim // 2) for dim in dims)
        k_scales, v_scales = (empty(p.num_pages, *inner, dim // BLOCK, dtype="fp8_e4m3") for dim in dims)
        return (k, v), (k_scales, v_scales)
    if p.head_dim_qk != p.head_dim_vo or not p.paged:
        k, v = (empty(p.num_pages, *inner, dim) for dim in dims)
        return (k, v), None
    return _pages_of_one_allocation(p, inner, device), None


def _pages_of_one_allocation(p: Problem, inner: tuple[int, int], device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Keys and values [P, *inner, D] in one allocation, as engines hold them (`KvMemory`); they have equal strides."""

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch_dtype(p.kv_dtype), device=device)

    pages, dim = p.num_pages, p.head_dim_qk
    if p.kv_memory == "apart":
        k, v = empty(2, pages, *inner, dim)
    elif p.kv_memory == "by_token":
        k, v = empty(pages, *inner, 2, dim).unbind(-2)
    else:
        pair, padding = 2 * math.prod(inner) * dim, p.num_kv_heads * dim if p.kv_memory == "padded" else 0
        k, v = empty(pages, pair + padding)[:, :pair].view(pages, 2, *inner, dim).unbind(1)
    if p.kv_memory == "degenerate":
        heads = 1 if p.kv_layout == "HND" else 2
        strides = [1 if axis == heads else stride for axis, stride in enumerate(k.stride())]
        k, v = (cache.as_strided(cache.shape, strides) for cache in (k, v))
    return k, v


def _fill_cache(inputs: Inputs, generator: torch.Generator) -> None:
    if inputs.kv_scales is not None:
        for cache, scales in zip(inputs.kv, inputs.kv_scales, strict=True):
            at_once = max(1, DRAW_ELEMENTS // 4 // (cache[0].numel() * 2))
            for part in (slice(start, start + at_once) for start in range(0, len(cache), at_once)):
                shape = (*cache[part].shape[:-1], 2 * cache.shape[-1])
                cache[part], scales[part] = quantize(torch.empty(shape, device=cache.device).normal_(generator=generator))
        return
    whole = inputs.kv[0]._base  # of keys and values that lie in one allocation
    for cache in (whole,) if whole is not None else inputs.kv[:1] if inputs.problem.latent else inputs.kv:
        fill_normal(cache, generator)


def _page_order(p: Problem, generator: torch.Generator) -> Tensor:
    first = 0 if p.graph_batch is None else NULL_PAGE + 1
    if p.page_order == "random" and p.paged:
        return torch.randperm(p.num_pages, generator=generator, device=generator.device).int() + first
    return torch.arange(first, first + p.num_pages, dtype=torch.int32, device=generator.device)


def _listed_pages(p: Problem, order: Tensor, indptr: Tensor, pages_of: Tensor) -> Tensor:
    """The pages [num_listed_pages] of each request in turn, from the order of all pages. The first are every request's prefix."""
    if not p.prefix_pages:
        return order
    request = torch.repeat_interleave(torch.arange(p.batch_size, device=order.device), pages_of.long())
    entry = torch.arange(p.num_listed_pages, device=order.device)
    column = entry - indptr.long()[request]
    return order[torch.where(column < p.prefix_pages, column, entry - request * p.prefix_pages)]


@by_routine
def poison_unused_slots(inputs: Inputs | OwnInputs, value: float) -> None:
    """Fills the slots of last pages that hold no token with `value`, in keys and values; nvfp4 has no NaN, and stays as it is."""
    if isinstance(inputs, OwnInputs) or (inputs.problem.kv_dtype == "nvfp4" and math.isnan(value)):
        return
    for which in range(1 if inputs.problem.latent else 2):
        write(inputs, which, inputs.unused_slots, torch.full((1,), value, device=inputs.device))


def without_padding(whole: Inputs, problem: Problem) -> Inputs:
    """The batch of `problem` in the memory of `whole`, the inputs of `launched(problem)`: the first rows of its tensors."""
    n = problem.batch_size
    stops = {"q": problem.num_q_tokens, "page_table": n, "q_lens": n, "qo_indptr": n + 1, "kv_lens": n, "kv_indptr": n + 1}
    stops |= {"kv_indices": problem.num_listed_pages, "last_page_len": n}
    first_rows = {name: getattr(whole, name)[:stop] for name, stop in stops.items()}
    return replace(whole, problem=problem, padded=whole, **first_rows)


def empty_table(problem: Problem, device: torch.device | str, guard: int) -> Tensor:
    """Memory for a page table, int32 [B, table_width]. Behind and before that of a padded batch stand entries that hold `guard`."""
    shape = (problem.batch_size, problem.table_width)
    if not isinstance(problem, PaddedBatch):
        return torch.empty(shape, dtype=torch.int32, device=device)
    size = shape[0] * shape[1]
    memory = torch.full((TABLE_GUARD + size + TABLE_GUARD,), guard, dtype=torch.int32, device=device)
    return memory[TABLE_GUARD : TABLE_GUARD + size].view(shape)


def fill_padding(real: Inputs, whole: Inputs) -> None:
    """Writes the padded requests into `whole`, behind those of `real`, which are written."""
    p, slots = whole.problem, whole.problem.slots_per_page
    assert isinstance(p, PaddedBatch)  # `without_padding` made them
    rows, requests = real.problem.num_q_tokens, real.problem.batch_size
    length, queries = p.padded_kv_len, 0 if p.graph_fill == 0 else p.s_qo
    pages = -(-length // slots)
    whole.q[rows:].fill_(PADDED_QUERY)
    whole.page_table[requests:].fill_(NULL_PAGE)
    whole.q_lens[requests:].fill_(queries)
    whole.kv_lens[requests:].fill_(length)
    whole.last_page_len[requests:].fill_(length - max(0, pages - 1) * slots)
    whole.kv_indices[real.problem.num_listed_pages :].fill_(NULL_PAGE)
    for indptr, each in ((whole.qo_indptr, queries), (whole.kv_indptr, pages)):
        number = torch.arange(len(indptr) - requests, dtype=indptr.dtype, device=indptr.device)
        indptr[requests:] = indptr[requests] + each * number

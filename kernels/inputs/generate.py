"""Draws the inputs of a problem on the device where they are used: no CPU copy of a KV cache exists at any time."""

# B = batch_size, T = query tokens of all requests, K = stored KV heads, D = head_dim, P = pages, N = slots a page

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kernels.inputs import Inputs
from kernels.inputs.nvfp4 import BLOCK, quantize
from kernels.inputs.sentinel_keys import plant, sink_logit
from kernels.inputs.tensors import K_SCALE, V_SCALE, is_scaled, softmax_scale, write
from kernels.problem.dtypes import FP8, torch_dtype

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.problem import Problem

UNUSED_SLOT = 240.0  # huge beside N(0, 1), finite in every dtype: a kernel that reads past a request's length shows it
UNUSED_ENTRY = 2147480000  # in the unused part of a page table: a kernel that follows it reads far outside the cache
DRAW_ELEMENTS = 2**27  # elements drawn at a time where the dtype cannot be drawn directly


def draw(problem: Problem, device: torch.device | str) -> Inputs:
    """Draws the inputs of a problem on `device`, the same for the same seed, problem and kind of device.

    Queries, keys and values are N(0, 1), some keys planted (`sentinel_keys.py`). Pages lie in the order the problem asks for;
    unused slots of last pages hold `UNUSED_SLOT`, unused entries of the page table `UNUSED_ENTRY`. Raises
    torch.OutOfMemoryError where the device is full.
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
    scaled = is_scaled(p)
    k_scale = K_SCALE if scaled else 1.0
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
        sinks=_draw_sinks(p, k_scale, generator) if p.sinks else None,
        k_scale=k_scale,
        v_scale=(K_SCALE if p.latent else V_SCALE) if scaled else 1.0,
    )
    plant(inputs)
    spoil_unused(inputs, UNUSED_SLOT)
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


def _draw_sinks(p: Problem, k_scale: float, generator: torch.Generator) -> Tensor:
    import torch

    mean = sink_logit(p, softmax_scale(p) * k_scale)
    return torch.empty(p.num_qo_heads, device=generator.device).normal_(mean, 1.0, generator=generator)


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
    return torch.where(column < pages_of[:, None], indices[flat.long()], UNUSED_ENTRY).int().contiguous()


def spoil_unused(inputs: Inputs, value: float) -> None:
    """Fills the slots of last pages that hold no token with `value`, in keys and values; nvfp4 has no NaN, and stays as it is."""
    import torch

    p = inputs.problem
    if p.kv_dtype == "nvfp4" and math.isnan(value):
        return
    slot = torch.arange(p.slots_per_page, device=inputs.device)
    last_page = inputs.kv_indices[inputs.kv_indptr[1:].long() - 1].long()
    request, unused = (slot >= inputs.last_page_len[:, None]).nonzero(as_tuple=True)
    for which in range(1 if p.latent else 2):
        write(inputs, which, (last_page[request], unused), torch.tensor([value], device=inputs.device))

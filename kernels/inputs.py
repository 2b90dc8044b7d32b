"""The tensors of one problem, drawn on the device where they are used: no CPU copy of a KV cache exists at any time."""

# B = batch_size, Q = s_qo, H = num_qo_heads, K = num_kv_heads, G = H / K, D = head_dim, P = pages, N = page_size

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kernels.dtypes import FP8, torch_dtype
from kernels.masks import pack, visibility

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.problem import Problem

K_SCALE_FP8 = 0.5  # not 1, so that a backend that forgets the scale of its keys gives a wrong answer
UNUSED_SLOT = 240.0  # huge beside N(0, 1), finite in every dtype: a kernel that reads past a request's length shows it
DRAW_ELEMENTS = 2**27  # elements drawn at a time where the dtype cannot be drawn directly


@dataclass(frozen=True)
class Inputs:
    """What every backend of a group runs on. Values are as stored; the key that is meant is `k * k_scale`."""

    problem: Problem
    q: Tensor  # [B*Q, H, D_qk], rows of a request adjacent
    kv: tuple[Tensor, Tensor]  # keys and values, each [P, K, N, D] (HND) or [P, N, K, D] (NHD), of equal strides if D_qk == D_vo
    page_table: Tensor  # int32 [B, ceil(max kv_len / N)]
    kv_lens: Tensor  # int32 [B], draft tokens included
    kv_indptr: Tensor  # int32 [B+1], in pages
    kv_indices: Tensor  # int32 [P]
    last_page_len: Tensor  # int32 [B]
    visible: Tensor  # bool [Q, Q], the mask of the draft block
    k_scale: float
    v_scale: float

    @property
    def device(self) -> torch.device:
        return self.q.device

    @property
    def sm_scale(self) -> float:
        """Softmax scale, 1/sqrt(d_qk)."""
        return 1.0 / math.sqrt(self.problem.head_dim_qk)

    @cached_property
    def packed_mask(self) -> Tensor | None:
        """XQA's packed mask of the draft block, None for a single query token."""
        return pack(self.visible, self.problem.batch_size) if self.problem.s_qo > 1 else None

    def empty_output(self) -> Tensor:
        """An output to be written, [B*Q, H, D_vo], filled with NaN."""
        import torch

        p = self.problem
        shape = (p.batch_size * p.s_qo, p.num_qo_heads, p.head_dim_vo)
        return torch.full(shape, math.nan, dtype=torch.float32, device=self.device).to(torch_dtype(p.output_dtype))

    def tokens(self, request: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens [start, stop) of a request as stored: two tensors [stop-start, K, D]."""
        n = self.problem.page_size
        pages = self.page_table[request, start // n : -(-stop // n)].long()
        offset = start - start // n * n
        k, v = (self._by_token(bits(cache)[pages].view(cache.dtype))[offset : offset + stop - start] for cache in self.kv)
        return k, v

    def _by_token(self, pages: Tensor) -> Tensor:
        by_token = pages.transpose(1, 2) if self.problem.kv_layout == "HND" else pages
        return by_token.flatten(0, 1)


def draw(problem: Problem, device: torch.device | str) -> Inputs:
    """Draws the inputs of a problem on `device`, the same for the same seed, problem and kind of device.

    Queries, keys and values are N(0, 1). Pages lie in the order the problem asks for; unused slots of last pages hold
    `UNUSED_SLOT`. The keys of the draft block are planted (see `_plant`). Raises torch.OutOfMemoryError where the
    device is full.
    """
    import torch

    generator = torch.Generator(device=device).manual_seed(problem.seed)
    q = _normal((problem.batch_size * problem.s_qo, problem.num_qo_heads, problem.head_dim_qk), problem.q_dtype, generator)
    lens = torch.tensor(problem.kv_lens, dtype=torch.int32, device=device)
    pages_of = (lens + problem.page_size - 1) // problem.page_size
    indptr = torch.zeros(problem.batch_size + 1, dtype=torch.int32, device=device)
    indptr[1:] = pages_of.cumsum(0)
    order = torch.randperm(problem.num_pages, generator=generator, device=device).int()
    indices = order if problem.page_order == "random" else torch.arange(problem.num_pages, dtype=torch.int32, device=device)
    inputs = Inputs(
        problem=problem,
        q=q,
        kv=_draw_cache(problem, generator),
        page_table=_page_table(indices, indptr, pages_of),
        kv_lens=lens,
        kv_indptr=indptr,
        kv_indices=indices,
        last_page_len=lens - (pages_of - 1) * problem.page_size,
        visible=visibility(problem.mask, problem.s_qo, device),
        k_scale=K_SCALE_FP8 if problem.kv_dtype in FP8 else 1.0,
        v_scale=1.0,
    )
    _plant(inputs)
    _spoil_unused(inputs)
    return inputs


def bits(tensor: Tensor) -> Tensor:
    """The tensor itself, or its bytes where its dtype has 8 bits: torch indexes no 8-bit floats."""
    import torch

    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor


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


def _draw_cache(p: Problem, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    inner = (p.num_kv_heads, p.page_size) if p.kv_layout == "HND" else (p.page_size, p.num_kv_heads)
    if p.head_dim_qk != p.head_dim_vo:
        k, v = (_normal((p.num_pages, *inner, dim), p.kv_dtype, generator) for dim in (p.head_dim_qk, p.head_dim_vo))
        return k, v
    # One allocation [P, 2, ...], as engines hold it; keys and values then have equal strides.
    both = _normal((p.num_pages, 2, *inner, p.head_dim_qk), p.kv_dtype, generator)
    return both[:, 0], both[:, 1]


def _page_table(indices: Tensor, indptr: Tensor, pages_of: Tensor) -> Tensor:
    import torch

    column = torch.arange(int(pages_of.max()), device=indices.device)
    flat = (indptr[:-1, None] + column).clamp(max=indices.numel() - 1)
    return torch.where(column < pages_of[:, None], indices[flat.long()], 0).int().contiguous()


def _slots(inputs: Inputs, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Physical page and slot in the page of token positions [B, T] of each request."""
    n = inputs.problem.page_size
    return inputs.page_table.gather(1, tokens // n).long(), tokens % n


def _write(cache: Tensor, layout: str, page: Tensor, slot: Tensor, values: Tensor) -> None:
    """Writes `values`, broadcast to [..., K, D], at the slots that `page` and `slot` [...] name."""
    by_token = cache.transpose(1, 2) if layout == "HND" else cache  # [P, N, K, D]
    bits(by_token)[page, slot] = bits(values.to(cache.dtype))


def _plant(inputs: Inputs) -> None:
    """Points the key of draft token j at the queries j-1 and j of one head, so that a wrong mask moves the output.

    Among thousands of random keys one key more or less changes nothing that a check could see. A planted key weighs
    about 1/sqrt(L), which is the spread of the whole output: query j-1 that wrongly sees key j, or query j that misses
    it, is then wrong by as much as it holds. The head of a group takes turns over requests, KV heads and draft tokens;
    one head alone keeps the key short, and with it the rounding error of its logit. Shapes and bytes stay the same.
    """
    import torch

    p, device = inputs.problem, inputs.device
    q = inputs.q.float().view(p.batch_size, p.s_qo, p.num_kv_heads, p.group_size, p.head_dim_qk)
    request, token, head = (torch.arange(n, device=device) for n in (p.batch_size, p.s_qo, p.num_kv_heads))
    turn = (request[:, None, None] + token[:, None] + head) % p.group_size  # [B, Q, K]
    own = q.gather(3, turn[..., None, None].expand(*turn.shape, 1, p.head_dim_qk)).squeeze(3)  # [B, Q, K, D]
    before = q.roll(1, dims=1).gather(3, turn[..., None, None].expand(*turn.shape, 1, p.head_dim_qk)).squeeze(3)
    before[:, 0] = 0  # the first draft token has none before it
    toward = own / own.square().sum(-1, keepdim=True) + before / before.square().sum(-1, keepdim=True).clamp_min(1)
    lens = inputs.kv_lens.long()
    logit = 0.5 * lens.float().log() + 0.5  # exp(logit) / (L * e**0.5) = 1/sqrt(L); e**0.5 is the mean of exp(N(0, 1))
    keys = toward * (logit / (inputs.sm_scale * inputs.k_scale))[:, None, None, None]
    _write(inputs.kv[0], p.kv_layout, *_slots(inputs, lens[:, None] - p.s_qo + token), keys)


def _spoil_unused(inputs: Inputs) -> None:
    import torch

    p = inputs.problem
    slot = torch.arange(p.page_size, device=inputs.device)
    last_page = inputs.kv_indices[inputs.kv_indptr[1:].long() - 1].long()
    request, unused = (slot >= inputs.last_page_len[:, None]).nonzero(as_tuple=True)
    for cache in inputs.kv:
        _write(cache, p.kv_layout, last_page[request], unused, torch.tensor([UNUSED_SLOT], device=inputs.device))

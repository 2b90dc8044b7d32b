"""The tensors of one problem, as every backend of a group and the oracle read them."""

# B = batch_size, T = query tokens of all requests, Q = s_qo, H = num_qo_heads, K = stored KV heads, G = H / K, D = head_dim,
# P = pages, N = slots a page

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

from kernels.inputs.guards import guarded_output
from kernels.inputs.masks import visibility
from kernels.inputs.nvfp4 import dequantize, quantize
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.dtypes import FP8
from kernels.problem.padded import NULL_PAGE
from kernels.problem.routine import by_routine

# Not 1, so that a backend that forgets the scale of its keys or its values gives a wrong answer. A latent is both.
K_SCALE, V_SCALE = 0.5, 0.75


def is_scaled(problem: Problem) -> bool:
    """Whether keys and values are stored in so few bits that they have a scale."""
    return problem.kv_dtype in FP8 or problem.kv_dtype == "nvfp4"


def usual_scale(problem: Problem) -> float:
    """1/sqrt(d_qk); for MLA that of the model before absorption. Logits are drawn as large as this scale makes them of N(0, 1)."""
    return 1.0 / math.sqrt(problem.head_dim_qk)


def drawn_scale(problem: Problem) -> float:
    """What makes logits of N(0, 1) of queries of N(0, 1) and of keys as they are stored."""
    return usual_scale(problem) * (K_SCALE if is_scaled(problem) else 1.0)


def softmax_scale(problem: Problem) -> float:
    """What multiplies q.k: the problem's, or the usual one."""
    return problem.softmax_scale or usual_scale(problem)


def query_size(problem: Problem) -> float:
    """Standard deviation of a query's elements: 1, and of another softmax scale what leaves logits as large as they were.

    A model that has one is trained with it. With queries of N(0, 1) its softmax would be flat, or that of one key.
    """
    return 1.0 if problem.softmax_scale is None else usual_scale(problem) / problem.softmax_scale


def capped(scores: Tensor, problem: Problem) -> Tensor:
    """Scaled logits under the problem's soft cap, if it has one, in place."""
    cap = problem.soft_cap
    return scores if cap is None else scores.div_(cap).tanh_().mul_(cap)


@dataclass(frozen=True)
class Inputs:
    """What every backend of a group runs on. Values are as stored; the key that is meant is `k * k_scale`.

    Pages are [P, K, N, D] (HND) or [P, N, K, D] (NHD). A ragged cache is [tokens, 1, K, D]: pages of one token in order. The
    latent of MLA is one [P, N, D_ckv + D_kpe] cache, of which values are the first D_ckv elements.
    """

    problem: Problem
    q: Tensor  # [T, H, D_qk], rows of a request adjacent
    kv: tuple[Tensor, Tensor]  # keys and values; of equal strides if D_qk == D_vo
    kv_scales: tuple[Tensor, Tensor] | None  # nvfp4: fp8_e4m3 block scales of keys and values, [..., D/16]
    page_table: Tensor  # int32 [B, ceil(problem.longest / N)]
    q_lens: Tensor  # int32 [B]
    qo_indptr: Tensor  # int32 [B+1], in tokens
    kv_lens: Tensor  # int32 [B], query tokens included
    kv_indptr: Tensor  # int32 [B+1], in pages
    kv_indices: Tensor  # int32 [P], or longer: it names the pages of a shared prefix once for each request
    last_page_len: Tensor  # int32 [B]
    sinks: Tensor | None  # fp32 [H], a logit a head that joins each softmax
    k_scale: float
    v_scale: float
    # With `problem.graph_batch` the same batch as the graph runs it, `launched(problem)`: what backends get. The tensors of these
    # inputs are the first rows of its tensors.
    padded: Inputs | None

    @property
    def device(self) -> torch.device:
        return self.q.device

    @property
    def sm_scale(self) -> float:
        return softmax_scale(self.problem)

    @property
    def latent(self) -> Tensor:
        """The MLA cache, [P, N, D_ckv + D_kpe]."""
        return self.kv[0].squeeze(2)

    @cached_property
    def visible(self) -> Tensor:
        """Bool [Q, Q], the mask of the draft block."""
        return visibility(self.problem, self.device)

    @cached_property
    def unused_slots(self) -> tuple[Tensor, Tensor]:
        """Physical page and slot, [n] each, of the slots of last pages that hold no token, and of all slots of the null page."""
        slot = torch.arange(self.problem.slots_per_page, device=self.device)
        last_page = self.kv_indices[self.kv_indptr[1:].long() - 1].long()
        used = self.last_page_len[:, None]
        request, unused = ((slot >= used) & (used > 0)).nonzero(as_tuple=True)
        if self.padded is None:
            return last_page[request], unused
        return torch.cat((last_page[request], torch.full_like(slot, NULL_PAGE))), torch.cat((unused, slot))

    def empty_output(self) -> Tensor:
        """An output to be written, [T, H, D_vo], filled with NaN. Guards stand around it in memory."""
        p = self.problem
        return guarded_output((p.num_q_tokens, p.num_qo_heads, p.value_dim), p.output_dtype, self.device)

    def empty_lse(self) -> Tensor | None:
        """A log-sum-exp to be written, fp32 [T, H], as `empty_output`. None if the problem does not ask for one."""
        p = self.problem
        return guarded_output((p.num_q_tokens, p.num_qo_heads), "fp32", self.device) if p.return_lse else None

    def queries(self, request: int) -> slice:
        """Where the query tokens of a request lie in `q` and in an output."""
        return slice(*self.problem.q_starts[request : request + 2])

    def query_rows(self, requests: Sequence[int], tokens: range) -> Tensor:
        """Where these query tokens of each request lie in `q` and in an output, int64 [requests, tokens]."""
        firsts = torch.tensor([self.problem.q_starts[one] for one in requests]).to(self.device, non_blocking=True)
        return firsts[:, None] + torch.arange(tokens.start, tokens.stop, device=self.device)

    def tokens(self, request: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens [start, stop) of a request as stored: two tensors [stop-start, K, D]; nvfp4 widened to fp32."""
        k, v = self.tokens_of((request,), start, stop)
        return k[0], v[0]

    def tokens_of(self, requests: Sequence[int], start: int, stop: int) -> tuple[Tensor, Tensor]:
        """What `tokens` gives, of several requests: two tensors [requests, stop-start, K, D]."""
        pages, cut = self._pages_of(requests, start, stop)
        k, v = (self._picked(cache, pages).flatten(1, 2)[:, cut] for cache in self.kv)
        if self.kv_scales is not None:
            k_scales, v_scales = (self._picked(scales, pages).flatten(1, 2)[:, cut] for scales in self.kv_scales)
            return dequantize(k, k_scales), dequantize(v, v_scales)
        return k, v

    def values_of(self, requests: Sequence[int], start: int, stop: int) -> Tensor:
        """The values that `tokens_of` gives."""
        if self.kv_scales is not None:
            return self.tokens_of(requests, start, stop)[1]
        pages, cut = self._pages_of(requests, start, stop)
        return self._picked(self.kv[1], pages).flatten(1, 2)[:, cut]

    def tokens_by_head(
        self, requests: Sequence[int], start: int, stop: int, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """What `tokens_of` gives by KV head, [requests * K, stop-start, D], in `dtype` or as stored. A head's keys are adjacent."""
        if self.kv_scales is not None:
            k, v = (t.transpose(1, 2).flatten(0, 1) for t in self.tokens_of(requests, start, stop))
            return (k, v) if dtype is None else (k.to(dtype), v.to(dtype))
        pages, cut = self._pages_of(requests, start, stop)
        by_head = (self._picked_by_head(cache, pages) for cache in self.kv)  # [requests, K, pages, N, D]
        whole = (t.to(dtype or t.dtype, copy=True, memory_format=torch.contiguous_format) for t in by_head)  # one pass over memory
        k, v = (t.flatten(2, 3).flatten(0, 1)[:, cut] for t in whole)
        return k, v

    def _picked_by_head(self, cache: Tensor, pages: Tensor) -> Tensor:
        """Pages of a cache, [requests, K, pages, N, D] for indices [requests, pages]; as 64-bit words, faster on a GPU."""
        heads, slots, dim = cache.shape[1:]
        words, whole = slots * dim * cache.element_size() // 8, slots * dim
        adjacent = cache.stride()[1:] == (whole, dim, 1) and cache.stride(0) % whole == 0 and dim * cache.element_size() % 8 == 0
        if not adjacent or self.problem.kv_layout != "HND" or not self.problem.paged or self.problem.latent:
            return self._picked(cache, pages).permute(0, 3, 1, 2, 4)
        step = cache.stride(0) // whole
        rows = cache.view(torch.int64).as_strided(((len(cache) - 1) * step + heads, words), (words, 1))
        at = pages[:, None] * step + torch.arange(heads, device=self.device)[:, None]  # [requests, K, pages]
        return rows[at.flatten()].view(cache.dtype).view(*at.shape, slots, dim)

    def _pages_of(self, requests: Sequence[int], start: int, stop: int) -> tuple[Tensor, slice]:
        """The pages that hold these tokens, int64 [requests, pages], and where the tokens lie among their slots."""
        n, first = self.problem.slots_per_page, requests[0]
        rows = slice(first, first + 1) if len(requests) == 1 else torch.tensor(requests).to(self.device, non_blocking=True)
        offset = start - start // n * n
        return self.page_table[rows, start // n : -(-stop // n)].long(), slice(offset, offset + stop - start)

    def _picked(self, cache: Tensor, pages: Tensor) -> Tensor:
        """Pages of a cache, [requests, pages, N, K, D] for the indices [requests, pages]."""
        picked = token_major(self.problem, bits(cache)[pages.flatten()].view(cache.dtype))
        return picked.view(*pages.shape, *picked.shape[1:])


class OwnInputs:
    """Inputs of a routine without keys and values to attend to: a dataclass of tensors. None is padded, and no slot is unused."""

    padded: ClassVar[None] = None

    def tensors(self) -> list[Tensor]:
        return [one for one in vars(self).values() if isinstance(one, torch.Tensor) and one.numel()]

    @property
    def device(self) -> torch.device:
        return self.tensors()[0].device

    @property
    def unused_slots(self) -> tuple[Tensor]:
        return (self.tensors()[0].new_empty(0),)


@by_routine
def judged(inputs: Inputs) -> Inputs:
    """The inputs by whose keys an answer is judged, of `Problem.judged`: these, unless their routine has others."""
    return inputs


def token_major(p: Problem, cache: Tensor) -> Tensor:
    """A view [P, N, K, D] of a cache in either layout."""
    return cache.transpose(1, 2) if p.kv_layout == "HND" and p.paged and not p.latent else cache


def slots(inputs: Inputs, request: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Physical page and slot in the page of token positions [n] of requests [n]."""
    n = inputs.problem.slots_per_page
    return inputs.page_table[request, token // n].long(), token % n


def write(inputs: Inputs, which: int, at: tuple[Tensor, ...], values: Tensor) -> None:
    """Writes fp32 `values` [n, K, D] into keys (0) or values (1) at pages and slots [n]; [n, D] with KV heads [n]. Broadcasts.

    Where requests share tokens, a slot may be named several times, and gets one of the values.
    """
    cache = token_major(inputs.problem, inputs.kv[which])
    if not at[0].numel():
        return
    if inputs.problem.shares_tokens and len(values) == len(at[0]) > 1:
        once = _once(at[0])
        at, values = tuple(index[once] for index in at), values[once]
    if inputs.kv_scales is None:
        bits(cache)[at] = bits(rounded(values, cache.dtype))
        return
    packed, scales = quantize(values.expand(*cache[at].shape[:-1], 2 * cache.shape[3]))
    cache[at] = packed
    bits(token_major(inputs.problem, inputs.kv_scales[which]))[at] = bits(scales)


def _once(slot: Tensor) -> Tensor:
    """Places int64 of the slots [n] that name each slot once: of several by a draw that is the same each time."""
    turn = (torch.arange(len(slot), device=slot.device) + slot * 40503) % len(slot)
    order = (slot * len(slot) + turn).argsort()
    found = slot[order]
    return order[torch.cat((found.new_ones(1, dtype=torch.bool), found[1:] != found[:-1]))]


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """`values` in `dtype`; beyond the range of 8 bits the largest number, as on a GPU (torch 2.11 would make NaN of it)."""
    if dtype.itemsize == 1:
        largest = torch.finfo(dtype).max
        values = values.clamp(-largest, largest)
    return values.to(dtype)


def generator_of(problem: Problem, device: torch.device | str, number: int | None = None) -> torch.Generator:
    """Of a problem's values, or of other values by their number."""
    seed = problem.seed if number is None else zlib.crc32(f"{problem.seed} {number}".encode())
    return torch.Generator(device=device).manual_seed(seed)


def offsets(counts: Tensor) -> Tensor:
    """int32 [n + 1]: where each of n parts begins that stand one behind another, and where the last ends."""
    return torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))


def bits(tensor: Tensor) -> Tensor:
    """The tensor itself, or its bytes where its dtype has 8 bits: torch indexes no 8-bit floats."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor


@contextmanager
def decoy(inputs: Inputs) -> Iterator[None]:
    """Other queries and another cache in the same memory while it lasts: a kernel that keeps an answer from then is found out."""
    with other_cache(inputs), other_queries(inputs):
        yield


@by_routine
@contextmanager
def other_queries(inputs: Inputs) -> Iterator[None]:
    """Queries with their elements in reverse order while it lasts."""
    q = bits(inputs.q)
    true = q.clone()
    q.copy_(true.flip(-1))
    try:
        yield
    finally:
        q.copy_(true)


@by_routine
def other_cache(inputs: Inputs) -> AbstractContextManager[None]:
    """Keys and values with opposite signs while it lasts: no copy of the cache is needed to restore it."""
    return turned(partial(_flip_signs, inputs))


@contextmanager
def turned(turn: Callable[[], object]) -> Iterator[None]:
    """Calls what undoes itself if it is called again, and calls it again at the end."""
    turn()
    try:
        yield
    finally:
        turn()


def _flip_signs(inputs: Inputs) -> None:
    for cache in inputs.kv[:1] if inputs.problem.latent else inputs.kv:  # MLA's latent is keys and values
        whole, sign = as_integers(inputs, cache)
        whole.bitwise_xor_(sign)


def as_integers(inputs: Inputs, cache: Tensor) -> tuple[Tensor, int]:
    """A view of a cache as integers, and the bits in them that are signs."""
    integer, size = {1: torch.uint8, 2: torch.int16, 4: torch.int32}, cache.element_size()
    sign = 0x88 if inputs.kv_scales is not None else 0x80 if size == 1 else -(1 << 8 * size - 1)  # nvfp4: two in a byte
    return cache.view(integer[size]), sign

"""A paged cache as one long sequence of rows, without a copy: for kernels that address single tokens instead of pages."""

# B = batch_size, K = stored KV heads, P = pages, N = slots a page, D = head_dim, T = query tokens of all requests

from __future__ import annotations

from kernels.inputs import Inputs
from kernels.inputs.tensors import offsets, slots, token_major
from kernels.lazy import Tensor, torch
from kernels.problem import Problem


def rows_of(p: Problem, cache: Tensor) -> tuple[Tensor, int]:
    """A view [rows, K, D] of a whole cache without a copy, and the number of rows from one page to the next.

    Slot `n` of page `i` is row `i * step + n`. The rows between two pages are other heads or values: memory that belongs to the
    cache but that no page of keys covers. All tokens need one stride, so these rows are part of the view.
    """
    tokens = token_major(p, cache)  # [P, N, K, D]
    pages, n, heads, dim = tokens.shape
    page, slot, head, element = tokens.stride()
    if not p.paged:
        return tokens[:, 0], 1
    rows = (pages - 1) * (page // slot) + n
    return tokens.as_strided((rows, heads, dim), (slot, head, element)), page // slot


def token_rows(inputs: Inputs, step: int, first: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    """Lists the tokens [first, stop) of each request, for int32 [B] `first` and `stop`, and for `step` rows from page to page.

    Where each request begins in the list, int32 [B + 1], and the row of each token in the cache, int64 [tokens].
    """
    lens = stop - first
    starts = offsets(lens)
    request = torch.repeat_interleave(torch.arange(len(lens), device=inputs.device), lens.long())
    token = torch.arange(len(request), device=inputs.device) - starts[request] + first[request]
    page, slot = slots(inputs, request, token)
    return starts, page * step + slot


def ancestor_rows(inputs: Inputs, step: int) -> tuple[Tensor, Tensor]:
    """For each query token of a tree the rows of the draft tokens that it sees, in their order, and how many these are.

    int32 [T, most that a token sees] and int32 [T]. Row 0 fills up, and no kernel that heeds the number reads it.
    """
    p, device = inputs.problem, inputs.device
    request = torch.repeat_interleave(torch.arange(p.batch_size, device=device), inputs.q_lens.long())  # [T]
    token = torch.arange(p.num_q_tokens, device=device) - inputs.qo_indptr[request].long()
    sees = inputs.visible[token]  # [T, s_qo]; a token sees none behind itself, so a shorter draft needs no other mask
    seen = sees.sum(1, dtype=torch.int32)
    nth = torch.argsort(sees.int(), dim=1, descending=True, stable=True)[:, : int(seen.max())]
    listed = torch.arange(nth.shape[1], device=device) < seen[:, None]
    position = torch.where(listed, nth, 0) + (inputs.kv_lens - inputs.q_lens)[request, None].long()
    page, slot = slots(inputs, request[:, None].expand_as(position), position)
    return torch.where(listed, page * step + slot, 0).int(), seen

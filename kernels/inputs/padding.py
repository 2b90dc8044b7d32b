"""Padded requests of a captured graph in the tensors: what engines tell a kernel about them, and what reveals one that ignores it.

They come behind the requests of the batch. Their rows of the page table name the null page alone, as in vLLM and SGLang, where it
belongs to no request. So a right kernel may load it, as it may in an engine. Here its slots are poisoned as slots without a token
are: what a kernel takes from there into the answer of a real request is seen. Around the page table stand entries that are far
outside the cache, so a kernel that reads past the table and follows what it finds crashes.

Their queries hold a large number, as finite as those of an engine's dummy tokens. Their rows of the output are the kernel's: it may
write numbers, NaN, or nothing there, since engines read none of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kernels.problem.padded import NULL_PAGE, PaddedBatch

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.inputs import Inputs
    from kernels.problem import Problem

PADDED_QUERY = 240.0  # huge beside N(0, 1), finite in every dtype
TABLE_GUARD = 1024  # entries before and behind the page table of a padded batch; the table stays aligned to 4 KiB


def without_padding(whole: Inputs, problem: Problem) -> Inputs:
    """The batch of `problem` in the memory of `whole`, the inputs of `launched(problem)`: the first rows of its tensors."""
    requests = problem.batch_size
    return replace(
        whole,
        problem=problem,
        q=whole.q[: problem.num_q_tokens],
        page_table=whole.page_table[:requests],
        q_lens=whole.q_lens[:requests],
        qo_indptr=whole.qo_indptr[: requests + 1],
        kv_lens=whole.kv_lens[:requests],
        kv_indptr=whole.kv_indptr[: requests + 1],
        kv_indices=whole.kv_indices[: problem.num_listed_pages],
        last_page_len=whole.last_page_len[:requests],
        padded=whole,
    )


def empty_table(problem: Problem, device: torch.device | str, guard: int) -> Tensor:
    """Memory for a page table, int32 [B, table_width]. Behind and before that of a padded batch stand entries that hold `guard`."""
    import torch

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
        indptr[requests:] = indptr[requests] + each * _count_from_zero(indptr[requests:])


def _count_from_zero(like: Tensor) -> Tensor:
    import torch

    return torch.arange(len(like), dtype=like.dtype, device=like.device)

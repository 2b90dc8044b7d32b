"""The arguments that libraries derived from FlashAttention get for a problem, and how engines make them follow a draft tree.

None of these kernels has a custom mask. Over a tree SGLang calls them twice (`topk > 1`, `flashattention_backend.py` of SGLang
0.5.23): once over the context without a mask; once with each draft token as a request of its own, whose pages of one token are its
ancestors. Then a kernel merges the two by their log-sum-exp: SGLang's `merge_state_v2`, FlashInfer's `merge_state_in_place` here.
"""

# T = query tokens of all requests, H = num_qo_heads, K = stored KV heads, D = head_dim

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kernels.adapter import Adapter, EngineMaximum, Inputs, Need, Problem, QueryLengths
from kernels.inputs.rows import ancestor_rows, rows_of
from kernels.inputs.tensors import token_major
from kernels.lazy import Tensor, torch
from kernels.problem.fields import TMA_MEMORY, KvMemory
from kernels.problem.padded import has_empty

MERGED_DIMS = (64, 128, 256)  # FlashInfer's merge, `DISPATCH_HEAD_DIM`
MERGED_ELEMENTS = 8 * 1024  # its block has the heads of one token, 8 elements a thread

Call = Callable[[], tuple["Tensor", ...]]  # writes its output; returns it and the log-sum-exp [H, T], natural


@dataclass(frozen=True, kw_only=True)
class FlashAttention(Adapter):
    """What all builds of FlashAttention serve."""

    query_lengths: QueryLengths = "varlen"
    takes_window: bool = True
    takes_two_sided_window: bool = True
    takes_more_queries: bool = True
    reads_memory: frozenset[KvMemory] = TMA_MEMORY
    max_seq_len: EngineMaximum = "passed"
    takes_empty: bool = True  # vLLM captures graphs with them, version 2 of uniform batches: its padded requests have no token


def tree_needs(p: Problem) -> tuple[Need, ...]:
    """What the two calls and their merge need of a problem with a tree."""
    elements = p.num_qo_heads * p.head_dim_vo
    return (
        Need("for a tree, no attention sinks", p.tree is None or not p.sinks),  # both calls would count them
        # The call over the drafts makes a request of each token, and empty requests have rows and no token.
        Need("for a tree, padded requests with tokens (graph_fill=1)", p.tree is None or not has_empty(p)),
        Need("for a tree, head_dim 64, 128 or 256", p.tree is None or p.head_dim_vo in MERGED_DIMS),
        Need("for a tree, query heads of at most 8192 elements together", p.tree is None or elements <= MERGED_ELEMENTS),
    )


def need_of_empty(p: Problem) -> Need:
    """FlashAttention-3 ends early without keys: `store_zero` of its `epilogue_fwd.hpp` writes 0, and -inf whatever the sink is."""
    met = not p.lacks_keys or (p.tree is None and not (p.sinks and p.return_lse))
    return Need("for requests without keys, no tree, and no log-sum-exp with sinks", met)


@dataclass(frozen=True, kw_only=True)
class Keys:
    """What one call attends to. Requests are those of the call: over a tree, every draft token is one."""

    k: Tensor  # [pages, slots, K, D]; ragged [tokens, K, D]
    v: Tensor
    qo_indptr: Tensor  # int32 [requests + 1]
    s_qo: int  # query tokens of the longest request
    s_kv: int  # keys of the longest request
    causal: bool
    page_table: Tensor | None = None  # int32 [requests, pages]
    kv_lens: Tensor | None = None  # int32 [requests], over pages
    kv_indptr: Tensor | None = None  # int32 [requests + 1], ragged


def all_keys(inputs: Inputs) -> Keys:
    p = inputs.problem
    common: dict[str, Any] = {"qo_indptr": inputs.qo_indptr, "s_qo": p.s_qo, "s_kv": p.longest, "causal": p.mask == "causal"}
    if not p.paged:
        k, v = (cache.squeeze(1) for cache in inputs.kv)
        return Keys(k=k, v=v, kv_indptr=inputs.kv_indptr, **common)
    k, v = (token_major(p, cache) for cache in inputs.kv)
    return Keys(k=k, v=v, page_table=inputs.page_table, kv_lens=inputs.kv_lens, **common)


def context(inputs: Inputs) -> Keys:
    """The keys before the drafts. Every query sees all of them."""
    p = inputs.problem
    own = max(length - drafts for length, drafts in zip(p.kv_lens, p.q_lens, strict=True))
    longest = own if p.max_seq_len is None else p.max_seq_len
    return replace(all_keys(inputs), kv_lens=inputs.kv_lens - inputs.q_lens, s_kv=longest, causal=False)


def drafts(inputs: Inputs) -> Keys:
    """Each draft token's ancestors and itself, as pages of one token."""
    p = inputs.problem
    (k, step), (v, _) = (rows_of(p, cache) for cache in inputs.kv)
    rows, seen = ancestor_rows(inputs, step)
    each = torch.arange(p.num_q_tokens + 1, dtype=torch.int32, device=inputs.device)
    return Keys(k=k[:, None], v=v[:, None], page_table=rows, kv_lens=seen, qo_indptr=each, s_qo=1, s_kv=rows.shape[1], causal=False)


def merged(context_call: Call, drafts_call: Call, out: Tensor, of_drafts: Tensor) -> Callable[[], None]:
    """Both calls, then the merge: `out`, which has the answer over the context, becomes the answer over all keys."""
    merge = _merge()
    lse, lse_of_drafts = (torch.empty(out.shape[:2], device=out.device) for _ in range(2))  # [T, H]

    def launch() -> None:
        # The merge takes logarithms of base 2, [T, H].
        torch.mul(context_call()[1].T, math.log2(math.e), out=lse)
        torch.mul(drafts_call()[1].T, math.log2(math.e), out=lse_of_drafts)
        merge(out, lse, of_drafts, lse_of_drafts)

    return launch


def _merge() -> Callable[[Tensor, Tensor, Tensor, Tensor], object]:
    from flashinfer.cascade import merge_state_in_place

    merge: Callable[[Tensor, Tensor, Tensor, Tensor], object] = merge_state_in_place
    return merge

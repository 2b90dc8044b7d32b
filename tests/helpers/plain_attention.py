"""Attention of one request in plain PyTorch, for stand-ins of kernel libraries."""

from __future__ import annotations

import torch
from torch import Tensor


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    seen: Tensor,
    sinks: Tensor | None = None,
    rounded: torch.dtype | None = None,
    exact: int = 0,
) -> Tensor:
    """[q tokens, H, D_vo] from queries [q tokens, H, D] and keys and values [keys, K, D]; `seen` is bool [q tokens, keys].

    `rounded` is the dtype that queries and probabilities (of the row's largest, 1) are rounded to before they are multiplied, but
    for the last `exact` keys.
    """
    coarse = torch.arange(k.shape[0]) < k.shape[0] - exact
    group = q.shape[1] // k.shape[1]
    keys, values = (t.float().repeat_interleave(group, 1) for t in (k, v))
    logits = torch.einsum("qhd,khd->hqk", q.float(), keys) * scale
    if rounded is not None:
        logits = torch.where(coarse, torch.einsum("qhd,khd->hqk", q.to(rounded).float(), keys) * scale, logits)
    logits = logits.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        logits = torch.cat((logits, sinks.float()[:, None, None].expand(-1, logits.shape[1], 1)), -1)
    weights = logits.softmax(-1)[..., : k.shape[0]]
    if rounded is not None:
        largest = weights.amax(-1, keepdim=True)
        weights = torch.where(coarse, (weights / largest).to(rounded).float() * largest, weights)
    return torch.einsum("hqk,khd->qhd", weights, values)


def log_sum_exp(q: Tensor, k: Tensor, scale: float, seen: Tensor, sinks: Tensor | None = None) -> Tensor:
    """[q tokens, H], of the logits that `attend` has, and of sinks if they are given."""
    keys = k.float().repeat_interleave(q.shape[1] // k.shape[1], 1)
    logits = torch.einsum("qhd,khd->qhk", q.float(), keys) * scale
    of_keys = logits.masked_fill(~seen[:, None], -torch.inf).logsumexp(-1)
    return of_keys if sinks is None else torch.logaddexp(of_keys, sinks.float())


def sees(queries: int, keys: int, causal: bool, left: int = -1) -> Tensor:
    """Bool [queries, keys] of a causal or full mask, and of a window of `left` keys back. The last query is at the last key."""
    own = torch.arange(queries)[:, None] + keys - queries
    key = torch.arange(keys)
    found = key <= own if causal else torch.ones(queries, keys, dtype=torch.bool)
    return found & (key >= own - left) if left >= 0 else found


def tokens_of(cache: Tensor, pages: Tensor, length: int) -> Tensor:
    """The first `length` tokens [length, K, D] behind a row of a page table, from a cache [P, N, K, D]."""
    return cache.float()[pages[: -(-length // cache.shape[1])].long()].flatten(0, 1)[:length]

"""FlashInfer's wrappers with torch alone: they read what they are planned with, and give log-sum-exps of base 2."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """[n, H, D_vo] and the base-2 log-sum-exp [n, H] of n queries over L keys; 0 and -inf without keys. Causal: bottom right."""
    group = q.shape[1] // k.shape[1]
    scores = torch.einsum("nhd,lhd->nhl", q.float(), k.float().repeat_interleave(group, 1)) * scale
    if causal:
        own = torch.arange(len(q))[:, None] + len(k) - len(q)
        scores.masked_fill_((torch.arange(len(k)) > own)[:, None], -math.inf)
    lse = torch.logsumexp(scores, -1) if len(k) else torch.full(q.shape[:2], -math.inf)
    prob = (scores - lse[..., None]).exp() if len(k) else scores
    return torch.einsum("nhl,lhd->nhd", prob, v.float().repeat_interleave(group, 1)), lse / math.log(2)


class Wrapper:
    """What the three have in common: a plan that is kept, and a run over the requests that it names.

    Under CUDA graphs it has memory for the pages of the first batch, and refuses a plan that needs more.
    """

    def __init__(self, *args: Any, backend: str = "auto", **kwargs: Any) -> None:
        self._backend, self.layout = backend, args[1]
        reserved = (kwargs[name] for name in ("paged_kv_indices_buf", "paged_kv_indices_buffer") if name in kwargs)
        self.room = next((len(pages) for pages in reserved), None)

    def run(
        self,
        q: Tensor,
        *kv: Any,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        k_scale: float = 1.0,
    ) -> Any:
        out = torch.empty(*q.shape[:2], self.dim_vo, dtype=q.dtype) if out is None else out
        lse = torch.empty(q.shape[:2]) if lse is None else lse
        for rows, (k, v) in self.requests(*kv):
            found = attend(q[rows], k, v, self.sm_scale * k_scale, self.causal)
            out[rows], lse[rows] = found[0].to(out.dtype), found[1]
        return (out, lse) if return_lse else out

    def requests(self, *kv: Any) -> Any:
        raise NotImplementedError

    def keep(self, qo: Tensor, indptr: Tensor, indices: Tensor, last: Tensor, n: int) -> None:
        assert self.room is None or len(indices) <= self.room, "the pages do not fit the buffer of the first batch"
        self.qo_indptr, self.kv_indptr, self.indices, self.last_page_len, self.page_size = qo, indptr, indices, last, n

    def _pages(self, caches: tuple[Tensor, Tensor]) -> Any:
        n, qo, indptr = self.page_size, self.qo_indptr.tolist(), self.kv_indptr.tolist()
        for request, last in enumerate(self.last_page_len.tolist()):
            pages = self.indices[indptr[request] : indptr[request + 1]].long()
            length = (len(pages) - 1) * n + last
            tokens = (cache[pages].transpose(1, 2) if self.layout == "HND" else cache[pages] for cache in caches)
            yield slice(qo[request], qo[request + 1]), tuple(t.flatten(0, 1)[:length] for t in tokens)


class PagedPrefill(Wrapper):
    def plan(
        self, qo: Tensor, indptr: Tensor, indices: Tensor, last: Tensor, heads: int, kv: int, dim: int, n: int, **keys: Any
    ) -> None:
        self.keep(qo, indptr, indices, last, n)
        self.dim_vo, self.sm_scale, self.causal = dim, keys["sm_scale"], keys["causal"]

    def requests(self, caches: tuple[Tensor, Tensor]) -> Any:
        return self._pages(caches)


class PagedDecode(Wrapper):
    def plan(self, indptr: Tensor, indices: Tensor, last: Tensor, heads: int, kv: int, dim: int, n: int, **keys: Any) -> None:
        q_len = keys["q_len_per_req"]
        self.keep(torch.arange(len(last) + 1) * q_len, indptr, indices, last, n)
        self.dim_vo, self.sm_scale, self.causal = dim, keys["sm_scale"], q_len > 1

    def requests(self, caches: tuple[Tensor, Tensor]) -> Any:
        return self._pages(caches)


class RaggedPrefill(Wrapper):
    def plan(self, qo: Tensor, indptr: Tensor, heads: int, kv: int, dim_qk: int, dim_vo: int, **keys: Any) -> None:
        self.qo_indptr, self.kv_indptr, self.dim_vo = qo, indptr, dim_vo
        self.sm_scale, self.causal = keys["sm_scale"], keys["causal"]

    def requests(self, k: Tensor, v: Tensor) -> Any:
        qo, indptr = self.qo_indptr.tolist(), self.kv_indptr.tolist()
        for request in range(len(qo) - 1):
            part = slice(indptr[request], indptr[request + 1])
            yield slice(qo[request], qo[request + 1]), (k[part], v[part])


class BatchAttention(Wrapper):
    """The persistent one: lengths in tokens, scales in the call, and a log-sum-exp whether it is asked for or not."""

    def __init__(self, kv_layout: str, device: str) -> None:
        super().__init__(None, kv_layout)

    def plan(
        self, qo: Tensor, indptr: Tensor, indices: Tensor, lens: Tensor, heads: int, kv: int, dim: int, dim_vo: int, n: int,
        causal: bool, sm_scale: float, logits_soft_cap: float | None, q_data_type: Any, kv_data_type: Any,
    ) -> None:  # fmt: skip
        assert dim <= 256 and not logits_soft_cap and len(qo) == len(indptr) == len(lens) + 1
        self.keep(qo, indptr, indices, lens - (indptr.diff() - 1) * n, n)
        self.dim_vo, self.sm_scale, self.causal = dim_vo, sm_scale, causal

    def run(self, q, kv_cache, out, lse, k_scale, v_scale, logits_soft_cap) -> Any:  # type: ignore[override, no-untyped-def]
        super().run(q, kv_cache, out=out, lse=lse, k_scale=k_scale)
        out.mul_(v_scale)

    def requests(self, caches: tuple[Tensor, Tensor]) -> Any:
        return self._pages(caches)


class BatchPod:
    """Two wrappers of paged prefill. The second takes 16 rows a request and knows no mask; a scale reaches it alone."""

    def __init__(self, workspace: Tensor, layout: str) -> None:
        self.both = [PagedPrefill(workspace, layout) for _ in range(2)]

    def plan(self, *pages_and_heads: Any, sm_scale: float, window_left: int, q_data_type: Any, kv_data_type: Any) -> None:
        *pages, heads, kv, dim, n = pages_and_heads
        assert heads // kv <= 16 and window_left == -1
        for wrapper, of in zip(self.both, (pages[:4], pages[4:]), strict=True):
            wrapper.plan(*of, heads, kv, dim, n, sm_scale=sm_scale, causal=False)

    def run(self, q_p, kv_p, q_d, kv_d, causal_p=False, k_scale=1.0, enable_pdl=None) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        self.both[0].causal = causal_p
        return self.both[0].run(q_p, kv_p), self.both[1].run(q_d, kv_d, k_scale=k_scale)


def merge_state_in_place(v: Tensor, s: Tensor, v_other: Tensor, s_other: Tensor, mask: Tensor | None = None) -> None:
    """As `cascade.cuh` has it, in base 2."""
    assert v.shape[1] * (v.shape[2] // max(8, v.shape[2] // 32)) <= 1024  # threads of a block
    top = torch.maximum(s, s_other)
    of_v, of_other = torch.exp2(s - top).nan_to_num(0.0), torch.exp2(s_other - top).nan_to_num(0.0)
    total = of_v + of_other
    some = torch.where(total > 0, total, 1.0)  # two empty states stay one
    v.copy_(((of_v / some)[..., None] * v.float() + (of_other / some)[..., None] * v_other.float()).to(v.dtype))
    s.copy_(torch.log2(total) + top)


def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, v: Tensor, s: Tensor) -> None:
    """Into `v` and `s`, by the module's own function."""
    v.copy_(v_a)
    s.copy_(s_a)
    merge_state_in_place(v, s, v_b, s_b)


def merge_states(v: Tensor, s: Tensor, merged: Tensor, lse: Tensor) -> None:
    """[T, n, H, D] and [T, n, H] in base 2, rounded once. Fewer states than tokens are merged by one block a token."""
    assert v.is_contiguous() and s.is_contiguous()
    assert v.shape[1] >= len(v) or v.shape[2] * (v.shape[3] // max(8, v.shape[3] // 32)) <= 1024
    top = s.amax(1, keepdim=True)
    weights = torch.exp2(s - top).nan_to_num(0.0)
    total = weights.sum(1)
    merged.copy_(((weights[..., None] * v.float()).sum(1) / torch.where(total > 0, total, 1.0)[..., None]).to(merged.dtype))
    lse.copy_(torch.log2(total) + top[:, 0])


MODULE = SimpleNamespace(merge_state=merge_state, merge_state_in_place=merge_state_in_place, merge_states=merge_states)


def put_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces FlashInfer's wrappers and merge while a test runs."""
    import flashinfer
    import flashinfer.cascade

    for module in (flashinfer, flashinfer.cascade):
        monkeypatch.setattr(module, "BatchPrefillWithPagedKVCacheWrapper", PagedPrefill)
        monkeypatch.setattr(module, "merge_state_in_place", merge_state_in_place)
    monkeypatch.setattr(flashinfer.cascade, "get_cascade_module", lambda: MODULE)
    monkeypatch.setattr(flashinfer, "BatchDecodeWithPagedKVCacheWrapper", PagedDecode)
    monkeypatch.setattr(flashinfer, "BatchAttention", BatchAttention)
    monkeypatch.setattr(flashinfer, "BatchPODWithPagedKVCacheWrapper", BatchPod)
    monkeypatch.setattr(flashinfer, "BatchPrefillWithRaggedKVCacheWrapper", RaggedPrefill)

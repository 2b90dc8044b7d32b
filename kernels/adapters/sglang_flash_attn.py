"""SGLang's own build of FlashAttention-3, its `fa3`: over pages (decode, drafts, prefill), ragged, and over DeepSeek's latent.

Calls read from SGLang 0.5.23, `srt/layers/attention/flashattention_backend.py`, and from `flash_attn.py` of `sgl_kernel` in
sglang-kernel 0.4.2.post2 and 0.4.10, which make the same. Rules read from the messages of the compiled library of 0.4.10,
`flash_ops.abi3.so`. Its kernels for SM80 to SM89, which SGLang takes only if `fa3` is typed, are not known here.

For one query token and no window SGLang makes the plan once a step, else a small kernel makes it in every call, in MLA too
(`_compute_scheduler_metadata`). Without pages, as for the prompts of MLA, it takes the function's default of one split.
"""

# T = query tokens of all requests, H = num_qo_heads, K = num_kv_heads, P = pages, N = slots a page, D = D_ckv + D_kpe

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kernels.adapter import Adapter, Device, EngineMaximum, Inputs, Need, Problem, QueryLengths, Runner, nothing_to_plan
from kernels.lazy import Tensor
from kernels.libraries import flash_attn_3_common as common
from kernels.libraries.engine_common import SGLANG_KERNEL_READ, needs_of_flash_attn_3
from kernels.libraries.flash_attn_common import all_keys
from kernels.problem.dtypes import FP8, size_bytes
from kernels.problem.features import ALL_BUT_BLOCKS, USUAL, Feature
from kernels.problem.fields import TMA_MEMORY, KvMemory

ONE_SPLIT = 1


@dataclass(frozen=True, kw_only=True)
class OfSglang(Adapter):
    """What its calls over heads and over a latent share."""

    name: str = "flash_attn_3_sglang"
    query_lengths: QueryLengths = "varlen"
    takes_num_splits: bool = True
    max_seq_len: EngineMaximum = "passed"
    takes_empty: bool = True  # an H100 was right with padded requests without a token, of which SGLang makes none here
    distributions: tuple[str, ...] = ("sglang-kernel",)
    rules_hold_for: tuple[str, ...] = SGLANG_KERNEL_READ
    imports: str = "sgl_kernel"

    def workspace_bytes(self, problem: Problem) -> int:
        return common.partial_bytes(problem)


@dataclass(frozen=True, kw_only=True)
class FlashAttn3OfSglang(OfSglang):
    takes_window: bool = True
    takes_two_sided_window: bool = True
    takes_more_queries: bool = True
    reads_memory: frozenset[KvMemory] = TMA_MEMORY
    takes_sinks: bool = True
    takes_soft_cap: bool = True
    gives_lse: bool = True
    # By the source slots without a token are skipped where `flash_attn_3` says so; no GPU has shown it of this build.
    passes: frozenset[Feature] | None = ALL_BUT_BLOCKS - {"a tree of drafts"}

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return common.needs_of_engines(problem, device)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        p, out = inputs.problem, inputs.empty_output()
        parts = self.num_splits or (common.HEURISTIC if p.paged else ONE_SPLIT)
        metadata = _metadata(inputs, parts)
        attend = _over_pages(inputs, out, metadata, parts) if p.paged else _ragged(inputs, out, parts)
        # With a log-sum-exp it also returns the partial results of splits.
        splits = common.splits_of(attend(return_softmax_lse=True))
        config = f"num_splits={splits} {common.MADE_IN_CALL if metadata is None else common.GIVEN}"
        launch = partial(attend, return_softmax_lse=True) if p.return_lse else attend
        return common.runner_of(inputs, launch, out, config, common.planned_again(metadata, lambda: _metadata(inputs, parts)))


@dataclass(frozen=True, kw_only=True)
class FlashAttn3MlaOfSglang(OfSglang):
    """The same function with `qv`, SGLang's default for MLA on Hopper.

    Over an FP8 latent each call first converts the cache to 16 bits, without its scale (`get_key_buffer(...).to(q.dtype)`): here
    the problem's pages, in an engine its whole pool, so there it takes longer.
    """

    routine: str = "mla"
    gives_lse: bool = True
    passes: frozenset[Feature] | None = USUAL

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return needs_of_flash_attn_3(problem, device, converts_8_bits=True)

    def workspace_bytes(self, problem: Problem) -> int:
        p = problem
        copied = size_bytes(p.q_dtype, p.num_pages * p.page_size * p.kv_token_elements) if p.kv_dtype in FP8 else 0
        return common.partial_bytes(p) + copied

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from sgl_kernel.flash_attn import flash_attn_with_kvcache

        p, out, width = inputs.problem, inputs.empty_output(), inputs.problem.value_dim
        given: dict[str, Any] = {
            "q": inputs.q[..., width:], "qv": inputs.q[..., :width], "page_table": inputs.page_table,
            "cache_seqlens": inputs.kv_lens, "cu_seqlens_q": inputs.qo_indptr, "max_seqlen_q": p.s_qo,
            "softmax_scale": inputs.sm_scale * inputs.k_scale, "causal": p.mask == "causal", "out": out,
            "num_splits": self.num_splits or common.HEURISTIC, "return_softmax_lse": p.return_lse,
        }  # fmt: skip

        def attend() -> Any:
            latent = inputs.latent[:, :, None].to(inputs.q.dtype)  # [P, N, 1, D], a copy of 8 bits alone
            return flash_attn_with_kvcache(**given, k_cache=latent[..., width:], v_cache=latent[..., :width])

        runner = common.runner_of(inputs, attend, out, common.MADE_IN_CALL, nothing_to_plan)
        return replace(runner, caller_scale=inputs.v_scale)


def _shared(inputs: Inputs, out: Tensor) -> dict[str, Any]:
    """The arguments of both functions over heads. Queries have no scale: SGLang rounds them to FP8 as they are."""
    p, of = inputs.problem, all_keys(inputs)
    _, k, v = common.descales(inputs, len(of.qo_indptr) - 1)
    return {
        "cu_seqlens_q": of.qo_indptr, "max_seqlen_q": of.s_qo, "softmax_scale": inputs.sm_scale, "causal": of.causal,
        "window_size": common.window(p), "softcap": p.soft_cap or 0.0, "k_descale": k, "v_descale": v,
        "sinks": common.sinks_in_bf16(inputs), "out": out,
    }  # fmt: skip


def _over_pages(inputs: Inputs, out: Tensor, metadata: Tensor | None, num_splits: int) -> Callable[..., Any]:
    """The longest request is as long as the page table is wide."""
    from sgl_kernel.flash_attn import flash_attn_with_kvcache

    of = all_keys(inputs)
    given = {
        **_shared(inputs, out), "k_cache": of.k, "v_cache": of.v, "page_table": of.page_table, "cache_seqlens": of.kv_lens,
        "num_splits": num_splits, "scheduler_metadata": metadata,
    }  # fmt: skip

    return partial(flash_attn_with_kvcache, inputs.q, **given)


def _ragged(inputs: Inputs, out: Tensor, num_splits: int) -> Callable[..., Any]:
    from sgl_kernel.flash_attn import flash_attn_varlen_func

    of = all_keys(inputs)
    given = {**_shared(inputs, out), "cu_seqlens_k": of.kv_indptr, "max_seqlen_k": of.s_kv, "num_splits": num_splits}

    return partial(flash_attn_varlen_func, inputs.q, of.k, of.v, **given)


def _metadata(inputs: Inputs, num_splits: int) -> Tensor | None:
    """The plan of a model step, which all layers share; None where SGLang makes none."""
    from sgl_kernel.flash_attn import get_scheduler_metadata

    p, of = inputs.problem, all_keys(inputs)
    if not p.paged or p.s_qo > 1 or p.window is not None:
        return None
    heads = {"num_heads": p.num_qo_heads, "num_heads_k": p.num_kv_heads}
    metadata: Tensor = get_scheduler_metadata(**heads, **common.metadata_arguments(inputs, of), num_splits=num_splits)
    return metadata


ADAPTERS = (
    *(FlashAttn3OfSglang(routine=routine) for routine in ("paged_decode", "paged_prefill", "ragged_prefill")),
    FlashAttn3MlaOfSglang(),
)

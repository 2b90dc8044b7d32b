"""vLLM's own builds of FlashAttention-3 and FlashAttention-2, its FLASH_ATTN: over pages (decode, drafts, prefill) and ragged.

vLLM takes version 3 on Hopper, and version 2 on Ampere, Ada and SM12x, or where `flash_attn_version=2` is typed
(`get_flash_attn_version` in `v1/attention/backends/fa_utils.py`). Calls read from vLLM 0.25.1: `flash_attn_interface.py` of
`vllm/vllm_flash_attn`, `v1/attention/backends/flash_attn.py`, and for prompts of MLA `mla/prefill/flash_attn.py`; 0.32.0 and
0.33.0 have the same arguments. Rules read from messages of both libraries, and vllm-project/flash-attention, commit 617264c.

Over pages vLLM makes version 3's plan once a step (`get_scheduler_metadata`), ragged it makes none. Version 2 has no plan, and for
one query token and grouped heads splits the keys. vLLM passes 32 splits in full CUDA graphs of version 3 alone.
"""

# T = query tokens of all requests, H = num_qo_heads, K = num_kv_heads, B = batch_size

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from kernels.adapter import Adapter, Device, Inputs, Need, PlanStep, Problem, Runner
from kernels.lazy import Tensor
from kernels.libraries import flash_attn_3_common as common
from kernels.libraries.engine_common import VLLM_READ
from kernels.libraries.flash_attn_common import FlashAttention, all_keys, need_of_empty
from kernels.problem.dtypes import HALF
from kernels.problem.features import ALL_BUT_BLOCKS, Feature
from kernels.problem.fields import ANY_MEMORY, KvMemory

MAX_HEADS_WITH_SINKS = 64
PAGE_STEP = 16  # of version 2: its page sizes are multiples
PAGED = ("paged_decode", "paged_prefill")
# Without splits its kernel for keys without pages writes the log-sum-exp in the right order, and the call reorders it once more.
GROUPED_LSE = "no log-sum-exp for one query token a request and grouped heads without pages (version 2 confuses its order)"


@dataclass(frozen=True, kw_only=True)
class FlashAttn3OfVllm(FlashAttention):
    name: str = "flash_attn_3_vllm"
    takes_sinks: bool = True
    takes_no_keys: bool = True
    takes_soft_cap: bool = True
    gives_lse: bool = True
    # By the source slots without a token are skipped where `flash_attn_3` says so; no GPU has shown it of this build.
    distributions: tuple[str, ...] = ("vllm",)
    rules_hold_for: tuple[str, ...] = VLLM_READ
    imports: str = "vllm"
    passes: frozenset[Feature] | None = ALL_BUT_BLOCKS - {"a tree of drafts"}
    takes_num_splits: bool = True

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        return (
            *common.needs_of_engines(p, device),
            need_of_empty(p),
            Need("with attention sinks, up to 64 query heads", not p.sinks or p.num_qo_heads <= MAX_HEADS_WITH_SINKS),
            Need("with attention sinks, equal head_dims of keys and values", not p.sinks or p.head_dim_qk == p.head_dim_vo),
        )

    def workspace_bytes(self, problem: Problem) -> int:
        return common.partial_bytes(problem)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        metadata = self._metadata(inputs)
        given: dict[str, Any] = {"scheduler_metadata": metadata, "s_aux": common.sinks_in_bf16(inputs)}
        given |= {"num_splits": self.num_splits or common.HEURISTIC}
        given |= dict(zip(("q_descale", "k_descale", "v_descale"), common.descales(inputs, len(inputs.qo_indptr) - 1), strict=True))
        splits = self.num_splits or "auto"
        config = f"num_splits={splits} {common.MADE_IN_CALL if metadata is None else common.GIVEN}"
        return _runner(inputs, 3, given, common.planned_again(metadata, lambda: self._metadata(inputs)), config)

    def _metadata(self, inputs: Inputs) -> Tensor | None:
        """The plan of a model step, which all layers share. None without pages."""
        from vllm.vllm_flash_attn import get_scheduler_metadata

        p, of = inputs.problem, all_keys(inputs)
        if of.page_table is None:
            return None
        heads = {"num_heads_q": p.num_qo_heads, "num_heads_kv": p.num_kv_heads}
        more = {"window_size": common.window(p), "num_splits": self.num_splits or common.HEURISTIC}
        metadata: Tensor = get_scheduler_metadata(**heads, **common.metadata_arguments(inputs, of), **more)
        return metadata


@dataclass(frozen=True, kw_only=True)
class FlashAttn2OfVllm(FlashAttention):
    name: str = "flash_attn_2_vllm"
    reads_memory: frozenset[KvMemory] = ANY_MEMORY  # by pointers, not TMA
    takes_soft_cap: bool = True
    gives_lse: bool = True
    # By the source no slot behind the last token is loaded; no GPU has shown it yet, so `skips_unused` stays False.
    distributions: tuple[str, ...] = ("vllm",)
    rules_hold_for: tuple[str, ...] = VLLM_READ
    imports: str = "vllm"
    passes: frozenset[Feature] | None = ALL_BUT_BLOCKS - {"a tree of drafts", "attention sinks", "scales of keys and values"}

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        of_pages = Need("a page_size that is a multiple of 16", p.page_size % PAGE_STEP == 0)
        # It makes a query token of each head of a group (`seqlenq_ngroups_swapped` in its `flash_api.cpp`).
        is_reordered = p.s_qo == 1 and p.num_qo_heads > p.num_kv_heads and p.window is None
        of_lse = Need(GROUPED_LSE, not (p.return_lse and is_reordered))
        return (
            Need("a CUDA device of SM80 or later (FlashAttention-2)", device.kind == "cuda" and device.major >= 8),
            Need("fp16 or bf16 queries", p.q_dtype in HALF),
            Need("keys and values of the query's dtype", p.kv_dtype == p.q_dtype),
            Need("output of the query's dtype", p.output_dtype == p.q_dtype),
            Need("a causal or full mask", p.tree is None),
            Need("equal head_dims of keys and values, up to 256", p.head_dim_qk == p.head_dim_vo <= common.MAX_HEAD_DIM),
            Need("a head_dim that is a multiple of 8", p.head_dim_qk % 8 == 0),
            of_pages if p.paged else of_lse,
        )

    def workspace_bytes(self, problem: Problem) -> int:
        reordered = 4 * problem.num_q_tokens * problem.num_qo_heads * problem.head_dim_vo  # queries and output, 16 bits each
        return common.partial_bytes(problem) + reordered

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        return _runner(inputs, 2, {"num_splits": common.HEURISTIC}, common.planned_again(None, lambda: None), "num_splits=auto")


def _runner(inputs: Inputs, version: int, given: dict[str, Any], plan_step: PlanStep, config: str) -> Runner:
    """The call of a version, with what it alone is given."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    p, out, of = inputs.problem, inputs.empty_output(), all_keys(inputs)
    arguments: dict[str, Any] = {
        "q": inputs.q, "k": of.k, "v": of.v, "out": out, "cu_seqlens_q": of.qo_indptr, "cu_seqlens_k": of.kv_indptr,
        "seqused_k": of.kv_lens, "max_seqlen_q": of.s_qo, "max_seqlen_k": of.s_kv, "block_table": of.page_table,
        "softmax_scale": inputs.sm_scale, "causal": of.causal, "window_size": list(common.window(p)),
        "softcap": p.soft_cap or 0.0, "return_softmax_lse": p.return_lse, "fa_version": version, **given,
    }  # fmt: skip

    launch = partial(flash_attn_varlen_func, **arguments)
    return common.runner_of(inputs, launch, out, config, plan_step, kernel=f"flash_attn_{version}")


def _all(routine: str) -> tuple[Adapter, ...]:
    capped = FlashAttn3OfVllm(routine=routine, name="flash_attn_3_vllm_32_splits", num_splits=common.SPLITS_OF_VLLM)
    return (FlashAttn3OfVllm(routine=routine), *((capped,) if routine in PAGED else ()), FlashAttn2OfVllm(routine=routine))


ADAPTERS = tuple(adapter for routine in (*PAGED, "ragged_prefill") for adapter in _all(routine))

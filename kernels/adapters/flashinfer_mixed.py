"""FlashInfer's kernels for prompts and single tokens in one launch: `batch_attention` (persistent) and `batch_pod` (POD-Attention).

The first cuts a batch into pieces of equal work for as many blocks as fit, and merges in the same launch. The second runs blocks of
a prefill and of a decode kernel side by side on each processor. No engine takes one by itself.

Rules read from flashinfer-python 0.7.2.post1: `attention/_core.py`, `persistent.cuh`, `scheduler.cuh`, `pod.py`, `batch_pod.cu`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kernels.adapter import Device, EngineMaximum, Inputs, Module, Need, Problem, QueryLengths, Runner
from kernels.lazy import Tensor
from kernels.libraries import flashinfer_common as common
from kernels.libraries.flashinfer_modules import flashinfer_module
from kernels.problem.features import USUAL, Feature

PREFILL_TILE, DECODE_TILE, MAX_TILES = 128, 16, 65536  # rows of tiles (query tokens times query heads of a KV head); and tiles


@dataclass(frozen=True, kw_only=True)
class BatchAttention(common.FlashInferAdapter):
    """Partial outputs have the output's dtype. Offsets into the cache have 32 bits (`prefetch_offest`)."""

    routine: str = "paged_decode"
    name: str = "batch_attention"
    query_lengths: QueryLengths = "varlen"
    max_seq_len: EngineMaximum = "unread"
    gives_lse: bool = True
    takes_soft_cap: bool = True
    rules_hold_for: tuple[str, ...] = common.READ_ONLY
    passes: frozenset[Feature] | None = USUAL | {"a soft cap of logits"}

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p, rows = problem, [q * problem.group_size for q in problem.q_lens]
        tiles = sum(-(-n // (PREFILL_TILE if n > DECODE_TILE else DECODE_TILE)) for n in rows) * p.num_kv_heads
        return (
            *_shared_needs(p, device),
            Need("up to 65,536 tiles of all KV heads", tiles <= MAX_TILES),
            Need("fewer than 2^32 elements of keys and values", p.num_pages * p.page_size * p.kv_token_elements < 2**32),
        )

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        p, flags = problem, (common.NO_POSITION_ENCODING, problem.soft_cap is not None, False)
        key = (p.q_dtype, p.kv_dtype, p.q_dtype, "int32", p.head_dim_qk, p.head_dim_vo, *flags)
        return (flashinfer_module("attention.modules:_gen_batch_attention_primary_module", key),)

    def workspace_bytes(self, problem: Problem) -> int:
        return 392 * 2**20 + 4 * problem.num_q_tokens * problem.num_qo_heads  # of its own, and a log-sum-exp

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from flashinfer import BatchAttention as Wrapper

        p, (out, lse) = inputs.problem, common.output_with_lse(inputs)
        wrapper = Wrapper(p.kv_layout, str(inputs.device))
        wrapper.plan(
            inputs.qo_indptr, inputs.kv_indptr, inputs.kv_indices, inputs.kv_lens, p.num_qo_heads, p.num_kv_heads, p.head_dim_qk,
            p.head_dim_vo, p.page_size, p.mask == "causal", inputs.sm_scale, p.soft_cap, inputs.q.dtype, inputs.kv[0].dtype,
        )  # fmt: skip
        scales = {"k_scale": inputs.k_scale, "v_scale": inputs.v_scale, "logits_soft_cap": p.soft_cap or 0.0}
        launch = partial(wrapper.run, inputs.q, inputs.kv, out=out, lse=lse, **scales)
        return Runner(launch, out, self.name, p.q_dtype, lse=lse if p.return_lse else None, lse_base="2")


@dataclass(frozen=True, kw_only=True)
class BatchPod(common.FlashInferAdapter):
    """Requests of one query token, which see every key (in tiles of 16 rows), and others behind them; two outputs are copied."""

    routine: str = "paged_decode"
    name: str = "batch_pod"
    query_lengths: QueryLengths = "varlen"
    max_seq_len: EngineMaximum = "unread"
    takes_window: bool = True
    takes_pdl: bool = True
    rules_hold_for: tuple[str, ...] = common.READ_ONLY
    passes: frozenset[Feature] | None = (USUAL - {"an output of another dtype"}) | {"a sliding window"}

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        single = problem.q_lens.count(1)
        mixed = 0 < single < problem.batch_size and set(problem.q_lens[:single]) == {1}
        return (
            *_shared_needs(problem, device),
            Need("requests of one query token, and others behind them", mixed),
            Need("up to 16 query heads for each KV head", problem.group_size <= DECODE_TILE),
        )

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        p, flags = problem, (common.NO_POSITION_ENCODING, problem.window is not None, False)
        key = (p.q_dtype, p.kv_dtype, p.q_dtype, p.head_dim_qk, *flags, common.NO_FP16_QK, "int32", *flags)
        return (common.prefill_module(p, "fa2"), flashinfer_module("attention.modules:gen_batch_pod_module", key))

    def workspace_bytes(self, problem: Problem) -> int:
        return 2 * common.split_workspace_bytes(problem) + 16 * 2**20 + problem.output_bytes

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from flashinfer import BatchPODWithPagedKVCacheWrapper

        p, out, single = inputs.problem, inputs.empty_output(), inputs.problem.q_lens.count(1)
        wrapper = BatchPODWithPagedKVCacheWrapper(common.workspace(inputs, 2 * common.split_workspace_bytes(p)), p.kv_layout)
        wrapper.plan(
            *_pages(inputs, single, p.batch_size), *_pages(inputs, 0, single), p.num_qo_heads, p.num_kv_heads, p.head_dim_qk,
            p.page_size, window_left=common.window_left(p), q_data_type=inputs.q.dtype, kv_data_type=inputs.kv[0].dtype,
            sm_scale=inputs.sm_scale * inputs.k_scale,
        )  # fmt: skip

        def launch() -> None:
            given = (inputs.q[single:], inputs.kv, inputs.q[:single], inputs.kv)
            prompts, tokens = wrapper.run(*given, causal_p=p.mask == "causal", enable_pdl=p.enable_pdl)
            out[single:].copy_(prompts)
            out[:single].copy_(tokens)

        return Runner(launch, out, self.name, p.q_dtype, inputs.v_scale, kernel_config=f"decode_requests={single}")


def _shared_needs(p: Problem, device: Device) -> tuple[Need, ...]:
    return (
        common.needs_sm80(device),
        *common.fa2_dtype_needs(p),
        Need("output of the query's dtype", p.output_dtype == p.q_dtype),
        Need("equal head_dims of 64, 128 or 256", p.head_dim_qk == p.head_dim_vo and p.head_dim_qk in (64, 128, 256)),
        common.needs_no_tree(p),
    )


def _pages(inputs: Inputs, first: int, stop: int) -> tuple[Tensor, ...]:
    """Offsets of query tokens and of pages, pages and last lengths of some requests, int32."""
    q, kv = inputs.qo_indptr[first : stop + 1], inputs.kv_indptr[first : stop + 1]
    return q - q[0], kv - kv[0], inputs.kv_indices[int(kv[0]) : int(kv[-1])], inputs.last_page_len[first:stop]


ADAPTERS = (BatchAttention(), BatchPod())

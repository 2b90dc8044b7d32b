"""TensorRT-LLM's prefill kernels: FMHAv2 on SM90 and SM12x, over pages and ragged; trtllm-gen's context kernel on the SM100 family.

Rules read from flashinfer-python 0.7.2.post1: `prefill.py` (trtllm_fmha_v2_prefill, trtllm_batch_context_with_kv_cache),
`jit/attention/modules.py` (gen_fmha_v2_module), `jit/attention/fmha_v2/fmha_library.py` (generate_jit_sources).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels.adapter import Device, EngineMaximum, Inputs, Module, Need, Problem, QueryLengths, Runner
from kernels.lazy import Tensor
from kernels.libraries import flashinfer_common as common
from kernels.libraries.flashinfer_calls import bound
from kernels.libraries.flashinfer_modules import flashinfer_module
from kernels.problem.dtypes import FP8, HALF
from kernels.problem.features import USUAL, Feature
from kernels.problem.fields import TMA_MEMORY, KvMemory

# Sizes that FMHAv2 has a kernel for; for others it launches nothing, so the output stays as it was. Hopper's 40 and 104 are left
# out: no GPU has shown them right.
HOPPER_DIMS = frozenset({32, 48, 64, 80, 96, 128, 160, 192, 256})
SM12_DIMS = frozenset({64, 128, 256})
PASSES: frozenset[Feature] = USUAL | {"attention sinks", "a sliding window"}


@dataclass(frozen=True, kw_only=True)
class FmhaV2(common.FlashInferAdapter):
    """`trtllm_fmha_v2_prefill`. Pages interleave keys and values. Ragged tensors are separate, and FP8 is not supported there."""

    name: str = "trtllm-fmha-v2"
    query_lengths: QueryLengths = "varlen"
    takes_window: bool = True
    takes_sinks: bool = True  # fp32 logits in natural units (csrc/fmha_v2/fmha/warpspec/epilogue.h, add_attention_sink)
    takes_soft_cap: bool = True
    passes: frozenset[Feature] | None = PASSES | {"a soft cap of logits"}
    max_seq_len: EngineMaximum = "passed"
    rules_hold_for: tuple[str, ...] = ("flashinfer-python>=0.6.18,<0.8",)  # its function is the same since

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p, fp8 = problem, problem.q_dtype == "fp8_e4m3"
        one_dtype = p.q_dtype in HALF | {"fp8_e4m3"} and p.kv_dtype == p.q_dtype
        half_under_fp8, dims = fp8 and p.output_dtype in HALF, HOPPER_DIMS if device.is_sm(9) else SM12_DIMS
        return (
            Need("SM90 or SM12x", device.is_sm(9, 12)),
            Need("fp16, bf16 or fp8_e4m3 queries, and keys and values of the same dtype", one_dtype),
            Need("output of the query's dtype, or 16 bits under fp8_e4m3", p.output_dtype == p.q_dtype or half_under_fp8),
            Need("with FP8, pages and SM90", not fp8 or (p.paged and device.is_sm(9))),
            common.needs_no_tree(p),
            Need("with a soft cap, pages", p.soft_cap is None or p.paged),  # "not supported for the SEPARATE_Q_K_V input layout"
            Need("head_dim 32, 48, 64, 80, 96, 128, 160, 192 or 256, on SM12x 64, 128 or 256", p.head_dim_qk in dims),
            # Both seen on an H200: without pages, 192/128 leaves NaN, and a chunk of a prompt is off by the size of the answer.
            common.needs_equal_head_dims(p),
            Need("without pages, whole prompts (s_qo = s_kv)", p.paged or p.q_lens == p.kv_lens),
        )

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        output = problem.output_dtype if problem.q_dtype in FP8 else problem.q_dtype  # it loads no other, whatever `out` is
        args = (_layout(problem), problem.q_dtype, output)
        return (flashinfer_module("attention.modules:gen_fmha_v2_module", args),)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from flashinfer.prefill import trtllm_fmha_v2_prefill

        p, out = inputs.problem, inputs.empty_output()
        scale = common.fp8_output_scale(p)
        call: dict[str, Any] = {
            "qkv": _qkv(inputs), "input_layout": _layout(p), **_shared(inputs), "bmm2_scale": inputs.v_scale / scale,
            "block_tables": inputs.page_table if p.paged else None, "out": out,
            "mask_mode": "sliding_window" if p.window is not None else "causal" if p.mask == "causal" else "padding",
        }  # fmt: skip
        call |= {} if p.soft_cap is None else {"logits_soft_cap_scale": p.soft_cap}
        sums = "fp16" if p.q_dtype == "fp16" else "fp32"  # csrc/fmha_v2_run.cu: "FP16 kernels: !force_fp32_acc"; seen on an H200
        launch = bound(trtllm_fmha_v2_prefill, **call)
        return Runner(launch, out, "trtllm-fmha-v2", p.q_dtype, accumulator_dtype=sums, caller_scale=scale)


def _layout(problem: Problem) -> str:
    """FlashInfer's name for the layout of queries, keys and values."""
    return f"Q_PAGED_KV_{problem.kv_layout}" if problem.paged else "SEPARATE_Q_K_V"


def _qkv(inputs: Inputs) -> tuple[Tensor, ...]:
    """The tensors in that layout: paged keys and values as a view of the one allocation they share, [P, 2, ...]."""
    k, v = inputs.kv
    if not inputs.problem.paged:
        return inputs.q, k.squeeze(1), v.squeeze(1)
    strides = (k.stride(0), v.storage_offset() - k.storage_offset(), *k.stride()[1:])
    return inputs.q, k.as_strided((k.shape[0], 2, *k.shape[1:]), strides, k.storage_offset())


def _shared(inputs: Inputs) -> dict[str, Any]:
    from torch.nn.functional import pad

    p = inputs.problem
    return {
        "workspace_buffer": common.workspace(inputs), "seq_lens": inputs.kv_lens, "max_q_len": p.s_qo, "max_kv_len": p.longest,
        "bmm1_scale": inputs.sm_scale * inputs.k_scale, "batch_size": p.batch_size, "cum_seq_lens_q": inputs.qo_indptr,
        # int32 [B+1]: the first KV token of each request if all requests were concatenated.
        "cum_seq_lens_kv": pad(inputs.kv_lens.cumsum(0).int(), (1, 0)),
        "window_left": common.window_left(p), "sinks": inputs.sinks,
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrtllmContext(common.FlashInferAdapter):
    """`trtllm_batch_context_with_kv_cache`, trtllm-gen's prefill over pages. The kernels come compiled."""

    routine: str = "paged_prefill"
    name: str = "trtllm-context"
    query_lengths: QueryLengths = "varlen"
    reads_memory: frozenset[KvMemory] = TMA_MEMORY
    takes_window: bool = True
    max_seq_len: EngineMaximum = "passed"
    takes_pdl: bool = True
    takes_sinks: bool = True
    passes: frozenset[Feature] | None = PASSES
    rules_hold_for: tuple[str, ...] = common.READ_ONLY

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        fp8_under_bf16 = p.q_dtype == "bf16" and p.kv_dtype == "fp8_e4m3"
        return (
            common.needs_sm100(device),
            common.needs_equal_head_dims(p),
            Need("fp16, bf16 or fp8_e4m3 queries", p.q_dtype in HALF | {"fp8_e4m3"}),
            Need("keys and values of the query's dtype, or fp8_e4m3 under bf16 queries", p.kv_dtype == p.q_dtype or fp8_under_bf16),
            common.needs_half_output(p),
            Need("page_size 16, 32 or 64", p.page_size in (16, 32, 64)),
            Need("head_dim 64, 128 or 256", p.head_dim_qk in (64, 128, 256)),
            common.needs_no_tree(p),
        )

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from flashinfer.prefill import trtllm_batch_context_with_kv_cache

        p, out = inputs.problem, inputs.empty_output()
        call: dict[str, Any] = {
            "query": inputs.q, "kv_cache": inputs.kv, **_shared(inputs), "block_tables": inputs.page_table,
            "bmm2_scale": inputs.v_scale, "kv_layout": p.kv_layout, "causal": p.mask == "causal", "enable_pdl": p.enable_pdl,
            "out": out,
        }  # fmt: skip
        return Runner(bound(trtllm_batch_context_with_kv_cache, **call), out, "trtllm-gen", p.q_dtype)


ADAPTERS = (
    FmhaV2(routine="paged_prefill", reads_memory=frozenset({"paired"})),  # csrc/fmha_v2_run.cu: strides follow from shapes
    FmhaV2(routine="ragged_prefill"),
    TrtllmContext(),
)

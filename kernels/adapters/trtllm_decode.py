"""TensorRT-LLM's decode kernels by functions, as engines call them: XQA on SM90 and SM12x, trtllm-gen on the SM100 family.

`trtllm-native` is `trtllm_batch_decode_with_kv_cache`, which chooses between them; FlashInfer's benchmark calls it so too. The
wrapper with `backend="trtllm-gen"` is another path to that kernel, and another backend (`flashinfer_decode_other.py`). Rules read
from flashinfer-python 0.7.2.post1: `decode.py`, `xqa.py`, `jit/xqa.py`.

Both get the engine's maximum: trtllm-gen takes its splits from `max_seq_len`, XQA from the width of the page table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels.adapter import Device, EngineMaximum, Inputs, Module, Need, Problem, QueryLengths, Runner, Since, nothing_to_plan
from kernels.inputs.masks import packed_batch
from kernels.lazy import Tensor
from kernels.libraries import flashinfer_common as common
from kernels.libraries.flashinfer_calls import bound
from kernels.libraries.flashinfer_modules import flashinfer_module
from kernels.problem.dtypes import HALF
from kernels.problem.features import USUAL, Feature
from kernels.problem.fields import TMA_MEMORY, KvMemory
from kernels.problem.padded import has_empty

BOTH_PASS: frozenset[Feature] = (USUAL - {"a full mask"}) | {"attention sinks", "a sliding window", "block scales"}
XQA_PASSES: frozenset[Feature] = BOTH_PASS | {"a full mask", "a prefix mask", "a tree of drafts"}  # trtllm-gen takes no mask
SWAP_AB_ROWS = 32  # drafts of up to this many rows (s_qo * GQA ratio) use the generic kernel instead of the Hopper FP8 one


def xqa_needs(problem: Problem, device: Device) -> tuple[Need, ...]:
    p = problem
    cached = p.kv_dtype in (p.q_dtype, "fp8_e4m3") or (p.kv_dtype == "nvfp4" and device.is_sm(12))
    eight_bit_output = p.output_dtype == p.kv_dtype == "fp8_e4m3"
    head_dim = p.head_dim_qk % 16 == 0 and p.head_dim_qk <= (512 if p.s_qo == 1 and p.group_size <= 16 else 256)
    return (
        Need("SM90 or SM12x (XQA), or the SM100 family (trtllm-gen)", device.is_sm(9, 12)),
        common.needs_equal_head_dims(p),
        Need("fp16 or bf16 queries", p.q_dtype in HALF),
        Need("keys and values of the query's dtype or fp8_e4m3, or nvfp4 on SM12x", cached),
        Need("output of the query's dtype, or fp8_e4m3 with such keys", p.output_dtype == p.q_dtype or eight_bit_output),
        Need("no log-sum-exp from XQA, which gives none", not p.return_lse),
        Need("page_size 16, 32, 64 or 128", p.page_size in (16, 32, 64, 128)),
        Need("head_dim a multiple of 16 up to 256; up to 512 at s_qo 1 and at most 16 query heads a KV head", head_dim),
    )


@dataclass(frozen=True, kw_only=True)
class TrtllmDecode(common.FlashInferAdapter):
    """The function's own choice between XQA and trtllm-gen."""

    routine: str = "paged_decode"
    name: str = "trtllm-native"
    query_lengths: QueryLengths = "varlen"
    reads_memory: frozenset[KvMemory] = TMA_MEMORY
    takes_window: bool = True
    takes_sinks: bool = True
    gives_lse: bool = True
    max_seq_len: EngineMaximum = "passed"
    takes_pdl: bool = True
    takes_empty: bool = True  # vLLM captures full graphs with it, whose padded requests have no token

    rules_hold_for: tuple[str, ...] = ("flashinfer-python>=0.6.0,<0.8",)

    def since(self, problem: Problem, device: Device) -> tuple[Since, ...]:
        """Of XQA: `xqa` and its entry point are the same since 0.6.0 for one query token, but for what follows.

        0.6.16 chose the Hopper FP8 kernel for drafts by another rule, and 0.6.18 leaves it to head_dims up to 256.
        """
        p = problem
        return (
            Since("0.7.2", "trtllm-gen (older rules are not known)", _uses_trtllm_gen(device)),
            Since("0.6.16", "more than one query token a request", p.s_qo > 1),
            Since("0.6.18", "a head_dim above 256", p.head_dim_qk > 256),
            Since("0.7.0", "nvfp4 caches (older rules are not known)", p.kv_dtype == "nvfp4"),
            Since("0.7.0", "an output of another dtype than the query's (older rules are not known)", p.output_dtype != p.q_dtype),
            Since("0.7.0", "padded requests without a token (older rules are not known)", has_empty(p)),
        )

    def passed_on(self, device: Device) -> frozenset[Feature]:
        return BOTH_PASS if _uses_trtllm_gen(device) else XQA_PASSES

    def gives_lse_in(self, problem: Problem, device: Device) -> bool:
        return _uses_trtllm_gen(device)  # XQA gives none

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        if _uses_trtllm_gen(device):
            return (*common.trtllm_gen_needs(problem, device), common.needs_no_lse_with_sinks(problem))
        return xqa_needs(problem, device)

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        if _uses_trtllm_gen(device):
            return ()  # comes as compiled kernels
        p = problem
        shape = (p.page_size, p.head_dim_qk, p.group_size, p.window is not None)
        args = (p.q_dtype, p.kv_dtype, *shape, p.output_dtype, p.s_qo, p.min_s_qo is not None)
        return (flashinfer_module("xqa:gen_xqa_module", args),)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        return _prepare_gen(inputs) if _uses_trtllm_gen(device) else _prepare_xqa(inputs, device)


def _uses_trtllm_gen(device: Device) -> bool:
    return device.is_sm(10)


def _call(inputs: Inputs, out: Tensor, o_scale: float) -> dict[str, Any]:
    p = inputs.problem
    return {
        "query": inputs.q, "kv_cache": inputs.kv, "workspace_buffer": common.workspace(inputs), "block_tables": inputs.page_table,
        "seq_lens": inputs.kv_lens, "max_seq_len": p.longest, "bmm1_scale": inputs.sm_scale * inputs.k_scale,
        "bmm2_scale": inputs.v_scale / o_scale, "window_left": common.window_left(p), "sinks": inputs.sinks,
        "kv_layout": p.kv_layout, "enable_pdl": p.enable_pdl, "out": out,
    }  # fmt: skip


def _prepare_xqa(inputs: Inputs, device: Device) -> Runner:
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    p, out, o_scale = inputs.problem, inputs.empty_output(), common.fp8_output_scale(inputs.problem)
    call = _call(inputs, out, o_scale) | {
        "o_scale": o_scale,  # multiplies bmm2_scale, which then is v_scale again, and divides the output
        "q_len_per_req": p.s_qo,
        "mask": packed_batch(p, inputs.device),
        "q_cu_seq_lens": inputs.qo_indptr if p.min_s_qo is not None else None,
        "kv_cache_sf": inputs.kv_scales,
    }
    # The Hopper kernel rounds queries and probabilities to 8 bits; the generic one widens the cache.
    path = ("xqa_hopper_fp8", "fp8_e4m3") if _on_hopper_fp8(p, device) else ("xqa", p.q_dtype)
    launch = bound(xqa_batch_decode_with_kv_cache, **call)
    return Runner(launch, out, *path, caller_scale=o_scale, plan_step=nothing_to_plan)


def _on_hopper_fp8(p: Problem, device: Device) -> bool:
    """Whether XQA uses its Hopper FP8 kernel for this call, and not the generic one (`flashinfer/xqa.py`)."""
    if not (device.is_sm(9) and p.kv_dtype == "fp8_e4m3" and p.head_dim_qk <= 256):
        return False
    generic = p.sinks or p.min_s_qo is not None or p.window is not None or p.s_qo * p.group_size <= SWAP_AB_ROWS
    return p.s_qo == 1 or not generic


def _prepare_gen(inputs: Inputs) -> Runner:
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache

    p, out, o_scale = inputs.problem, inputs.empty_output(), common.fp8_output_scale(inputs.problem)
    ragged = p.min_s_qo is not None
    second = common.lse_arguments(inputs)
    call = _call(inputs, out, o_scale) | {
        **second, "backend": "trtllm-gen", "q_len_per_req": None if ragged else p.s_qo, "max_q_len": p.s_qo if ragged else None,
        "cum_seq_lens_q": inputs.qo_indptr if ragged else None, "kv_cache_sf": common.trtllm_gen_block_scales(inputs),
    }  # fmt: skip
    launch = bound(trtllm_batch_decode_with_kv_cache, **call)
    more: dict[str, Any] = {"caller_scale": o_scale, "lse": second.get("lse"), "lse_base": "2", "plan_step": nothing_to_plan}
    return Runner(launch, out, "trtllm-gen", p.q_dtype, **more)


ADAPTERS = (
    TrtllmDecode(),
    TrtllmDecode(routine="cascade"),  # one call over everything
)

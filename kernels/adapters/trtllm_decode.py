"""TensorRT-LLM's decode kernels: XQA on SM90 and SM12x, trtllm-gen on the SM100 family.

`trtllm-native` is the entry points' own choice between them, as FlashInfer's benchmark calls it. `trtllm-gen` asks for that
kernel by name. Rules read from flashinfer-python 0.7.2.post1: `decode.py` (trtllm_batch_decode_with_kv_cache,
xqa_batch_decode_with_kv_cache), `xqa.py`, `jit/xqa.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kernels.adapter import Adapter, Module, Need, QueryLengths, Runner
from kernels.flashinfer_common import (
    FLASHINFER,
    WORKSPACE_BYTES,
    fp8_output_scale,
    lse_arguments,
    needs_causal_drafts,
    needs_equal_head_dims,
    needs_sm100,
    window_left,
    workspace,
)
from kernels.inputs.masks import packed_batch
from kernels.problem.dtypes import HALF

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.problem import Problem
    from kernels.problem.features import Feature

BOTH_PASS: frozenset[Feature] = frozenset(
    {
        "attention sinks",
        "a sliding window",
        "query lengths that differ",
        "KV lengths that differ",
        "scales of keys and values",
        "block scales",
        "an output of another dtype",
    }
)
XQA_PASSES: frozenset[Feature] = BOTH_PASS | {"a full mask", "a tree of drafts"}  # trtllm-gen takes no mask
SWAP_AB_ROWS = 32  # drafts of up to this many rows (s_qo * GQA ratio) use the generic kernel instead of the Hopper FP8 one


def xqa_needs(problem: Problem, device: Device) -> tuple[Need, ...]:
    p = problem
    nvfp4_on_sm12 = p.kv_dtype == "nvfp4" and device.is_sm(12)
    eight_bit_output = p.output_dtype == p.kv_dtype == "fp8_e4m3"
    max_head_dim = 512 if p.s_qo == 1 and p.group_size <= 16 else 256
    return (
        Need("SM90 or SM12x (XQA), or the SM100 family (trtllm-gen)", device.is_sm(9, 12)),
        needs_equal_head_dims(p),
        Need("fp16 or bf16 queries", p.q_dtype in HALF),
        Need(
            "keys and values of the query's dtype or fp8_e4m3, or nvfp4 on SM12x",
            p.kv_dtype in (p.q_dtype, "fp8_e4m3") or nvfp4_on_sm12,
        ),
        Need("output of the query's dtype, or fp8_e4m3 with such keys", p.output_dtype == p.q_dtype or eight_bit_output),
        Need("no log-sum-exp from XQA, which gives none", not p.return_lse),
        Need("page_size 16, 32, 64 or 128", p.page_size in (16, 32, 64, 128)),
        Need(
            "head_dim a multiple of 16 up to 256; up to 512 at s_qo 1 and at most 16 query heads a KV head",
            p.head_dim_qk % 16 == 0 and p.head_dim_qk <= max_head_dim,
        ),
    )


def trtllm_gen_needs(problem: Problem, device: Device) -> tuple[Need, ...]:
    p = problem
    fp8_under_bf16 = p.q_dtype == "bf16" and p.kv_dtype == "fp8_e4m3"
    nvfp4_under_fp8 = p.q_dtype == "fp8_e4m3" and p.kv_dtype == "nvfp4"
    eight_bit_output = p.output_dtype == p.q_dtype == "fp8_e4m3"
    return (
        needs_sm100(device),
        needs_equal_head_dims(p),
        Need("fp16, bf16 or fp8_e4m3 queries", p.q_dtype in HALF | {"fp8_e4m3"}),
        Need(
            "keys and values of the query's dtype, fp8_e4m3 under bf16 queries, or nvfp4 under fp8_e4m3 queries",
            p.kv_dtype == p.q_dtype or fp8_under_bf16 or nvfp4_under_fp8,
        ),
        Need("16-bit output, or fp8_e4m3 under fp8_e4m3 queries", p.output_dtype in HALF or eight_bit_output),
        Need("page_size 16, 32 or 64", p.page_size in (16, 32, 64)),
        Need("head_dim 64, 128 or 256", p.head_dim_qk in (64, 128, 256)),
        Need("nvfp4 in HND pages", p.kv_dtype != "nvfp4" or p.kv_layout == "HND"),
        needs_causal_drafts(p),
    )


@dataclass(frozen=True, kw_only=True)
class TrtllmDecode(Adapter):
    """The entry points' own choice between XQA and trtllm-gen, or trtllm-gen alone."""

    force_trtllm_gen: bool = False  # ask for trtllm-gen by name, whatever the device
    routine: str = "paged_decode"
    query_lengths: QueryLengths = "varlen"
    takes_window: bool = True
    takes_sinks: bool = True
    gives_lse: bool = True
    distributions: tuple[str, ...] = FLASHINFER
    imports: str = "flashinfer"

    def _uses_trtllm_gen(self, device: Device) -> bool:
        return self.force_trtllm_gen or device.is_sm(10)

    def passed_on(self, device: Device) -> frozenset[Feature]:
        return BOTH_PASS if self._uses_trtllm_gen(device) else XQA_PASSES

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return trtllm_gen_needs(problem, device) if self._uses_trtllm_gen(device) else xqa_needs(problem, device)

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        if self._uses_trtllm_gen(device):
            return ()  # comes as compiled kernels
        p = problem
        shape = (p.page_size, p.head_dim_qk, p.group_size, p.window is not None)
        args = (p.q_dtype, p.kv_dtype, *shape, p.output_dtype, p.s_qo, p.min_s_qo is not None)
        return (Module("flashinfer.jit.xqa:gen_xqa_module", args),)

    def extra_bytes(self, problem: Problem) -> int:
        return WORKSPACE_BYTES

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        return _prepare_gen(inputs) if self._uses_trtllm_gen(device) else _prepare_xqa(inputs, device)


def _call(inputs: Inputs, out: Tensor, o_scale: float) -> dict[str, Any]:
    """The arguments that both entry points share."""
    p = inputs.problem
    return {
        "query": inputs.q,
        "kv_cache": inputs.kv,
        "workspace_buffer": workspace(inputs),
        "block_tables": inputs.page_table,
        "seq_lens": inputs.kv_lens,
        "max_seq_len": p.s_kv,
        "bmm1_scale": inputs.sm_scale * inputs.k_scale,
        "bmm2_scale": inputs.v_scale / o_scale,
        "window_left": window_left(p),
        "sinks": inputs.sinks,
        "kv_layout": p.kv_layout,
        "out": out,
    }


def _prepare_xqa(inputs: Inputs, device: Device) -> Runner:
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    p, out, o_scale = inputs.problem, inputs.empty_output(), fp8_output_scale(inputs.problem)
    call = _call(inputs, out, o_scale) | {
        "o_scale": o_scale,  # multiplies bmm2_scale, which then is v_scale again, and divides the output
        "q_len_per_req": p.s_qo,
        "mask": packed_batch(p, inputs.device),
        "q_cu_seq_lens": inputs.qo_indptr if p.min_s_qo is not None else None,
        "kv_cache_sf": inputs.kv_scales,
    }
    # The Hopper kernel rounds queries and probabilities to 8 bits; the generic one widens the cache.
    path = ("xqa_hopper_fp8", "fp8_e4m3") if _on_hopper_fp8(p, device) else ("xqa", p.q_dtype)
    return Runner(lambda: xqa_batch_decode_with_kv_cache(**call), out, *path, caller_scale=o_scale)


def _on_hopper_fp8(p: Problem, device: Device) -> bool:
    """Whether XQA uses its Hopper FP8 kernel for this call, and not the generic one (`flashinfer/xqa.py`)."""
    if not (device.is_sm(9) and p.kv_dtype == "fp8_e4m3" and p.head_dim_qk <= 256):
        return False
    generic = p.sinks or p.min_s_qo is not None or p.window is not None or p.s_qo * p.group_size <= SWAP_AB_ROWS
    return p.s_qo == 1 or not generic


def _prepare_gen(inputs: Inputs) -> Runner:
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache

    p, out, o_scale = inputs.problem, inputs.empty_output(), fp8_output_scale(inputs.problem)
    ragged = p.min_s_qo is not None
    second = lse_arguments(inputs)
    call = _call(inputs, out, o_scale) | {
        **second,
        "backend": "trtllm-gen",
        "q_len_per_req": None if ragged else p.s_qo,
        "max_q_len": p.s_qo if ragged else None,
        "cum_seq_lens_q": inputs.qo_indptr if ragged else None,
        "kv_cache_sf": _gen_block_scales(inputs),
    }
    launch = partial(trtllm_batch_decode_with_kv_cache, **call)
    return Runner(launch, out, "trtllm-gen", p.q_dtype, caller_scale=o_scale, lse=second.get("lse"), lse_base="2")


def _gen_block_scales(inputs: Inputs) -> Any:
    """nvfp4 block scales as trtllm-gen reads them: the values' in groups of four tokens, interleaved, in HND pages [P, K, N, D/16].

    Scale s of token t goes to 4 * (D/16) * (t / 4) + 4 * s + t % 4 (FlashInfer, `nvfp4_quantize_paged_kv_cache`).
    """
    if inputs.kv_scales is None:
        return None
    k, v = inputs.kv_scales
    pages, heads, slots, blocks = v.shape
    by_four = v.view(pages, heads, slots // 4, 4, blocks)
    return k, by_four.transpose(-1, -2).reshape(v.shape).contiguous()


ADAPTERS = (
    TrtllmDecode(name="trtllm-native"),
    TrtllmDecode(name="trtllm-gen", force_trtllm_gen=True),
    TrtllmDecode(routine="cascade", name="trtllm-native"),  # one call over everything
)

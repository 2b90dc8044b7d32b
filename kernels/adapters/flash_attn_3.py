"""FlashAttention-3, which vLLM and SGLang take by default on Hopper: over pages (decode, drafts to verify, prefill) and ragged.

Not FlashInfer's `fa3`, which is another implementation of the same algorithm. Rules and calls read from the source of the wheel
tokenspeed-fa3 3.0.0.post20260810 (`flash_attn_interface.py`, `flash_attn_config.py`), which holds the forward pass for SM90 alone.

Its kernels need a plan: how far to split each request's keys, and which block takes which part. A model step may make it once
(`get_scheduler_metadata`), as vLLM does, and SGLang for one query token. Otherwise a small kernel makes it in every call, that is
in every layer. Each way is a backend here.
"""

# T = query tokens of all requests, H = num_qo_heads, K = num_kv_heads, B = batch_size, D = head_dim

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from kernels.adapter import Adapter, Need, QueryLengths, Runner
from kernels.flashinfer_common import window_left
from kernels.inputs.tensors import token_major
from kernels.problem.dtypes import FP8, HALF, torch_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.problem import Problem

MAX_HEAD_DIM = 256  # smaller ones are padded to 64, 128, 192 or 256; the wheel leaves out pairs of unequal sizes
HEURISTIC = 0  # num_splits: the library chooses
SPLITS_OF_VLLM = 32  # `flash_attn_max_num_splits_for_cuda_graph`: vLLM's limit for steps in a full CUDA graph
MAX_SPLITS = 128  # of the heuristic


@dataclass(frozen=True, kw_only=True)
class FlashAttn3(Adapter):
    name: str = "flash_attn_3"
    query_lengths: QueryLengths = "varlen"
    takes_window: bool = True
    takes_sinks: bool = True
    distributions: tuple[str, ...] = ("tokenspeed-fa3",)
    imports: str = "flash_attn_3"
    extra: str = "fa3"
    is_planned: bool = True  # gets scheduler metadata that was made before
    num_splits: int = HEURISTIC

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        return (
            Need("SM90 (FlashAttention-3)", device.is_sm(9)),
            Need("queries, keys and values of one dtype", p.q_dtype == p.kv_dtype),
            Need("fp16, bf16 or fp8_e4m3", p.q_dtype in HALF | {"fp8_e4m3"}),
            Need("output in the query's dtype, or bf16 with FP8 queries", p.output_dtype == _output_dtype(p)),
            Need("a causal or full mask", p.tree is None),
            Need("equal head_dims of keys and values, up to 256", p.head_dim_qk == p.head_dim_vo <= MAX_HEAD_DIM),
            Need("a head_dim that is a multiple of 8, with FP8 of 16", p.head_dim_qk % (16 if p.q_dtype in FP8 else 8) == 0),
        )

    def extra_bytes(self, problem: Problem) -> int:
        p = problem
        splits = min(MAX_SPLITS, -(-p.s_kv // 64))  # partial outputs and their log-sum-exp, fp32
        return 4 * min(splits * p.num_q_tokens * p.num_qo_heads * (p.head_dim_vo + 1), 2**28)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        p, out, ops = inputs.problem, inputs.empty_output(), _operators()
        k, v = (token_major(p, cache) if p.paged else cache.squeeze(1) for cache in inputs.kv)
        descales = _descales(inputs) if p.q_dtype in FP8 else (None, None, None)
        metadata = _metadata(inputs, self.num_splits) if self.is_planned else None
        by_request = (None, inputs.kv_lens) if p.paged else (inputs.kv_indptr, None)
        window = (window_left(p), 0 if p.window is not None else -1)
        sinks = None if inputs.sinks is None else inputs.sinks.to(torch_dtype(p.output_dtype))

        def launch() -> Any:
            cu_seqlens_k, seqused_k = by_request
            return ops.fwd(
                inputs.q, k, v, None, None, None, out,
                inputs.qo_indptr, cu_seqlens_k, None, None, seqused_k, p.s_qo, max(p.kv_lens),
                inputs.page_table if p.paged else None, None, None, None, None, None,
                *descales, inputs.sm_scale, p.mask == "causal", *window, 0, 0.0, True,
                metadata, self.num_splits, None, 0, sinks,
            )  # fmt: skip

        splits = _splits(launch())
        config = f"num_splits={splits} scheduler_metadata={'given' if self.is_planned else 'made in the call'}"
        return Runner(launch, out, "flash_attn_3", p.q_dtype, kernel_config=config)


def _output_dtype(p: Problem) -> str:
    return "bf16" if p.q_dtype in FP8 else p.q_dtype


@cache
def _operators() -> Any:
    """The library's operators. Its Python functions are not used: they cannot write into an output that is given."""
    import torch

    importlib.import_module("flash_attn_3._C")  # registers them
    return torch.ops.flash_attn_3


def _descales(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Scales of q, k and v, fp32 [B, K] each."""
    import torch

    p = inputs.problem
    shape = (p.batch_size, p.num_kv_heads)
    q, k, v = (torch.full(shape, scale, device=inputs.device) for scale in (1.0, inputs.k_scale, inputs.v_scale))
    return q, k, v


def _metadata(inputs: Inputs, num_splits: int) -> Tensor:
    """The plan of a model step, which all layers share."""
    p = inputs.problem
    window = (window_left(p), 0 if p.window is not None else -1)
    metadata: Tensor = _operators().get_scheduler_metadata(
        p.batch_size, p.s_qo, max(p.kv_lens), p.num_qo_heads, p.num_kv_heads, p.head_dim_qk, p.head_dim_vo, inputs.q.dtype,
        inputs.kv_lens, inputs.qo_indptr, None, None, None, None,
        p.page_size if p.paged else None, 0, p.mask == "causal", *window, 0, False, num_splits, None, 0,
    )  # fmt: skip
    return metadata


def _splits(found: tuple[Tensor, ...]) -> int:
    """How many parts the library made of the keys, at most: the partial outputs of a call have one entry for each."""
    partial = found[2] if len(found) > 2 else None
    return partial.shape[0] if partial is not None and partial.numel() else 1


def _all(routine: str) -> tuple[FlashAttn3, ...]:
    planned = FlashAttn3(routine=routine)
    if routine == "ragged_prefill":
        return (planned,)
    unplanned = FlashAttn3(routine=routine, name="flash_attn_3_unplanned", is_planned=False)
    capped = FlashAttn3(routine=routine, name="flash_attn_3_32_splits", num_splits=SPLITS_OF_VLLM)
    return (planned, unplanned, capped)


ADAPTERS = tuple(adapter for routine in ("paged_decode", "paged_prefill", "ragged_prefill") for adapter in _all(routine))

"""FlashInfer's BatchDecodeWithPagedKVCacheWrapper: CUDA cores, tensor cores, its own choice (`auto`), and cuDNN.

Rules read from flashinfer-python 0.7.2.post1: `decode.py` (plan and run), `data/include/flashinfer/utils.cuh`
(DISPATCH_GQA_GROUP_SIZE), `utils.py` (determine_attention_backend); checked on an H200 (docs/support.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels.adapter import Adapter, Module, Need, QueryLengths, Runner
from kernels.flashinfer_common import (
    CUDNN,
    FLASHINFER,
    WORKSPACE_BYTES,
    attention_module,
    fa2_dtype_needs,
    head_scales,
    needs_causal_drafts,
    needs_equal_head_dims,
    needs_half_output,
    needs_sm80,
    prefill_module,
    window_left,
    workspace,
)
from kernels.problem import default_output
from kernels.problem.dtypes import FP8, HALF

if TYPE_CHECKING:
    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.problem import Problem

CUDA_CORE_GROUPS = frozenset({1, 2, 3, 4, 6, 8, 16})


@dataclass(frozen=True, kw_only=True)
class WrapperDecode(Adapter):
    """What the four backends share: the wrapper, its plan and its call."""

    wrapper_backend: str
    use_tensor_cores: bool = False
    routine: str = "paged_decode"
    query_lengths: QueryLengths = "uniform"
    takes_window: bool = True
    skips_unused: bool = True
    distributions: tuple[str, ...] = FLASHINFER
    imports: str = "flashinfer"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (
            needs_sm80(device),
            needs_equal_head_dims(problem),
            needs_causal_drafts(problem),
            needs_half_output(problem),
        )

    def extra_bytes(self, problem: Problem) -> int:
        return WORKSPACE_BYTES

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        p, out = inputs.problem, inputs.empty_output()
        wrapper = self._wrapper(inputs)
        k, v = inputs.kv
        wrapper.plan(
            inputs.kv_indptr.cpu(),
            inputs.kv_indices,
            inputs.last_page_len.cpu(),
            p.num_qo_heads,
            p.num_kv_heads,
            p.head_dim_qk,
            p.page_size,
            window_left=window_left(p),
            q_data_type=inputs.q.dtype,
            kv_data_type=k.dtype,
            o_data_type=out.dtype,
            sm_scale=inputs.sm_scale,
            block_tables=inputs.page_table if self.wrapper_backend == "cudnn" else None,
            q_len_per_req=p.s_qo,
        )
        resolved = wrapper.resolved_backend
        if resolved == "fa3" and p.q_dtype in FP8:
            scales = head_scales(inputs)
            return Runner(lambda: wrapper.run(inputs.q, (k, v), *scales, out=out), out, resolved, p.q_dtype)
        name = f"{resolved}_tc" if resolved == "fa2" and self.use_tensor_cores else resolved
        # Given v_scale, FlashInfer would launch a second kernel for it. Engines fold it into the next projection.
        compute_dtype = default_output(p.q_dtype)  # FP8 queries are widened
        return Runner(
            lambda: wrapper.run(inputs.q, (k, v), k_scale=inputs.k_scale, out=out), out, name, compute_dtype, inputs.v_scale
        )

    def _wrapper(self, inputs: Inputs) -> Any:
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper

        return BatchDecodeWithPagedKVCacheWrapper(
            workspace(inputs),
            inputs.problem.kv_layout,
            use_cuda_graph=True,
            use_tensor_cores=self.use_tensor_cores,
            paged_kv_indptr_buffer=inputs.kv_indptr.clone(),
            paged_kv_indices_buffer=inputs.kv_indices.clone(),
            paged_kv_last_page_len_buffer=inputs.last_page_len.clone(),
            backend=self.wrapper_backend,
        )


@dataclass(frozen=True, kw_only=True)
class Fa2(WrapperDecode):
    """The decode kernel on CUDA cores. It multiplies in fp32 for every dtype, FP8 queries included."""

    query_lengths: QueryLengths = "single"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        half_queries = p.q_dtype in HALF and p.kv_dtype in FP8 | {p.q_dtype}
        fp8_queries = p.q_dtype in FP8 and p.kv_dtype == p.q_dtype
        return (
            *super().needs(p, device),
            Need("16-bit queries over keys of their dtype or FP8, or FP8 queries over keys of theirs", half_queries or fp8_queries),
            Need("1, 2, 3, 4, 6, 8 or 16 query heads a KV head", p.group_size in CUDA_CORE_GROUPS),
            Need("head_dim 64, 128, 256 or 512", p.head_dim_qk in (64, 128, 256, 512)),
        )

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (attention_module("gen_batch_decode_module", problem),)


@dataclass(frozen=True, kw_only=True)
class Fa2TensorCores(WrapperDecode):
    """The prefill kernel serving decode on tensor cores; with s_qo > 1 its mask is bottom-right causal."""

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (
            *super().needs(problem, device),
            *fa2_dtype_needs(problem),
            Need("head_dim 64, 128 or 256", problem.head_dim_qk in (64, 128, 256)),
        )

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (prefill_module(problem, "fa2"),)


@dataclass(frozen=True, kw_only=True)
class Auto(Fa2TensorCores):
    """FlashInfer's own choice: fa2 on tensor cores for 16-bit queries; on SM90, fa3 if queries and keys are FP8."""

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        if problem.q_dtype not in FP8:
            return super().needs(problem, device)
        return (
            *WrapperDecode.needs(self, problem, device),
            Need("16-bit queries, or SM90, whose fa3 alone takes FP8 queries", device.is_sm(9)),
            Need("with FP8 queries, one query token a request (fa3)", problem.s_qo == 1),
            Need("with FP8 queries, keys and values of the same FP8 dtype", problem.kv_dtype == problem.q_dtype),
            Need("with FP8 queries, head_dim 128 or 256", problem.head_dim_qk in (128, 256)),
        )

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (prefill_module(problem, "fa3" if problem.q_dtype in FP8 else "fa2"),)


@dataclass(frozen=True, kw_only=True)
class Cudnn(WrapperDecode):
    """cuDNN's graph; with s_qo > 1 its mask is bottom-right causal. Compiles nothing ahead."""

    skips_unused: bool = False  # seen on an H200: with drafts, cuDNN multiplies NaN by zero
    distributions: tuple[str, ...] = CUDNN
    imports: str = "flashinfer"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        one_half_dtype = p.q_dtype in HALF and p.q_dtype == p.kv_dtype == p.output_dtype
        return (
            *super().needs(p, device),
            Need("fp16 or bf16 queries, and keys, values and output of the same dtype", one_half_dtype),
            Need("a head_dim that is a multiple of 16 up to 256", p.head_dim_qk % 16 == 0 and p.head_dim_qk <= 256),
        )


ADAPTERS = (
    Fa2(name="fa2", wrapper_backend="fa2"),
    Fa2TensorCores(name="fa2_tc", wrapper_backend="fa2", use_tensor_cores=True),
    Auto(name="auto", wrapper_backend="auto", use_tensor_cores=True),
    Cudnn(name="cudnn", wrapper_backend="cudnn"),
)

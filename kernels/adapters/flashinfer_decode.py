"""FlashInfer's BatchDecodeWithPagedKVCacheWrapper: CUDA cores, tensor cores, its own choice (`auto`), and cuDNN.

Rules read from flashinfer-python 0.7.2.post1: `decode.py` (plan and run), `data/include/flashinfer/utils.cuh`
(DISPATCH_GQA_GROUP_SIZE), `utils.py` (determine_attention_backend); checked on an H200 (docs/support.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from kernels.adapter import Adapter, Module, QueryLengths, Runner
from kernels.dtypes import FP8, HALF
from kernels.flashinfer_common import (
    WORKSPACE_BYTES,
    attention_module,
    fa2_needs,
    head_scales,
    prefill_module,
    window_left,
    workspace,
)
from kernels.problem import default_output

if TYPE_CHECKING:
    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.problem import Problem

CUDA_CORE_GROUPS = frozenset({1, 2, 3, 4, 6, 8, 16})


@dataclass(frozen=True)
class WrapperDecode(Adapter):
    """What the four backends share: the wrapper, its plan and its call."""

    routine: ClassVar[str] = "paged_decode"
    takes_window: ClassVar[bool] = True
    name: str
    wrapper_backend: str
    use_tensor_cores: bool
    query_lengths: QueryLengths = "uniform"

    @property
    def skips_unused(self) -> bool:
        return self.wrapper_backend != "cudnn"  # seen on an H200: drafts of cuDNN multiply NaN with nought

    def needs(self, problem: Problem, device: Device) -> dict[str, bool]:
        return {
            "a CUDA device of SM80 or later": device.kind == "cuda" and device.major >= 8,
            "equal head_dim of keys and values": problem.head_dim_qk == problem.head_dim_vo,
            "causal drafts": problem.s_qo == 1 or problem.mask == "causal",
            "fp16 or bf16 output": problem.output_dtype in HALF,
        }

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
        # A v_scale given here would be multiplied in by a second kernel; engines fold it into the next projection.
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


@dataclass(frozen=True)
class Fa2(WrapperDecode):
    """The decode kernel on CUDA cores, which multiplies in fp32 whatever it reads: FP8 queries too."""

    query_lengths: QueryLengths = "single"

    def needs(self, problem: Problem, device: Device) -> dict[str, bool]:
        half = problem.q_dtype in HALF and problem.kv_dtype in FP8 | {problem.q_dtype}
        return super().needs(problem, device) | {
            "16-bit queries over keys of their dtype or FP8, or FP8 queries over keys of theirs": half
            or (problem.q_dtype in FP8 and problem.kv_dtype == problem.q_dtype),
            "1, 2, 3, 4, 6, 8 or 16 query heads a KV head": problem.group_size in CUDA_CORE_GROUPS,
            "head_dim 64, 128, 256 or 512": problem.head_dim_qk in (64, 128, 256, 512),
        }

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (attention_module("gen_batch_decode_module", problem),)


@dataclass(frozen=True)
class Fa2TensorCores(WrapperDecode):
    """The prefill kernel serving decode on tensor cores; with s_qo > 1 its mask is bottom-right causal."""

    def needs(self, problem: Problem, device: Device) -> dict[str, bool]:
        return (
            super().needs(problem, device)
            | fa2_needs(problem, device)
            | {
                "head_dim 64, 128 or 256": problem.head_dim_qk in (64, 128, 256),
            }
        )

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (prefill_module(problem, "fa2"),)


@dataclass(frozen=True)
class Auto(Fa2TensorCores):
    """FlashInfer's own choice: fa2 on tensor cores for 16-bit queries; on SM90 fa3 where queries and keys are FP8."""

    def needs(self, problem: Problem, device: Device) -> dict[str, bool]:
        if problem.q_dtype not in FP8:
            return super().needs(problem, device)
        return WrapperDecode.needs(self, problem, device) | {
            "16-bit queries, or SM90, whose fa3 alone takes FP8 queries": device.is_sm(9),
            "with FP8 queries, one query token a request (fa3)": problem.s_qo == 1,
            "with FP8 queries, keys and values of the same FP8 dtype": problem.kv_dtype == problem.q_dtype,
            "with FP8 queries, head_dim 128 or 256": problem.head_dim_qk in (128, 256),
        }

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (prefill_module(problem, "fa3" if problem.q_dtype in FP8 else "fa2"),)


@dataclass(frozen=True)
class Cudnn(WrapperDecode):
    """cuDNN's graph; with s_qo > 1 its mask is bottom-right causal. Compiles nothing ahead."""

    def needs(self, problem: Problem, device: Device) -> dict[str, bool]:
        one_dtype = problem.q_dtype == problem.kv_dtype == problem.output_dtype
        return super().needs(problem, device) | {
            "fp16 or bf16 queries, and keys, values and output of the same dtype": problem.q_dtype in HALF and one_dtype,
            "a head_dim that is a multiple of 16 up to 256": problem.head_dim_qk % 16 == 0 and problem.head_dim_qk <= 256,
        }


ADAPTERS = (
    Fa2("fa2", wrapper_backend="fa2", use_tensor_cores=False),
    Fa2TensorCores("fa2_tc", wrapper_backend="fa2", use_tensor_cores=True),
    Auto("auto", wrapper_backend="auto", use_tensor_cores=True),
    Cudnn("cudnn", wrapper_backend="cudnn", use_tensor_cores=False),
)

"""FlashInfer's prefill wrappers: fa2, fa3, its own choice (`auto`), cuDNN and CUTLASS; over pages (a draft to verify) and ragged.

Rules read from flashinfer-python 0.7.2.post1: `prefill.py` (plan and run of both wrappers), `utils.py`
(determine_attention_backend); checked on an H200 (docs/support.md).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels.adapter import Adapter, Module, Need, QueryLengths, Runner
from kernels.flashinfer_common import (
    CUDNN,
    FLASHINFER,
    WORKSPACE_BYTES,
    attention_module,
    fa2_dtype_needs,
    fa3_needs,
    head_scales,
    needs_half_output,
    needs_no_tree,
    needs_sm80,
    prefill_module,
    resolves_to_fa3,
    window_left,
    workspace,
)
from kernels.inputs.masks import flat_custom
from kernels.problem.dtypes import FP8, HALF, torch_dtype

if TYPE_CHECKING:
    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.problem import Problem

Run = Callable[..., object]
FA2_HEAD_DIMS = frozenset({(64, 64), (128, 128), (256, 256), (192, 128)})


@dataclass(frozen=True, kw_only=True)
class WrapperPrefill(Adapter):
    """What the backends share: the rule of each kernel, the plan, the call."""

    query_lengths: QueryLengths = "varlen"
    takes_window: bool = True
    skips_unused: bool = True
    distributions: tuple[str, ...] = FLASHINFER
    imports: str = "flashinfer"

    @abstractmethod
    def plan(self, inputs: Inputs) -> tuple[Any, Run]:
        """A planned wrapper, and its call on these inputs."""

    def kernel(self, problem: Problem, device: Device) -> str:
        """The kernel that serves this problem: the backend's own, or what `auto` resolves to."""
        if self.name != "auto":
            return self.name
        return "fa3" if resolves_to_fa3(problem, device) else "fa2"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        rules = {"fa2": self._fa2, "fa3": self._fa3, "cudnn": self._cudnn, "cutlass": self._cutlass}
        return rules[self.kernel(problem, device)](problem, device)

    def _fa2(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (
            needs_sm80(device),
            *fa2_dtype_needs(problem),
            needs_half_output(problem),
            Need("head_dims 64, 128, 256 or 192/128", (problem.head_dim_qk, problem.head_dim_vo) in FA2_HEAD_DIMS),
            _needs_equal_head_dims_in_pages(problem),
        )

    def _fa3(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (*fa3_needs(problem, device), needs_no_tree(problem), _needs_equal_head_dims_in_pages(problem))

    def _cudnn(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        dims = (problem.head_dim_qk, problem.head_dim_vo)
        equal = dims[0] == dims[1] and dims[0] % 16 == 0 and dims[0] <= 256
        ragged_deepseek = not problem.paged and dims == (192, 128)
        return (
            needs_sm80(device),
            _needs_one_half_dtype(problem),
            needs_no_tree(problem),
            Need("a head_dim that is a multiple of 16 up to 256, or 192/128 without pages", equal or ragged_deepseek),
        )

    def _cutlass(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        dims = (problem.head_dim_qk, problem.head_dim_vo)
        return (
            Need("SM100 family or SM110 (cutlass)", device.is_sm(10, 11)),
            _needs_one_half_dtype(problem),
            needs_no_tree(problem),
            Need("head_dims 64, 128 or 192/128", dims in ((64, 64), (128, 128), (192, 128))),
        )

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        kernel = self.kernel(problem, device)
        if kernel == "cutlass":
            return (attention_module("gen_fmha_cutlass_sm100a_module", problem),)
        return () if kernel == "cudnn" else (prefill_module(problem, kernel),)

    def extra_bytes(self, problem: Problem) -> int:
        flat_mask = sum(q * kv for q, kv in zip(problem.q_lens, problem.kv_lens, strict=True)) if problem.tree else 0
        return WORKSPACE_BYTES + 2 * flat_mask

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        p = inputs.problem
        out = inputs.empty_output()
        wrapper, run = self.plan(inputs)
        resolved = str(wrapper._backend)  # what `auto` became, read after the plan
        if p.q_dtype in FP8 and resolved == "fa3":
            scales = head_scales(inputs)
            return Runner(lambda: run(*scales, out=out), out, resolved, p.q_dtype)
        # Given v_scale, FlashInfer would launch a second kernel for it. Engines fold it into the next projection.
        k_scale = None if resolved == "cudnn" else inputs.k_scale  # with one, cuDNN's wrapper leaves its planned path
        return Runner(lambda: run(k_scale=k_scale, out=out), out, resolved, p.output_dtype, inputs.v_scale)


def _needs_equal_head_dims_in_pages(problem: Problem) -> Need:
    return Need("equal head_dim of keys and values in pages", not problem.paged or problem.head_dim_qk == problem.head_dim_vo)


def _needs_one_half_dtype(problem: Problem) -> Need:
    one_half_dtype = problem.q_dtype in HALF and problem.q_dtype == problem.kv_dtype == problem.output_dtype
    return Need("fp16 or bf16 queries, and keys, values and output of the same dtype", one_half_dtype)


@dataclass(frozen=True, kw_only=True)
class PagedPrefill(WrapperPrefill):
    """The keys of the draft are in the pages already. The wrapper is used as engines use it under CUDA graphs."""

    routine: str = "paged_prefill"

    def plan(self, inputs: Inputs) -> tuple[Any, Run]:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        p, k = inputs.problem, inputs.kv[0]
        custom = flat_custom(p, inputs.device) if p.tree is not None else None
        reserved = {} if custom is None else _mask_buffers(custom, inputs)
        wrapper = BatchPrefillWithPagedKVCacheWrapper(
            workspace(inputs),
            p.kv_layout,
            use_cuda_graph=True,
            qo_indptr_buf=inputs.qo_indptr.clone(),
            paged_kv_indptr_buf=inputs.kv_indptr.clone(),
            paged_kv_indices_buf=inputs.kv_indices.clone(),
            paged_kv_last_page_len_buf=inputs.last_page_len.clone(),
            backend=self.name,
            **reserved,
        )
        wrapper.plan(
            inputs.qo_indptr.cpu(),
            inputs.kv_indptr.cpu(),
            inputs.kv_indices,
            inputs.last_page_len.cpu(),
            p.num_qo_heads,
            p.num_kv_heads,
            p.head_dim_qk,
            p.page_size,
            causal=p.mask == "causal",
            custom_mask=custom,
            sm_scale=inputs.sm_scale,
            window_left=window_left(p),
            q_data_type=inputs.q.dtype,
            kv_data_type=k.dtype,
            o_data_type=torch_dtype(p.output_dtype),
            block_tables=inputs.page_table if self.name == "cudnn" else None,
            uniform_q_len=p.s_qo if p.min_s_qo is None else None,
        )
        return wrapper, lambda *args, **kwargs: wrapper.run(inputs.q, inputs.kv, *args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class RaggedPrefill(WrapperPrefill):
    """Keys and values are consecutive tokens. The wrapper is planned without CUDA graphs, as engines run prompts."""

    routine: str = "ragged_prefill"

    def plan(self, inputs: Inputs) -> tuple[Any, Run]:
        from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

        p = inputs.problem
        k, v = (cache.squeeze(1) for cache in inputs.kv)
        wrapper = BatchPrefillWithRaggedKVCacheWrapper(workspace(inputs), "NHD", backend=self.name)
        wrapper.plan(
            inputs.qo_indptr,
            inputs.kv_indptr,
            p.num_qo_heads,
            p.num_kv_heads,
            p.head_dim_qk,
            p.head_dim_vo,
            causal=p.mask == "causal",
            custom_mask=flat_custom(p, inputs.device) if p.tree is not None else None,
            sm_scale=inputs.sm_scale,
            window_left=window_left(p),
            q_data_type=inputs.q.dtype,
            kv_data_type=k.dtype,
            o_data_type=torch_dtype(p.output_dtype),
        )
        return wrapper, lambda *args, **kwargs: wrapper.run(inputs.q, k, v, *args, **kwargs)


def _mask_buffers(custom: Any, inputs: Inputs) -> dict[str, Any]:
    """Buffers for a CUDA-graph wrapper's packed mask: one bit a pair, each request starts a new byte."""
    import torch

    size = custom.numel() // 8 + inputs.problem.batch_size
    return {
        "custom_mask_buf": torch.empty(size, dtype=torch.uint8, device=inputs.device),
        "mask_indptr_buf": torch.empty(inputs.problem.batch_size + 1, dtype=torch.int32, device=inputs.device),
    }


def _all(kind: Callable[..., WrapperPrefill]) -> tuple[WrapperPrefill, ...]:
    """The backends that both wrappers have. Seen on an H200: with drafts, cuDNN multiplies NaN by zero."""
    fa = (kind(name=name) for name in ("fa2", "fa3", "auto"))
    return (*fa, kind(name="cudnn", takes_window=False, skips_unused=False, distributions=CUDNN))


ADAPTERS = (*_all(PagedPrefill), *_all(RaggedPrefill), RaggedPrefill(name="cutlass", takes_window=False))

"""FlashInfer's wrappers as several adapters use them: made for a shape, planned for a batch, and with attention sinks.

A sink is a logit in natural units, fp32 [H], to which no softmax scale is applied: both variants multiply it by log2(e).

Read from flashinfer-python 0.7.2.post1: `prefill.py` (both wrappers), `attention/_core.py`
(BatchAttentionWithAttentionSinkWrapper), `jit/attention/variants.py` (attention_sink_decl), `jit/attention/modules.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernels.adapter import Adapter, Device, Inputs, Module, Need, Problem, Runner
from kernels.inputs.masks import flat_custom
from kernels.inputs.step_lengths import HostLengths
from kernels.lazy import Tensor, torch
from kernels.libraries import flashinfer_calls as calls
from kernels.libraries import flashinfer_common as common
from kernels.libraries.flashinfer_modules import flashinfer_module
from kernels.problem.dtypes import HALF, torch_dtype
from kernels.problem.padded import has_empty

ONLY_LENGTHS = frozenset({"s_kv", "seq_lens", "batch_spec", "seed", "page_order"})  # keys that a plan alone reads


def needs_no_tree_with_sinks(problem: Problem) -> Need:
    """fa2's variant with attention sinks: its mask is causal, full or a window, and no custom one."""
    return Need("with attention sinks, a causal or full mask", not problem.sinks or not problem.has_custom_mask)


def needs_16_bits_with_sinks(problem: Problem) -> Need:
    """fa3's variant with attention sinks: its sources for FP8 queries are other ones (`fp8_enabled=False`)."""
    return Need("with attention sinks, fp16 or bf16 queries", not problem.sinks or problem.q_dtype in HALF)


def needs_no_cap_with_sinks(problem: Problem) -> Need:
    """The variants with attention sinks have logits of their own, and none with a soft cap (`jit/attention/variants.py`)."""
    return Need("with attention sinks, no soft cap", not problem.sinks or problem.soft_cap is None)


def sink_module(problem: Problem, kernel: str) -> Module:
    p = problem
    dtypes, dims = (p.q_dtype, p.kv_dtype, p.output_dtype, "int32"), (p.head_dim_qk, p.head_dim_vo)
    key = (kernel, *dtypes, *dims, common.NO_POSITION_ENCODING, p.window is not None)
    return flashinfer_module("attention.modules:gen_batch_prefill_attention_sink_module", key)


def sink_variant(problem: Problem, kernel: str) -> dict[str, Any]:
    """What makes a prefill wrapper load `sink_module`: the arguments that BatchAttentionWithAttentionSinkWrapper makes of its own.

    That class names a module by the query's dtype, the window and the kernel alone, so modules of two head_dims or two cache dtypes
    have one name, one file, and one handle in a process. The name here is FlashInfer's own for modules that are compiled ahead.
    """
    from flashinfer.jit.attention.modules import gen_customize_batch_prefill_module, get_batch_prefill_attention_sink_uri
    from flashinfer.jit.attention.variants import attention_sink_decl

    p, dims = problem, (problem.head_dim_qk, problem.head_dim_vo)
    q, kv, out, index = (torch_dtype(name) for name in (p.q_dtype, p.kv_dtype, p.output_dtype, "int32"))
    position, windowed = common.NO_POSITION_ENCODING, p.window is not None
    uri = get_batch_prefill_attention_sink_uri(kernel, q, kv, out, index, *dims, position, windowed)
    scalars, tensors = (["sm_scale"], ["double"]), (["sink"], ["float"])
    given: dict[str, Any] = {"use_sliding_window": windowed, "use_fp16_qk_reduction": False, "pos_encoding_mode": position}
    given |= {"paged_kv_stride_mode": "independent" if kernel == "fa2" else "runtime", "module_surface": "full"}
    return {
        "backend": kernel,
        "jit_args": [uri, q, kv, out, index, *dims, *tensors, *scalars, "AttentionSink", attention_sink_decl[kernel]],
        "jit_kwargs": calls.fitted(gen_customize_batch_prefill_module, given),  # which the wrapper hands them to
    }


def decode_wrapper(inputs: Inputs, backend: str, use_tensor_cores: bool, pages: tuple[Tensor, ...] = ()) -> Any:
    """A wrapper of paged decode, as engines use it under CUDA graphs, for batches of these shapes. Not planned yet.

    `pages` are their offsets, numbers and last lengths, if they are not all of the inputs' own.
    """
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    indptr, indices, last = pages or (inputs.kv_indptr, inputs.kv_indices, inputs.last_page_len)
    return BatchDecodeWithPagedKVCacheWrapper(
        common.workspace(inputs, common.split_workspace_bytes(inputs.problem)), inputs.problem.kv_layout, use_cuda_graph=True,
        use_tensor_cores=use_tensor_cores, paged_kv_indptr_buffer=indptr.clone(), paged_kv_indices_buffer=indices.clone(),
        paged_kv_last_page_len_buffer=last.clone(), backend=backend,
    )  # fmt: skip


def needs_tokens_for_drafts(problem: Problem) -> Need:
    """The decode wrapper's plan refuses several query tokens of a request that has fewer KV tokens, whatever its kernel.

    "the verified tokens must already be appended to the KV cache" (`decode.py`, plan). One query token over none is planned.
    """
    is_met = problem.s_qo == 1 or not (has_empty(problem) or problem.lacks_keys)
    return Need("for drafts, a token of every request (graph_fill=1, no s0 in batch_spec)", is_met)


def needs_tokens_with_sinks(problem: Problem) -> Need:
    """Sinks are served by the wrapper of prefill, whose call refuses more rows of queries than were planned (`prefill.py`, run)."""
    return Need("with attention sinks, padded requests with tokens (graph_fill=1)", not has_empty(problem))


def plan_decode(wrapper: Any, inputs: Inputs, lengths: HostLengths, table: Tensor | None, **more: object) -> None:
    """Plans a decode wrapper for these lengths of a batch. Without a page table the wrapper makes one where its kernel needs it."""
    p = inputs.problem
    calls.plan(
        wrapper, *_pages_and_heads(inputs, lengths), q_dtype=inputs.q.dtype, **scale_window_dtypes(inputs), block_tables=table,
        q_len_per_req=p.s_qo, **more,
    )  # fmt: skip


def paged_wrapper(inputs: Inputs, backend: str, kernel: str) -> Any:
    """A wrapper of paged prefill, as engines use it under CUDA graphs, for batches of these shapes. Not planned yet.

    `kernel` is what `backend` resolves to; with attention sinks the wrapper is given it, since a variant has no `auto`.
    """
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    p = inputs.problem
    return BatchPrefillWithPagedKVCacheWrapper(
        common.workspace(inputs, common.split_workspace_bytes(p)), p.kv_layout, use_cuda_graph=True,
        qo_indptr_buf=inputs.qo_indptr.clone(), paged_kv_indptr_buf=inputs.kv_indptr.clone(),
        paged_kv_indices_buf=inputs.kv_indices.clone(), paged_kv_last_page_len_buf=inputs.last_page_len.clone(),
        **(sink_variant(p, kernel) if has_variant(p, kernel) else {"backend": backend}),
        **(_mask_buffers(inputs) if p.has_custom_mask else {}),
    )  # fmt: skip


def plan_paged(wrapper: Any, inputs: Inputs, lengths: HostLengths) -> None:
    p, of_cudnn = inputs.problem, wrapper._backend == "cudnn"
    calls.plan(
        wrapper, lengths.qo_indptr, *_pages_and_heads(inputs, lengths), q_dtype=inputs.q.dtype, **prefill_plan(inputs),
        block_tables=inputs.page_table if of_cudnn else None, max_sequence_kv=p.max_seq_len if of_cudnn else None,
        uniform_q_len=p.s_qo if p.min_s_qo is None and not has_empty(p) else None,  # else the plan refuses the offsets
    )  # fmt: skip


def prefill_plan(inputs: Inputs) -> dict[str, Any]:
    """What the plans of both prefill wrappers take by name, over pages and without."""
    p = inputs.problem
    custom = flat_custom(p, inputs.device) if p.has_custom_mask else None
    return {"causal": p.mask == "causal", "custom_mask": custom, **scale_window_dtypes(inputs)}


def _pages_and_heads(inputs: Inputs, lengths: HostLengths) -> tuple[Tensor | int, ...]:
    """What the plans of both wrappers over pages take by place, behind the query offsets of prefill."""
    p = inputs.problem
    pages = (lengths.kv_indptr, inputs.kv_indices[: lengths.num_pages], lengths.last_page_len)
    return (*pages, p.num_qo_heads, p.num_kv_heads, p.head_dim_qk, p.page_size)


def scale_window_dtypes(inputs: Inputs) -> dict[str, Any]:
    """What the plans of all these wrappers take by name."""
    return {
        "sm_scale": inputs.sm_scale, **common.soft_cap_argument(inputs.problem),
        "window_left": common.window_left(inputs.problem), "q_data_type": inputs.q.dtype, "kv_data_type": inputs.kv[0].dtype,
        "o_data_type": torch_dtype(inputs.problem.output_dtype),
    }  # fmt: skip


def has_variant(problem: Problem, kernel: str) -> bool:
    """Whether a problem runs on the variant with attention sinks: if it has some, and this kernel has the variant."""
    return problem.sinks and kernel in ("fa2", "fa3")


def _mask_buffers(inputs: Inputs) -> dict[str, Any]:
    """Buffers for a CUDA-graph wrapper's packed mask: one bit a pair, each request starts a new byte."""
    p = inputs.problem
    size = mask_bits(p) // 8 + p.batch_size
    return {
        "custom_mask_buf": torch.empty(size, dtype=torch.uint8, device=inputs.device),
        "mask_indptr_buf": torch.empty(p.batch_size + 1, dtype=torch.int32, device=inputs.device),
    }


def mask_bits(problem: Problem) -> int:
    """Pairs of a query and a key, over all requests."""
    return sum(q * kv for q, kv in zip(problem.q_lens, problem.kv_lens, strict=True))


def prepared(adapter: Adapter, planned: Callable[[Inputs], Runner], inputs: Inputs, device: Device) -> Runner:
    """A runner by `planned`, which plans what was made for these inputs. It plans that again for other lengths, if they fit."""

    def plan_again(batch: Inputs) -> Runner:
        return planned(batch) if can_plan_again(inputs.problem, batch.problem) else adapter.prepare(batch, device)

    return replace(planned(inputs), plan_again=plan_again)


def can_plan_again(planned: Problem, batch: Problem) -> bool:
    """Whether a wrapper that was made and planned for one batch may be planned again for another one.

    Only its KV lengths may differ: the query lengths are part of a captured graph, and `auto` keeps what the first plan chose
    (`if self._backend == "auto"` in both paged wrappers; MLA's keeps its kernel under CUDA graphs). Buffers have the first size.
    """
    kept = [p.model_dump(exclude=set(ONLY_LENGTHS)) for p in (planned, batch)]
    fits = batch.num_pages <= planned.num_pages and mask_bits(batch) <= mask_bits(planned)
    return kept[0] == kept[1] and batch.q_lens == planned.q_lens and fits

"""The two levels of a shared prefix on FlashInfer's wrappers: what each reads, and a wrapper for it that is planned for batches.

Read from flashinfer-python 0.7.2.post1, `prefill.py` and `decode.py`.
"""

# B = batch_size

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from kernels.libraries import flashinfer_wrappers
from kernels.libraries.flashinfer_calls import plan
from kernels.libraries.flashinfer_common import soft_cap_argument, split_workspace_bytes, workspace
from kernels.problem.dtypes import torch_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.inputs import Inputs
    from kernels.problem import Problem

Kernel = Literal["fa2", "fa3"]
Call = Callable[..., object]


@dataclass(frozen=True)
class Level:
    """What one call reads, int32 on the device: queries and pages [requests + 1], page numbers, and last page lengths."""

    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    last_page_len: Tensor

    @property
    def in_order(self) -> tuple[Tensor, ...]:
        return self.qo_indptr, self.kv_indptr, self.kv_indices, self.last_page_len


def levels(inputs: Inputs) -> tuple[Level, Level]:
    """The shared prefix with all queries as one request, and the rest of each request."""
    import torch

    p, device = inputs.problem, inputs.device
    n = p.prefix_pages
    pair = partial(torch.tensor, dtype=torch.int32, device=device)
    prefix = Level(pair([0, p.num_q_tokens]), pair([0, n]), inputs.page_table[0, :n].contiguous(), pair([p.page_size]))
    request = torch.arange(p.batch_size + 1, device=device, dtype=torch.int32)
    own = torch.cat([inputs.kv_indices[start + n : stop] for start, stop in pairwise(inputs.kv_indptr.tolist())])
    return prefix, Level(inputs.qo_indptr, inputs.kv_indptr - request * n, own, inputs.last_page_len)


def by_kind(inputs: Inputs) -> list[list[Tensor]]:
    """What both levels read, as FlashInfer's own composition takes it: a list of each kind of tensor."""
    return [list(tensors) for tensors in zip(*(level.in_order for level in levels(inputs)), strict=True)]


def prefill_wrapper(inputs: Inputs, level: Level, kernel: Kernel) -> Any:
    """A prefill wrapper for levels of these shapes, not planned yet."""
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    buffers = ("qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")
    reserved = {name: tensor.clone() for name, tensor in zip(buffers, level.in_order, strict=True)}
    scratch, layout = workspace(inputs, split_workspace_bytes(inputs.problem)), inputs.problem.kv_layout
    return BatchPrefillWithPagedKVCacheWrapper(scratch, layout, use_cuda_graph=True, backend=kernel, **reserved)


def plan_prefill(wrapper: Any, inputs: Inputs, level: Level, *, causal: bool) -> Call:
    """Plans a prefill wrapper for a level, and gives its call."""
    p = inputs.problem
    plan(
        wrapper,
        level.qo_indptr.cpu(),
        level.kv_indptr.cpu(),
        level.kv_indices,
        level.last_page_len.cpu(),
        *heads(p),
        causal=causal,
        q_dtype=inputs.q.dtype,
        **dtypes_and_scale(inputs),
        o_data_type=torch_dtype(p.output_dtype),
    )
    return partial(wrapper.run, inputs.q, inputs.kv, k_scale=inputs.k_scale)


def decode_wrapper(inputs: Inputs, level: Level) -> Any:
    """A decode wrapper on tensor cores for levels of these shapes, not planned yet."""
    return flashinfer_wrappers.decode_wrapper(inputs, "fa2", use_tensor_cores=True, pages=level.in_order[1:])


def plan_decode(wrapper: Any, inputs: Inputs, level: Level) -> Call:
    """Plans a decode wrapper for a level, and gives its call."""
    p = inputs.problem
    plan(
        wrapper,
        level.kv_indptr.cpu(),
        level.kv_indices,
        level.last_page_len.cpu(),
        *heads(p),
        q_dtype=inputs.q.dtype,
        **dtypes_and_scale(inputs),
        o_data_type=torch_dtype(p.output_dtype),
        q_len_per_req=p.s_qo,
    )
    return partial(wrapper.run, inputs.q, inputs.kv, k_scale=inputs.k_scale)


def heads(p: Problem) -> tuple[int, int, int, int]:
    return p.num_qo_heads, p.num_kv_heads, p.head_dim_qk, p.page_size


def dtypes_and_scale(inputs: Inputs) -> dict[str, Any]:
    cap = soft_cap_argument(inputs.problem)
    return {"sm_scale": inputs.sm_scale, **cap, "q_data_type": inputs.q.dtype, "kv_data_type": inputs.kv[0].dtype}

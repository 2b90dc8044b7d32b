"""PyTorch's scaled_dot_product_attention over a contiguous copy of the cache, on CPU and GPU: the baseline without paging.

Pages are gathered once, before anything is timed. The query heads of a group become rows of one KV head, so keys and values are
read once, and not once per query head.
"""

# B = batch_size, Q = s_qo, H = num_qo_heads, K = stored KV heads, G = H / K, D = head_dim, S = s_kv

from __future__ import annotations

from dataclasses import dataclass

from kernels.adapter import Adapter, Device, EngineMaximum, Inputs, Need, QueryLengths, Runner
from kernels.inputs.copies import CopiedCache
from kernels.inputs.masks import hidden
from kernels.lazy import Tensor, torch
from kernels.problem import ROUTINES, Problem
from kernels.problem.dtypes import HALF, size_bytes
from kernels.problem.features import Feature

PASSES: frozenset[Feature] = frozenset(
    {"a sliding window", "a full mask", "a prefix mask", "a tree of drafts", "an output of another dtype"}
)


@dataclass(frozen=True, kw_only=True)
class TorchSdpa(Adapter):
    """SDPA on gathered tokens, of any routine that attends: it never reads an unused slot."""

    name: str = "torch_sdpa"
    query_lengths: QueryLengths = "uniform"
    takes_window: bool = True
    takes_two_sided_window: bool = True
    takes_prefix_mask: bool = True
    takes_more_queries: bool = True
    max_seq_len: EngineMaximum = "unread"
    skips_unused: bool = True
    copies_cache: bool = True
    distributions: tuple[str, ...] = ("torch",)
    passes: frozenset[Feature] | None = PASSES

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        return (
            Need("fp32, fp16 or bf16 queries", p.q_dtype in HALF | {"fp32"}),
            Need("keys, values and output of the query's dtype", p.kv_dtype == p.output_dtype == p.q_dtype),
            Need("the same KV length for every request", p.seq_lens == "fixed"),
        )

    def workspace_bytes(self, problem: Problem) -> int:
        bias = 0 if _sees_all(problem) else 3 * problem.s_qo * problem.group_size * problem.s_kv
        copied = max(problem.input_bytes, problem.unshared_bytes)  # a shared prefix is copied for each request
        gathered = max(copied, 2 * copied // problem.batch_size)  # of one request at a time: its pages, and they by head
        return copied + gathered + size_bytes(problem.q_dtype, bias)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from torch.nn.functional import scaled_dot_product_attention

        p, out = inputs.problem, inputs.empty_output()
        copied = CopiedCache(inputs)
        by_group = (p.batch_size, p.s_qo, p.stored_kv_heads, p.group_size, -1)
        q = inputs.q.view(by_group).permute(0, 2, 3, 1, 4)
        as_rows = (p.batch_size, p.stored_kv_heads, p.group_size * p.s_qo, -1)  # [B, K, G*Q, D]
        bias = _bias(inputs)
        out_rows = out.view(by_group).permute(0, 2, 3, 1, 4)

        def launch() -> None:
            result = scaled_dot_product_attention(q.reshape(as_rows), copied.k, copied.v, attn_mask=bias, scale=inputs.sm_scale)
            out_rows.copy_(result.view(out_rows.shape))

        return Runner(launch, out, f"torch_sdpa_{inputs.device.type}", p.q_dtype, copies=(copied,))


def _sees_all(p: Problem) -> bool:
    return p.window is None and (p.s_qo == 1 or p.mask == "full")


def _bias(inputs: Inputs) -> Tensor | None:
    """Additive mask [1, 1, G*Q, S], None where every query sees every key."""
    p = inputs.problem
    unseen = None if _sees_all(p) else hidden(p, 0, range(p.s_qo), range(p.s_kv), inputs.device)
    if unseen is None:
        return None
    # A row length that is a multiple of 8 elements lets the GPU take its fused kernel.
    width = -(-p.s_kv // 8) * 8
    bias = torch.zeros(p.group_size, p.s_qo, width, dtype=inputs.q.dtype, device=inputs.device)
    bias[:, :, : p.s_kv].masked_fill_(unseen, float("-inf"))
    return bias.flatten(0, 1)[None, None, :, : p.s_kv]


ADAPTERS = tuple(TorchSdpa(routine=routine) for routine in ROUTINES if routine != "merge_states")  # which gets states, not keys

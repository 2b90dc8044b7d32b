"""Computes the sums of the reference in one Triton kernel, which reads keys and values once. For CUDA devices.

Operands are stored in 16 bits or fewer, so a tensor core multiplies them exactly, and it adds in fp32. Weights are in fp32: each is
multiplied in three parts of 8 bits or more, of 24 together. A split of `SPLIT` keys is summed by itself, so no sum is of more than
`SPLIT / 16` steps; splits are merged in fp32. `oracle.answer` compares a request of each problem with torch's sums in fp32.
"""

# N = requests of equal lengths, K = stored KV heads, M = N * K, R = rows of a KV head, D = head_dim_vo

from __future__ import annotations

from kernels.check import fused
from kernels.inputs import Inputs
from kernels.inputs.tensors import token_major
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.dtypes import HALF

SPLIT, TILE, ROWS = 4096, 64, (32, 64)  # keys of a split at most, keys at a time, rows of a program
PROGRAMS = 1024  # that occupy a GPU
PARTIAL_BYTES = 2**29  # of the sums of all splits


def serves(inputs: Inputs) -> bool:
    """Whether the kernel can read this cache, and multiplies its operands exactly. A soft cap is left to torch's tanh."""
    p = inputs.problem
    return fused.serves(inputs) and p.soft_cap is None and p.mask != "prefix" and len({p.q_dtype, p.kv_dtype} & HALF) <= 1


def requests_at_once(p: Problem, rows: int, length: int) -> int:
    """Requests of so many query tokens and keys whose sums fit into `PARTIAL_BYTES`."""
    bytes_each = 4 * -(-length // SPLIT) * rows * p.num_qo_heads * (p.value_dim + 3)
    return max(1, min(PARTIAL_BYTES // bytes_each, fused.MAX_HEADS // p.stored_kv_heads))


def split_sums(inputs: Inputs, q: Tensor, requests: tuple[int, ...], rows: range, keys: range) -> tuple[Tensor, ...]:
    """Over each split of these keys, for query tokens `q` [M, R, D_qk] as stored: the sums of values by weight
    [M, splits, R, D], and the largest logit, the sum of weights, and that of w^2 |v|^2, [M, splits, R, 1] each.
    """
    from kernels.check.fused_kernel import attend_split

    p, (num, count, _) = inputs.problem, q.shape
    block = ROWS[count > ROWS[0]]  # few sizes, since each is compiled
    blocks, tiles = -(-count // block), -(-len(keys) // TILE)
    splits = max(-(-len(keys) // SPLIT), min(tiles, PROGRAMS // (num * blocks)), 1)
    step = -(-tiles // splits) * TILE
    splits = -(-len(keys) // step)
    k, v = (token_major(p, cache) for cache in inputs.kv)
    sums, of_rows = (torch.empty(shape, device=q.device) for shape in ((num, splits, count, p.value_dim), (3, num, splits, count)))
    before = p.kv_lens[requests[0]] - p.q_lens[requests[0]]
    attend_split[(splits, num, blocks)](
        k, v, inputs.page_table, torch.tensor(requests, dtype=torch.int32).to(q.device, non_blocking=True),
        q.to(torch.float16 if "fp16" in (p.q_dtype, p.kv_dtype) else torch.bfloat16),
        inputs.visible.view(torch.uint8) if p.tree is not None else inputs.page_table, sums, of_rows,
        inputs.sm_scale * inputs.k_scale, keys.start, keys.stop, step, splits, before, rows.start, len(rows), count, p.window or 0,
        p.s_qo, p.stored_kv_heads, p.slots_per_page, inputs.page_table.stride(0), *k.stride()[:3], *v.stride()[:3],
        KEY_DIM=p.key_dim, KEY_WIDTH=fused.power_of_two(p.key_dim),
        VALUE_DIM=p.value_dim, VALUE_WIDTH=fused.power_of_two(p.value_dim), TILE=TILE, ROWS=block,
        TREE=p.tree is not None, CAUSAL=p.tree is None and p.mask == "causal", WINDOW=p.window is not None,
        num_warps=8 if max(p.key_dim, p.value_dim) > 128 else 4, num_stages=1,
    )  # fmt: skip
    return sums, *of_rows.unsqueeze(-1)

"""Computes the sums of `weighing.py` in one Triton kernel, which reads keys and values once. For CUDA devices.

It gives what `_sums` of that file gives, from the same formulas. `tests/gpu/test_fused_gpu.py` compares the two.
"""

# N = requests of equal lengths, K = stored KV heads, M = N * K, R = rows of a KV head, D = head_dim

from __future__ import annotations

from functools import cache

from kernels.check.estimates import MAX_BLOCK, Rows
from kernels.inputs import Inputs
from kernels.inputs.checksums import triton_works
from kernels.inputs.tensors import token_major
from kernels.lazy import Tensor, torch
from kernels.problem.dtypes import FP8, HALF

TILE = 64  # keys of a program
MAX_HEAD_DIM = 256
LEVELS = ((0, 16), (16, 24), (24, 28), (28, 30), (30, 31))  # where a tile has its blocks of 4, 8, ... TILE keys
BLOCKS = 32  # 31 blocks of a tile, padded to a power of 2
ROWS = 16  # of a KV head in one iteration
MAX_HEADS = 65_535  # KV heads of all requests in a launch: the second dimension of a CUDA grid


def serves(inputs: Inputs) -> bool:
    """Whether the kernel can read this cache. Another one is weighed by torch."""
    p = inputs.problem
    if inputs.device.type != "cuda" or p.latent or inputs.kv_scales is not None or not triton_works(inputs.device.index or 0):
        return False
    able = HALF | FP8 if torch.cuda.get_device_capability(inputs.device) >= (8, 9) else HALF
    return {p.q_dtype, p.kv_dtype} <= able and max(p.key_dim, p.value_dim) <= MAX_HEAD_DIM


def tile_sums(inputs: Inputs, rows: Rows, keys: range, single: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over these rows and keys, which are padded with absent ones to whole tiles.

    Those of single keys are written into the first columns of `single` [4, M, all blocks], in the order of `weighing._sums`.
    Returned are B and the largest weight in any row of the blocks in LEVELS, [2, M, tiles, BLOCKS], and the weight and g of each
    tile in each row, [2, M, R, tiles].
    """
    from kernels.check.fused_kernel import weigh_tile

    p, heads = inputs.problem, inputs.problem.stored_kv_heads
    right = rows.right
    length, q_len = p.kv_lens[right.requests[0]], p.q_lens[right.requests[0]]
    num, tiles, count = len(right.requests) * heads, -(-len(keys) // TILE), right.q.shape[1]
    new = right.out.new_empty
    levels, whole = new(2, num, tiles, BLOCKS), new(2, num, count, tiles)
    k, v = (token_major(p, cache) for cache in inputs.kv)
    own = (rows.error * right.out).sum(-1, keepdim=True)
    least = right.least if right.least is not None else torch.zeros_like(right.lse)
    by_row = torch.cat((right.lse, own, rows.weight, rows.weight * right.size, least), -1)  # [M, R, 5]
    half = torch.float16 if p.q_dtype == "fp16" else torch.bfloat16
    weigh_tile[(tiles, num)](
        k, v, inputs.page_table, right.on_device, right.q.to(half), rows.error.to(torch.bfloat16), by_row,
        inputs.visible.view(torch.uint8) if p.tree is not None else inputs.page_table,
        single, levels, whole, _blocks_of_keys(inputs.device), inputs.sm_scale * inputs.k_scale, inputs.v_scale,
        p.soft_cap or 0.0, keys.start, min(keys.stop, length), length - q_len, right.tokens.start, len(right.tokens), count,
        p.window or 0, p.mask_prefix or 0, p.s_qo, heads, p.slots_per_page, single.shape[-1],
        inputs.page_table.stride(0), *k.stride()[:3], *v.stride()[:3],
        KEY_DIM=p.key_dim, KEY_WIDTH=power_of_two(p.key_dim),
        VALUE_DIM=p.value_dim, VALUE_WIDTH=power_of_two(p.value_dim), TILE=TILE, ROWS=ROWS, BLOCKS=BLOCKS,
        TREE=p.tree is not None, CAUSAL=p.tree is None and p.mask != "full", WINDOW=p.window is not None,
        CAPPED=p.soft_cap is not None, MAX_WEIGHT=MAX_BLOCK,
        # Prefetching takes registers, and the kernel needs all of them. With 168 a multiprocessor runs three programs of four warps
        # at once, and not two: on an H100 a seventh to a sixth faster in bf16.
        num_stages=1, **({"num_warps": 8} if max(p.key_dim, p.value_dim) > 128 else {"num_warps": 4, "maxnreg": 168}),
    )  # fmt: skip
    return levels, whole


@cache
def _blocks_of_keys(device: torch.device) -> Tensor:
    """Which keys of a tile each of its blocks holds, fp32 [TILE, BLOCKS] of 0 and 1: sums over blocks are a product with it."""
    of_blocks = torch.zeros(TILE, BLOCKS, device=device)
    for size, (first, stop) in zip((4, 8, 16, 32, 64), LEVELS, strict=True):
        for block in range(stop - first):
            of_blocks[block * size : (block + 1) * size, first + block] = 1
    return of_blocks


def power_of_two(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())

"""What the engines' attention kernels in Triton need alike: the devices, and the dtypes that they load and convert."""

from __future__ import annotations

from kernels.adapter import Device, Need, Problem
from kernels.problem.dtypes import FP8, HALF


def power_of_two(n: int) -> int:
    """The least one that is n or more: the size of a tile."""
    return 1 << (n - 1).bit_length()


def needs_of_triton(problem: Problem, device: Device) -> tuple[Need, ...]:
    """16-bit queries and output over a cache of the same dtype, or over an FP8 one on devices that convert FP8."""
    p = problem
    return (
        Need("a CUDA device of SM80 or later", device.kind == "cuda" and device.major >= 8),
        Need("fp16 or bf16 queries", p.q_dtype in HALF),
        Need("output of the query's dtype", p.output_dtype == p.q_dtype),
        Need("keys and values of the query's dtype or in FP8", p.kv_dtype == p.q_dtype or p.kv_dtype in FP8),
        Need("with an FP8 cache, SM89 or later", p.kv_dtype == p.q_dtype or (device.compute_capability or (0, 0)) >= (8, 9)),
    )

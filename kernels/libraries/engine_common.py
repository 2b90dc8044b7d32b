"""What the engines' own kernels need alike: the releases that were read, kernels in Triton, and those for DeepSeek's latent."""

# B = batch_size, Q = s_qo, H = num_qo_heads, D = D_ckv + D_kpe

from __future__ import annotations

from kernels.adapter import Device, Inputs, Need, Problem
from kernels.lazy import Tensor
from kernels.problem.dtypes import FP8, HALF

# Releases of the packages whose attention calls are as the adapters make them.
VLLM_READ = ("vllm>=0.25.1,<0.34",)  # FlashAttention and FlashMLA: read in 0.25.1, 0.32.0 and 0.33.0
# FlashAttention-3: read in 0.4.2.post2, which is for torch 2.11, and in 0.4.10.
SGLANG_KERNEL_READ = ("sglang-kernel>=0.4.2.post2,<=0.4.10",)
DEEPSEEK = (512, 64)
MAX_PROCESSORS = 160  # no GPU of the SM90 or SM100 family has more


def power_of_two(n: int) -> int:
    """The least one that is n or more: the size of a tile."""
    return 1 << (n - 1).bit_length()


def needs_of_triton(problem: Problem, device: Device, *, takes_8_bits: bool = False) -> tuple[Need, ...]:
    """16-bit queries and output over a cache of the same dtype, or over an FP8 one on devices that convert FP8.

    With `takes_8_bits` queries in fp8_e4m3 over such a cache too.
    """
    p = problem
    in_8_bits = takes_8_bits and p.q_dtype in FP8
    queries, output = (", or fp8_e4m3 over a cache of fp8_e4m3", ", of FP8 queries in 16 bits") if takes_8_bits else ("", "")
    return (
        Need("a CUDA device of SM80 or later", device.kind == "cuda" and device.major >= 8),
        Need(f"fp16 or bf16 queries{queries}", p.q_dtype in HALF or (in_8_bits and p.q_dtype == p.kv_dtype == "fp8_e4m3")),
        Need(f"output of the query's dtype{output}", p.output_dtype in (HALF if in_8_bits else {p.q_dtype})),
        Need("keys and values of the query's dtype or in FP8", p.kv_dtype == p.q_dtype or p.kv_dtype in FP8),
        Need("with an FP8 cache, SM89 or later", p.kv_dtype not in FP8 or (device.compute_capability or (0, 0)) >= (8, 9)),
    )


def queries_by_request(inputs: Inputs) -> Tensor:
    """[B, Q, H, D]"""
    p = inputs.problem
    return inputs.q.view(p.batch_size, p.s_qo, p.num_qo_heads, -1)


def latent_needs(p: Problem, *, converts_8_bits: bool = False) -> tuple[Need, ...]:
    fits = p.kv_dtype == p.q_dtype or (converts_8_bits and p.kv_dtype in FP8)
    return (
        Need("a causal or full mask", p.tree is None),
        Need("a latent of 512 + 64", (p.head_dim_ckv, p.head_dim_kpe) == DEEPSEEK),
        Need("a latent of the query's dtype" + " or in FP8" * converts_8_bits, fits),
    )


def needs_of_flash_attn_3(p: Problem, device: Device, *, converts_8_bits: bool = False) -> tuple[Need, ...]:
    """The rule of FlashAttention-3 with `qv`, in vLLM's build and SGLang's."""
    return (
        Need("SM90 (FlashAttention-3)", device.is_sm(9)),
        Need("fp16 or bf16 queries", p.q_dtype in HALF),
        Need("output of the query's dtype", p.output_dtype == p.q_dtype),
        # Any page_size: vLLM's are multiples of 16, but on an H100 vLLM's build was right with 1, 15 and 24 too.
        *latent_needs(p, converts_8_bits=converts_8_bits),
    )

"""What the engines' kernels for DeepSeek's latent attention need alike: the latent and the queries."""

# B = batch_size, Q = s_qo, H = num_qo_heads, D = D_ckv + D_kpe

from __future__ import annotations

from kernels.adapter import Device, Inputs, Need, Problem
from kernels.lazy import Tensor
from kernels.problem.dtypes import HALF
from kernels.problem.features import USUAL, Feature

DEEPSEEK = (512, 64)
# The features of a problem that FlashAttention-3 with `qv` is told of, in vLLM's build and SGLang's.
TOLD_TO_FLASH_ATTN_3: frozenset[Feature] = USUAL - {"scales of keys and values"}
MAX_PROCESSORS = 160  # no GPU of the SM90 or SM100 family has more


def queries_by_request(inputs: Inputs) -> Tensor:
    """[B, Q, H, D]"""
    p = inputs.problem
    return inputs.q.view(p.batch_size, p.s_qo, p.num_qo_heads, -1)


def latent_needs(p: Problem) -> tuple[Need, ...]:
    return (
        Need("a causal or full mask", p.tree is None),
        Need("a latent of 512 + 64", (p.head_dim_ckv, p.head_dim_kpe) == DEEPSEEK),
        Need("a latent of the query's dtype", p.kv_dtype == p.q_dtype),
    )


def needs_of_flash_attn_3(p: Problem, device: Device) -> tuple[Need, ...]:
    """The rule of FlashAttention-3 with `qv`, in vLLM's build and SGLang's."""
    return (
        Need("SM90 (FlashAttention-3)", device.is_sm(9)),
        Need("fp16 or bf16 queries", p.q_dtype in HALF),
        Need("output of the query's dtype", p.output_dtype == p.q_dtype),
        # Any page_size: vLLM's are multiples of 16, but on an H100 vLLM's build was right with 1, 15 and 24 too.
        *latent_needs(p),
    )

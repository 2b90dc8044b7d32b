"""What the engines' kernels for DeepSeek's latent attention need alike: the latent, the queries, and the releases of vLLM."""

# B = batch_size, Q = s_qo, H = num_qo_heads, D = D_ckv + D_kpe

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.adapter import Need

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.inputs import Inputs
    from kernels.problem import Problem

DEEPSEEK = (512, 64)
VLLM_READ = ("vllm>=0.25.1,<0.34",)  # releases whose calls are as they are made here; read in 0.25.1, 0.32.0 and 0.33.0
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

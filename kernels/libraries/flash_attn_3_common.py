"""What the builds of FlashAttention-3 need and get alike: that of its own project, vLLM's and SGLang's. Version 2 shares a part.

Read from `hopper/flash_api.cpp` of vllm-project/flash-attention (commit 617264c), and from the messages and operators of the
compiled libraries in the wheels tokenspeed-fa3 3.0.0.post20260810, vllm 0.25.1 and sglang-kernel 0.4.10.
"""

# T = query tokens of all requests, H = num_qo_heads, K = num_kv_heads

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.adapter import Device, Inputs, Need, PlanStep, Problem, Runner, nothing_to_plan
from kernels.inputs.step_lengths import HostLengths
from kernels.lazy import Tensor, torch
from kernels.libraries.flash_attn_common import Keys
from kernels.libraries.flashinfer_common import window_left
from kernels.problem.dtypes import FP8, HALF

HEURISTIC = 0  # num_splits: the library chooses
SPLITS_OF_VLLM = 32  # `flash_attn_max_num_splits_for_cuda_graph`: vLLM's limit for steps in a full CUDA graph
MAX_SPLITS = 128  # of the heuristic
MAX_HEAD_DIM = 256  # smaller ones are padded to the next that is compiled, such as 64, 128, 192 or 256
GIVEN, MADE_IN_CALL = "scheduler_metadata=given", "scheduler_metadata=made in the call"  # in `Runner.kernel_config`
OF_DEEPSEEK = (192, 128)  # of keys and values, in MLA's prompts


def operand_needs(p: Problem, device: Device) -> tuple[Need, ...]:
    output = "bf16" if p.q_dtype in FP8 else p.q_dtype
    return (
        Need("SM90 (FlashAttention-3)", device.is_sm(9)),
        Need("queries, keys and values of one dtype", p.q_dtype == p.kv_dtype),
        Need("fp16, bf16 or fp8_e4m3", p.q_dtype in HALF | {"fp8_e4m3"}),
        Need("output in the query's dtype, or bf16 with FP8 queries", p.output_dtype == output),
    )


def aligned_need(p: Problem) -> Need:
    return Need("a head_dim that is a multiple of 8, with FP8 of 16", p.head_dim_qk % (16 if p.q_dtype in FP8 else 8) == 0)


def needs_of_engines(p: Problem, device: Device) -> tuple[Need, ...]:
    """The rule of vLLM's and SGLang's builds, which have kernels for 192 and 128 in FP8 too. `flash_attn_3` has draft trees."""
    fitting = p.head_dim_qk == p.head_dim_vo <= MAX_HEAD_DIM or (p.head_dim_qk, p.head_dim_vo) == OF_DEEPSEEK
    return (
        *operand_needs(p, device),
        Need("a causal or full mask", p.tree is None),
        Need("equal head_dims of keys and values, up to 256, or 192 and 128", fitting),
        aligned_need(p),
    )


def partial_bytes(p: Problem) -> int:
    """Partial outputs of split keys and their log-sum-exp, fp32, as many as the heuristic takes at most."""
    splits = min(MAX_SPLITS, -(-p.longest // 64))
    return 4 * min(splits * p.num_q_tokens * p.num_qo_heads * (p.value_dim + 1), 2**28)


def window(p: Problem) -> tuple[int, int]:
    """Keys before a query's own, and behind it; -1: all."""
    return window_left(p), -1 if p.window is None else 0 if p.mask == "causal" else p.window - 1


def descales(inputs: Inputs, requests: int) -> tuple[Tensor | None, ...]:
    """Scales of q, k and v, fp32 [requests, K] each; None for each where nothing has 8 bits."""
    if not {inputs.problem.q_dtype, inputs.problem.kv_dtype} & FP8:
        return (None, None, None)
    shape = (requests, inputs.problem.num_kv_heads)
    return tuple(torch.full(shape, scale, device=inputs.device) for scale in (1.0, inputs.k_scale, inputs.v_scale))


def sinks_in_bf16(inputs: Inputs) -> Tensor | None:
    """[H]. Engines' builds refuse every other dtype."""
    return None if inputs.sinks is None else inputs.sinks.to(torch.bfloat16)


def splits_of(found: tuple[Tensor, ...]) -> int:
    """How many parts the library made of the keys, at most: the partial outputs of a call have one entry for each."""
    partial = found[2] if len(found) > 2 else None
    return partial.shape[0] if partial is not None and partial.numel() else 1


def runner_of(
    inputs: Inputs, attend: Callable[[], Any], out: Tensor, config: str, plan_step: PlanStep | None, *, kernel: str = "flash_attn_3"
) -> Runner:
    """The runner of a call that writes `out`. Asked for a log-sum-exp, natural, the call returns a new one second, fp32 [H, T]."""
    dtype = inputs.problem.q_dtype
    if not inputs.problem.return_lse:
        return Runner(attend, out, kernel, dtype, kernel_config=config, plan_step=plan_step)
    return Runner(lambda: attend()[1].T, out, kernel, dtype, kernel_config=config, plan_step=plan_step, lse="returned")


def metadata_arguments(inputs: Inputs, of: Keys) -> dict[str, Any]:
    """What the function that plans a model step takes alike in vLLM's build and in SGLang's."""
    p = inputs.problem
    return {
        "batch_size": p.batch_size, "max_seqlen_q": of.s_qo, "max_seqlen_k": of.s_kv, "headdim": p.head_dim_qk,
        "headdim_v": p.head_dim_vo, "cache_seqlens": of.kv_lens, "qkv_dtype": inputs.q.dtype, "cu_seqlens_q": of.qo_indptr,
        "page_size": p.page_size, "causal": of.causal, "has_softcap": p.soft_cap is not None,
    }  # fmt: skip


def planned_again(metadata: Tensor | None, make: Callable[[], Tensor | None]) -> PlanStep:
    """Makes the metadata again where the call reads them, as vLLM does for full CUDA graphs; without any the call plans."""
    if metadata is None:
        return nothing_to_plan

    def plan(_lengths: HostLengths) -> None:
        made = make()
        assert made is not None  # it is made for this problem
        metadata.copy_(made)

    return plan

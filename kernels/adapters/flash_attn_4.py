"""FlashAttention-4 (CuTe DSL): vLLM's FLASH_ATTN on SM100, SGLang's `fa4`. Over pages (decode, drafts, prompts) and ragged.

Rules and the call read from the wheel flash-attn-4 4.0.0b36, `flash_attn/cute/interface.py`, `_flash_attn_fwd`. Its public function
takes no output, so that one is called. It compiles a kernel for each new shape in its first call, here while it is prepared.
"""

# H = num_qo_heads, K = stored KV heads, B = batch_size

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from kernels.adapter import Device, Inputs, Need, Problem, Runner, nothing_to_plan
from kernels.libraries.flash_attn_3_common import descales
from kernels.libraries.flash_attn_common import FlashAttention, all_keys
from kernels.problem.dtypes import FP8, HALF
from kernels.problem.features import ALL_BUT_BLOCKS, Feature

MAX_SPLITS = 256


@dataclass(frozen=True, kw_only=True)
class FlashAttn4(FlashAttention):
    name: str = "flash_attn_4"
    takes_sinks: bool = True
    takes_soft_cap: bool = True
    takes_num_splits: bool = True
    # The library says that NaN in the last page reaches the answer if it loads whole pages, so `skips_unused` stays False.
    distributions: tuple[str, ...] = ("flash-attn-4", "nvidia-cutlass-dsl")
    rules_hold_for: tuple[str, ...] = ("flash-attn-4==4.0.0b36",)
    imports: str = "flash_attn.cute"
    extra: str = "fa4"
    passes: frozenset[Feature] | None = ALL_BUT_BLOCKS - {"a tree of drafts"}

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        dims, output = (p.head_dim_qk, p.head_dim_vo), "bf16" if p.q_dtype in FP8 else p.q_dtype
        fitting = dims in ((192, 128), (256, 256)) or (min(dims) >= 8 and max(dims) <= (256 if device.is_sm(9) else 128))
        alignment = 16 if p.kv_dtype in FP8 else 8  # 16 bytes
        return (
            Need("SM90, the SM100 family or SM110 (FlashAttention-4)", device.is_sm(9, 10, 11)),
            Need("queries, keys and values of one dtype", p.q_dtype == p.kv_dtype),
            Need("fp16, bf16 or FP8", p.q_dtype in HALF | FP8),
            Need("with FP8, the SM100 family", p.q_dtype not in FP8 or device.is_sm(10)),
            Need("output in the query's dtype, or bf16 with FP8 queries", p.output_dtype == output),
            Need("a causal or full mask", p.tree is None),
            Need("head_dims that are multiples of 8, with FP8 of 16", not (p.head_dim_qk % alignment or p.head_dim_vo % alignment)),
            Need("with pages, head_dims that are multiples of 16", not (p.paged and (p.head_dim_qk % 16 or p.head_dim_vo % 16))),
            Need("head_dims from 8 to 256, on SM100 and SM110 up to 128, 192/128 or 256", fitting),
        )

    def _hardware_of_choices(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        one = Need("on SM90 num_splits=1, since it splits no keys there", self.num_splits in (None, 1) or not device.is_sm(9))
        return (*super()._hardware_of_choices(problem, device), one)

    def workspace_bytes(self, problem: Problem) -> int:
        p = problem
        splits = min(MAX_SPLITS, -(-p.longest // 128))  # partial outputs and their log-sum-exp, fp32
        return 4 * min(splits * p.num_q_tokens * p.num_qo_heads * (p.head_dim_vo + 1), 2**28)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from flash_attn.cute.interface import _flash_attn_fwd

        p, out, of = inputs.problem, inputs.empty_output(), all_keys(inputs)
        splits = 1 if device.is_sm(9) else self.num_splits or 0  # 0: the library chooses; on SM90 it has no splits
        given: dict[str, Any] = {
            "cu_seqlens_q": of.qo_indptr, "cu_seqlens_k": of.kv_indptr, "seqused_k": of.kv_lens, "page_table": of.page_table,
            "max_seqlen_q": of.s_qo, "max_seqlen_k": of.s_kv, "softmax_scale": inputs.sm_scale, "causal": of.causal,
            "window_size_left": None if p.window is None else p.window - 1,
            "window_size_right": None if p.window is None else 0 if of.causal else p.window - 1, "softcap": p.soft_cap,
            "learnable_sink": inputs.sinks, "num_splits": splits, "out": out,
            **dict(zip(("q_descale", "k_descale", "v_descale"), descales(inputs, p.batch_size), strict=True)),
        }  # fmt: skip

        launch = partial(_flash_attn_fwd, inputs.q, of.k, of.v, **given)
        launch()  # compiles
        config = f"num_splits={splits or 'auto'}"
        return Runner(launch, out, "flash_attn_4", p.q_dtype, kernel_config=config, plan_step=nothing_to_plan)


ADAPTERS = tuple(FlashAttn4(routine=routine) for routine in ("paged_decode", "paged_prefill", "ragged_prefill"))

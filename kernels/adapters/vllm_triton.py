"""vLLM's unified attention in Triton: one kernel for decode, drafts and prompts over pages. TRITON_ATTN in vLLM.

Rules and the call read from vLLM 0.25.1, 0.32.0 and 0.33.0: `vllm/v1/attention/ops/triton_unified_attention.py`, with the same
arguments in all, and `vllm/v1/attention/backends/triton_attn.py`, which sizes the buffers. With one query token a request and few
requests the keys are split into segments that a second kernel merges; from 0.33.0 on so are those of up to 8 query tokens under a
causal mask. Otherwise one program goes over all keys of a request.

Over an FP8 cache vLLM's layer hands it FP8 queries (`attention.py:466`, `query_quant`) and three scales. Then both products are of
8 bits; 0.25.1 rounds probabilities without a scale (`P.to(V.dtype)`), later releases times 256.
"""

# T = query tokens of all requests, B = batch_size, H = num_qo_heads, K = stored KV heads, D = head_dim

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from kernels.adapter import Adapter, Device, EngineMaximum, Inputs, Need, Problem, QueryLengths, Runner, nothing_to_plan
from kernels.inputs.tensors import token_major
from kernels.lazy import Tensor, torch
from kernels.libraries.engine_common import VLLM_READ, needs_of_triton, power_of_two
from kernels.libraries.flashinfer_common import window_left
from kernels.problem.dtypes import FP8
from kernels.problem.features import ALL_BUT_BLOCKS, Feature

SEGMENTS = 16  # `NUM_PAR_SOFTMAX_SEGMENTS`; from 0.32.0 on 64 for few requests on SM120, which no row has yet
MIN_PROGRAMS = 128  # `MIN_LAUNCH_GRID_SIZE_2D`: fewer programs without segments, and vLLM takes the segments
MAX_SPLIT_QUERIES = 8  # `MAX_3D_QUERY_LEN`
TILE_ROWS = 16  # `BLOCK_M` of up to 16 heads in a group: a program's query tokens, times the heads


@dataclass(frozen=True, kw_only=True)
class VllmTriton(Adapter):
    name: str = "vllm_triton"
    query_lengths: QueryLengths = "varlen"
    takes_window: bool = True
    takes_sinks: bool = True
    takes_soft_cap: bool = True
    max_seq_len: EngineMaximum = "passed"
    takes_empty: bool = True  # vLLM captures full graphs with it, whose padded requests have no token
    # By the source no slot behind the last token is loaded; no GPU has shown it yet, so `skips_unused` stays False.
    distributions: tuple[str, ...] = ("vllm", "triton")  # its times depend on the compiler
    rules_hold_for: tuple[str, ...] = VLLM_READ
    imports: str = "vllm"
    passes: frozenset[Feature] | None = ALL_BUT_BLOCKS

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        return (
            *needs_of_triton(p, device, takes_8_bits=True),
            Need("equal head_dims of keys and values, of 32 or more", p.head_dim_qk == p.head_dim_vo >= 32),
            Need("a page_size that is a multiple of 16", p.page_size % 16 == 0),
        )

    def workspace_bytes(self, problem: Problem) -> int:
        p = problem
        return 4 * _split_tokens(p) * p.num_qo_heads * SEGMENTS * (power_of_two(p.head_dim_vo) + 2) + 4 * p.s_qo**2

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention
        from vllm.v1.kv_cache_interface import KVQuantMode

        p, out = inputs.problem, inputs.empty_output()
        given: dict[str, Any] = {
            **_tensors(inputs),
            **_segments(inputs),
            "out": out,
            "max_seqlen_q": p.s_qo,
            "max_seqlen_k": p.longest,
            "softmax_scale": inputs.sm_scale,
            "causal": p.mask != "full",  # under a tree too: no token sees a later one
            "window_size": (window_left(p), 0 if p.window is not None else -1),
            "softcap": p.soft_cap or 0.0,
            "kv_quant_mode": KVQuantMode.FP8_PER_TENSOR if p.kv_dtype in FP8 else KVQuantMode.NONE,
        }
        launch = partial(unified_attention, **given)
        launch()  # compiles
        resolved, segments = ("triton_unified_3d", SEGMENTS) if self._is_split(p, device) else ("triton_unified_2d", 1)
        return Runner(launch, out, resolved, p.q_dtype, kernel_config=f"segments={segments}", plan_step=nothing_to_plan)

    def _is_split(self, p: Problem, device: Device) -> bool:
        """Whether the keys of a request are split, as its `use_3d` has it."""
        tiles = -(-p.s_qo // max(1, TILE_ROWS // p.group_size))
        is_tuned = p.head_dim_qk == 256 and p.group_size <= TILE_ROWS and device.is_sm(10)  # `tuned_large_head`
        takes_drafts = self.is_from("0.33.0") and p.s_qo <= MAX_SPLIT_QUERIES and p.mask != "full" and not is_tuned
        return (p.s_qo == 1 or takes_drafts) and p.batch_size * tiles <= _max_split_requests(p)


def _max_split_requests(p: Problem) -> int:
    """`seq_threshold_3D`: the most requests whose keys vLLM splits. With CUDA graphs it takes the nearest captured batch size."""
    return max(1, MIN_PROGRAMS // p.num_kv_heads)


def _split_tokens(p: Problem) -> int:
    """Query tokens with room for their parts, as 0.33.0 has it for a server with such drafts. With less it splits no keys."""
    return _max_split_requests(p) * (p.s_qo if p.s_qo <= MAX_SPLIT_QUERIES else 1)


def _tensors(inputs: Inputs) -> dict[str, Any]:
    p = inputs.problem
    k, v = (token_major(p, cache) for cache in inputs.kv)  # any strides
    q_descale, *scales = (torch.full((1,), scale, device=inputs.device) for scale in (1.0, inputs.k_scale, inputs.v_scale))
    k_descale, v_descale = (scale.expand(p.batch_size, p.num_kv_heads) for scale in scales)
    return {
        "q": inputs.q, "k": k, "v": v, "cu_seqlens_q": inputs.qo_indptr, "seqused_k": inputs.kv_lens,
        "block_table": inputs.page_table, "k_descale": k_descale, "v_descale": v_descale,
        "q_descale": q_descale if p.q_dtype in FP8 else None,
        "sinks": inputs.sinks, "qq_bias": None if p.tree is None else _bias(inputs),
    }  # fmt: skip


def _bias(inputs: Inputs) -> Tensor:
    """Added to the logits of draft tokens, fp32 [s_qo, s_qo]: minus infinity for what the tree hides."""
    visible = inputs.visible
    return torch.zeros(visible.shape, device=inputs.device).masked_fill(~visible, -torch.inf)


def _segments(inputs: Inputs) -> dict[str, Any]:
    """Buffers for the partial results of segments."""
    p = inputs.problem
    shape = (_split_tokens(p), p.num_qo_heads, SEGMENTS)
    return {
        "seq_threshold_3D": _max_split_requests(p),
        "num_par_softmax_segments": SEGMENTS,
        "softmax_segm_output": torch.empty(*shape, power_of_two(p.head_dim_vo), device=inputs.device),
        "softmax_segm_max": torch.empty(shape, device=inputs.device),
        "softmax_segm_expsum": torch.empty(shape, device=inputs.device),
    }


ADAPTERS = tuple(VllmTriton(routine=routine) for routine in ("paged_decode", "paged_prefill"))

"""What several FlashInfer adapters share: common conditions, the names of compiled modules, the workspace, scales and windows.

Read from flashinfer-python 0.7.2.post1 (`jit/attention/modules.py`, `prefill.py`, `decode.py`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernels.adapter import Adapter, Device, Inputs, Module, Need, Problem, Since
from kernels.lazy import Tensor, torch
from kernels.libraries.flashinfer_modules import flashinfer_module
from kernels.problem.dtypes import FP8, HALF
from kernels.problem.padded import has_empty

FLASHINFER = ("flashinfer-python",)
CUDNN = (*FLASHINFER, "nvidia-cudnn-frontend")  # the cuDNN library itself comes with torch
# For releases outside it no rule is known. Within it `Adapter.since` says what has come; docs/versions.md has the calls.
RELEASES = ("flashinfer-python>=0.5.3,<0.8",)
READ_ONLY = ("flashinfer-python>=0.7.2,<0.8",)  # of rules that were read from 0.7.2.post1 and compared with no older source
WORKSPACE_BYTES = 256 * 2**20  # for split-KV partials; FlashInfer recommends 128 MiB and refuses plans that need more than it gets
FP32_BYTES, ALIGNMENT_BYTES = 4, 1024
TILE_ROWS = (16, 64, 128)  # of a tile of fa2: query tokens times query heads of a KV head
MAX_THREADS = 1024  # of a block
NO_POSITION_ENCODING, NO_FP16_QK = 0, False
FA3_HEAD_DIMS = frozenset({(64, 64), (128, 128), (256, 256), (192, 128)})


@dataclass(frozen=True, kw_only=True)
class FlashInferAdapter(Adapter):
    """What the adapters of FlashInfer share, unless they say otherwise."""

    distributions: tuple[str, ...] = FLASHINFER
    imports: str = "flashinfer"
    rules_hold_for: tuple[str, ...] = RELEASES

    def workspace_bytes(self, problem: Problem) -> int:
        return WORKSPACE_BYTES


def workspace(inputs: Inputs, size: int | None = None) -> Tensor:
    """Scratch memory, uint8 [size], of WORKSPACE_BYTES without a size. Zeroed, since XQA keeps semaphores in it."""
    return torch.zeros(WORKSPACE_BYTES if size is None else size, dtype=torch.uint8, device=inputs.device)


def split_workspace_bytes(problem: Problem) -> int:
    """What fa2's plan on tensor cores asks for under CUDA graphs, and WORKSPACE_BYTES at least.

    It is a partial output in fp32, with its sum, for each row of a tile. With graphs the plan always reserves them, for as many
    tiles as query tokens and heads fill, and one more for each request. WORKSPACE_BYTES are enough for some 8,000 query tokens of
    64 heads. Source: `PrefillPlan` (`batch_prefill_tmp_v`, `batch_prefill_tmp_s`) and `FA2DetermineCtaTileQ` of flashinfer-python
    0.7.2.post1. 0.6.16 asks for `group_size` times as much, and its plan refuses what does not fit.
    """
    p = problem
    # Only a batch of one query length is planned as such (`uniform_q_len`); in any other, one request may have nearly all tokens.
    uniform = p.min_s_qo is None and not has_empty(p) and p.routine != "cascade"
    longest = p.s_qo if uniform else p.num_q_tokens - p.batch_size + 1
    tile = TILE_ROWS[min(bisect_left(TILE_ROWS, longest * p.group_size), len(TILE_ROWS) - 1)]
    rows = p.num_q_tokens + p.batch_size * tile // p.group_size
    return max(WORKSPACE_BYTES, FP32_BYTES * rows * p.num_qo_heads * (p.head_dim_vo + 1) + ALIGNMENT_BYTES)


def needs_sm80(device: Device) -> Need:
    return Need("a CUDA device of SM80 or later", device.kind == "cuda" and device.major >= 8)


def needs_sm100(device: Device) -> Need:
    return Need("the SM100 family (10.0 or 10.3)", device.is_sm(10))


def needs_half_output(problem: Problem) -> Need:
    return Need("fp16 or bf16 output", problem.output_dtype in HALF)


def needs_one_half_dtype(problem: Problem) -> Need:
    one_half_dtype = problem.q_dtype in HALF and problem.q_dtype == problem.kv_dtype == problem.output_dtype
    return Need("fp16 or bf16 queries, and keys, values and output of the same dtype", one_half_dtype)


def needs_causal_drafts(problem: Problem) -> Need:
    return Need("causal drafts", problem.s_qo == 1 or problem.mask == "causal")


def needs_no_tree(problem: Problem) -> Need:
    return Need("a causal or full mask", not problem.has_custom_mask)


def needs_no_lse_with_sinks(problem: Problem) -> Need:
    """Of kernels that come compiled, and of which no source says whether the sum counts the sink."""
    return Need("with attention sinks, no log-sum-exp (it may leave the sink out)", not (problem.sinks and problem.return_lse))


def needs_equal_head_dims(problem: Problem) -> Need:
    return Need("equal head_dim of keys and values", problem.head_dim_qk == problem.head_dim_vo)


def fa2_dtype_needs(problem: Problem) -> tuple[Need, ...]:
    """What fa2's tensor-core kernel needs of dtypes. It serves prefill, and decode as `fa2_tc`."""
    return (
        Need("fp16 or bf16 queries", problem.q_dtype in HALF),
        Need("keys and values of the query's dtype or FP8", problem.kv_dtype in FP8 | {problem.q_dtype}),
    )


def fa3_needs(problem: Problem, device: Device) -> tuple[Need, ...]:
    p, dims = problem, (problem.head_dim_qk, problem.head_dim_vo)
    return (
        Need("SM90 (fa3)", device.is_sm(9)),
        Need("queries, keys and values of one dtype", p.q_dtype == p.kv_dtype),
        Need("fp16, bf16 or FP8", p.q_dtype in HALF | FP8),
        needs_half_output(p),
        Need("head_dims 64, 128, 256 or 192/128", dims in FA3_HEAD_DIMS),
        Need("with FP8, equal head_dims of keys and values", p.q_dtype not in FP8 or p.head_dim_qk == p.head_dim_vo),
        Need("with FP8 queries, no soft cap (fa3 drops it)", p.q_dtype not in FP8 or p.soft_cap is None),
        # `store_zero` of `hopper/epilogue.cuh` writes -inf, which is not the sink.
        Need("with sinks and a log-sum-exp, a key for every request (fa3)", not (p.lacks_keys and p.sinks and p.return_lse)),
    )


def trtllm_gen_needs(problem: Problem, device: Device) -> tuple[Need, ...]:
    """The rule of trtllm-gen's decode kernel, in the wrapper and in the function."""
    p = problem
    fp8_under_bf16 = p.q_dtype == "bf16" and p.kv_dtype == "fp8_e4m3"
    nvfp4_under_fp8 = p.q_dtype == "fp8_e4m3" and p.kv_dtype == "nvfp4"
    dtypes = p.kv_dtype == p.q_dtype or fp8_under_bf16 or nvfp4_under_fp8
    windowed = fp8_under_bf16 and p.window is not None
    eight_bit_output = p.output_dtype == p.q_dtype == "fp8_e4m3"
    return (
        needs_sm100(device),
        needs_equal_head_dims(p),
        Need("fp16, bf16 or fp8_e4m3 queries", p.q_dtype in HALF | {"fp8_e4m3"}),
        Need("keys and values of the query's dtype, fp8_e4m3 under bf16 queries, or nvfp4 under fp8_e4m3 queries", dtypes),
        Need("16-bit output, or fp8_e4m3 under fp8_e4m3 queries", p.output_dtype in HALF or eight_bit_output),
        Need("page_size 16, 32 or 64", p.page_size in (16, 32, 64)),
        Need("head_dim 64, 128 or 256", p.head_dim_qk in (64, 128, 256)),
        # flashinfer #3864 and vllm #47847, open: on a B200 rows of 8 tokens were far off; 1, 2, 4 were right.
        Need("with bf16 queries over FP8 and a window, up to 4 query tokens (8 were wrong)", not windowed or p.s_qo <= 4),
        Need("nvfp4 in HND pages", p.kv_dtype != "nvfp4" or p.kv_layout == "HND"),
        needs_causal_drafts(p),
    )


def since_of_wrappers(problem: Problem) -> tuple[Since, ...]:
    """What all wrappers of decode and prefill have since a release, or what no older source was read for.

    `o_data_type` is an argument of the plans since 0.6.0. Rules for the other three were compared with 0.7.0 at the earliest.
    """
    p = problem
    return (
        Since("0.6.0", "an output of another dtype than the query's", p.output_dtype != p.q_dtype),
        Since("0.7.0", "FP8 queries (older rules are not known)", p.q_dtype in FP8),
        Since("0.7.0", "attention sinks (older rules are not known)", p.sinks),
        Since("0.7.0", "padded requests without a token (older rules are not known)", has_empty(p)),
        Since("0.7.0", "requests without keys (older kernels may divide 0 by 0)", p.lacks_keys),  # `state.cuh`
    )


def since_of_512(problem: Problem) -> Since:
    """fa2 on tensor cores cuts values of more than 256 elements among its warps (`USE_VO_SPLIT` in `prefill.cuh`)."""
    return Since("0.6.18", "a head_dim of 512 on tensor cores", max(problem.head_dim_qk, problem.head_dim_vo) > 256)


def resolves_to_fa3(problem: Problem, device: Device, is_from: Callable[[str], bool]) -> bool:
    """Whether FlashInfer's `auto` chooses fa3 for a prefill (`utils.determine_attention_backend`).

    Before 0.6.4 it did so for every dtype, and before 0.6.15 for every head_dim, also if fa3 does not serve them.
    """
    eight_bit_cache_alone = problem.kv_dtype in FP8 and problem.q_dtype not in FP8
    dtypes = not is_from("0.6.4") or not (eight_bit_cache_alone or problem.kv_dtype == "nvfp4")
    dims = not is_from("0.6.15") or (problem.head_dim_qk, problem.head_dim_vo) in FA3_HEAD_DIMS
    return device.is_sm(9) and dims and dtypes and not problem.has_custom_mask


def prefill_module(problem: Problem, backend: str) -> Module:
    """The batch prefill module that a wrapper loads. For fa2 it is a private variant that the public generator does not make."""
    generator = "_gen_batch_prefill_primary_module" if backend == "fa2" else "gen_batch_prefill_module"
    return attention_module(generator, problem, (backend,), (NO_FP16_QK,))


def attention_module(generator: str, p: Problem, before: tuple[str, ...] = (), after: tuple[bool, ...] = ()) -> Module:
    """A module of `jit/attention/modules.py`. Its key is dtypes, head_dims, and whether there is a window or a soft cap."""
    dtypes, dims = (p.q_dtype, p.kv_dtype, p.output_dtype, "int32"), (p.head_dim_qk, p.head_dim_vo)
    flags = (p.window is not None, p.soft_cap is not None, *after)
    return flashinfer_module(f"attention.modules:{generator}", (*before, *dtypes, *dims, NO_POSITION_ENCODING, *flags))


def soft_cap_argument(problem: Problem) -> dict[str, Any]:
    """What the plans of the wrappers take by name, if logits have a soft cap."""
    return {} if problem.soft_cap is None else {"logits_soft_cap": problem.soft_cap}


def window_left(problem: Problem) -> int:
    """A window as FlashInfer counts it: keys before a query's own, or -1 for no window."""
    return -1 if problem.window is None else problem.window - 1


def head_scales(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Scales of q, k and v, fp32 [heads] each, as fa3's FP8 kernel takes them positionally."""
    p = inputs.problem
    values = ((1.0, p.num_qo_heads), (inputs.k_scale, p.num_kv_heads), (inputs.v_scale, p.num_kv_heads))
    q, k, v = (torch.full((heads,), value, dtype=torch.float32, device=inputs.device) for value, heads in values)
    return q, k, v


def output_with_lse(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """An output and a log-sum-exp, for kernels that write one also if the problem asks for none."""
    out, lse = inputs.empty_output(), inputs.empty_lse()
    return out, torch.empty(out.shape[:2], device=out.device) if lse is None else lse


def lse_arguments(inputs: Inputs) -> dict[str, Any]:
    """What a wrapper's `run` needs to write the log-sum-exp, if the problem asks for it: base 2, [query tokens, H]."""
    lse = inputs.empty_lse()
    return {} if lse is None else {"lse": lse, "return_lse": True}


def merge_threads(problem: Problem) -> int:
    """Threads of the one block that merges a token: 16 bytes of a head each, or a 32nd of it (`cascade.cuh`, MergeState)."""
    return problem.num_qo_heads * _threads_a_head(problem.head_dim_vo)


def _threads_a_head(head_dim: int) -> int:
    return head_dim // max(8, head_dim // 32)


def in_place_merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> Callable[[], object]:
    """FlashInfer's merge of [T, H, D] and [T, H] in base 2 into `out` and `lse`; heads beyond a block as more tokens."""
    from flashinfer import merge_state_in_place

    heads, dim = out.shape[1:]
    most = MAX_THREADS // _threads_a_head(dim)
    parts = next(parts for parts in range(1, heads + 1) if heads % parts == 0 and heads // parts <= most)
    states = [t.view(-1, heads // parts, *t.shape[2:]) for t in (out, lse, other, other_lse)]
    return partial(merge_state_in_place, *states)


def fp8_output_scale(problem: Problem) -> float:
    """The divisor of an FP8 output: a mean over L keys shrinks as 1/sqrt(L), below FP8's smallest numbers.

    A row that one sentinel key fills does not shrink: its largest elements, near 6, stay within fp8_e4m3's 448.
    """
    return 2.0 ** -min(6, round(math.log2(problem.s_kv) / 2)) if problem.output_dtype in FP8 else 1.0


def trtllm_gen_block_scales(inputs: Inputs) -> Any:
    """nvfp4 block scales as trtllm-gen reads them: the values' in groups of four tokens, interleaved, in HND pages [P, K, N, D/16].

    Scale s of token t goes to 4 * (D/16) * (t / 4) + 4 * s + t % 4 (FlashInfer, `nvfp4_quantize_paged_kv_cache`).
    """
    if inputs.kv_scales is None:
        return None
    k, v = inputs.kv_scales
    pages, heads, slots, blocks = v.shape
    by_four = v.view(pages, heads, slots // 4, 4, blocks)
    return k, by_four.transpose(-1, -2).reshape(v.shape).contiguous()

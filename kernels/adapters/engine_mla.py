"""Kernels for DeepSeek's latent attention that vLLM takes beside FlashInfer's and FlashMLA.

FlashAttention-3 is for Hopper, TokenSpeed MLA is for SM100, Triton is for any. vLLM's CUTLASS MLA is FlashInfer's `cutlass` here.
Rules and calls read from the wheel tokenspeed-mla 2.0.4 (`mla_decode.py`, `can_implement` of its kernels), and from vLLM 0.32.0:
`flashattn_mla.py` and `tokenspeed_mla.py` of `v1/attention/backends/mla`; `vllm_flash_attn/flash_attn_interface.py`,
`triton_mla.py` and `ops/triton_decode_attention.py` were read in 0.25.1 and 0.33.0 too.
"""

# T = query tokens, B = batch_size, Q = s_qo, H = num_qo_heads, P = pages, N = slots a page, D = D_ckv + D_kpe

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from kernels.adapter import Adapter, Device, EngineMaximum, Inputs, Need, Problem, QueryLengths, Runner, Since, nothing_to_plan
from kernels.lazy import Tensor, torch
from kernels.libraries import engine_common as engines
from kernels.libraries import flash_attn_3_common as common
from kernels.libraries.flashinfer_common import output_with_lse
from kernels.problem.dtypes import HALF
from kernels.problem.features import USUAL, Feature

ROWS = 128  # of a tile of TokenSpeed MLA: query tokens times heads
FEWEST_BESIDE = 64  # elements of keys beside the latent (`_FA3_QV_HEAD_DIM` of vLLM)


@dataclass(frozen=True, kw_only=True)
class FlashAttn3Mla(Adapter):
    """FLASH_ATTN_MLA, vLLM's default on Hopper: FlashAttention-3 with `q_v`, in vLLM's own build.

    The build in tokenspeed-fa3 is reported to give wrong answers with it. Not planned, it makes its plan in each call. SGLang's
    `fa3` does so in its own build (`_compute_scheduler_metadata` in `flashattention_backend.py` of SGLang 0.5.23: none with MLA).
    """

    routine: str = "mla"
    name: str = "flash_attn_3"
    is_planned: bool = True
    query_lengths: QueryLengths = "varlen"
    max_seq_len: EngineMaximum = "passed"
    gives_lse: bool = True
    takes_num_splits: bool = True
    takes_empty: bool = True  # vLLM captures full graphs with it, whose padded requests have no token
    takes_no_keys: bool = True  # `store_zero` of its `epilogue_fwd.hpp`
    distributions: tuple[str, ...] = ("vllm",)
    rules_hold_for: tuple[str, ...] = engines.VLLM_READ
    imports: str = "vllm"
    passes: frozenset[Feature] | None = USUAL - {"scales of keys and values"}

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return engines.needs_of_flash_attn_3(problem, device)

    def workspace_bytes(self, problem: Problem) -> int:
        return common.partial_bytes(problem)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from vllm.vllm_flash_attn import flash_attn_varlen_func

        p, out, width = inputs.problem, inputs.empty_output(), inputs.problem.value_dim
        lengths: dict[str, Any] = {"max_seqlen_q": p.s_qo, "max_seqlen_k": p.longest, "cu_seqlens_q": inputs.qo_indptr}
        plan = self._plan(inputs, lengths) if self.is_planned else None
        latent = inputs.latent[:, :, None]  # [P, N, 1, D]
        q, k = inputs.q[..., width:], latent[..., width:]
        if not p.head_dim_kpe:  # the kernel has no fewer than 64 elements beside the latent: queries of zeros, as in vLLM
            q, k = inputs.q.new_zeros(*inputs.q.shape[:-1], FEWEST_BESIDE), latent[..., :FEWEST_BESIDE]

        def attend() -> Any:
            return flash_attn_varlen_func(
                q=q, k=k, v=latent[..., :width], q_v=inputs.q[..., :width], seqused_k=inputs.kv_lens,
                block_table=inputs.page_table, softmax_scale=inputs.sm_scale, causal=p.mask == "causal", out=out, fa_version=3,
                scheduler_metadata=plan, num_splits=self.num_splits or common.HEURISTIC, return_softmax_lse=p.return_lse,
                **lengths,
            )  # fmt: skip

        return common.runner_of(inputs, attend, out, common.GIVEN if self.is_planned else common.MADE_IN_CALL, None)

    def _plan(self, inputs: Inputs, lengths: dict[str, Any]) -> Any:
        from vllm.vllm_flash_attn import get_scheduler_metadata

        p = inputs.problem
        return get_scheduler_metadata(
            batch_size=p.batch_size, num_heads_q=p.num_qo_heads, num_heads_kv=1, headdim=p.head_dim_kpe or FEWEST_BESIDE,
            headdim_v=p.head_dim_ckv, cache_seqlens=inputs.kv_lens, qkv_dtype=inputs.q.dtype, page_size=p.page_size,
            causal=p.mask == "causal", num_splits=self.num_splits or common.HEURISTIC, **lengths,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class VllmTritonMla(Adapter):
    """TRITON_MLA: a kernel that splits the keys of every row, and one that merges the parts.

    It has no mask: from 0.32.0 on each token of a draft is a row with a length and a page table, made in every layer. A latent of
    8 bits is read as 16 bits. vLLM has the log-sum-exp written in the query's dtype, which rounds it; here it is fp32.
    """

    routine: str = "mla"
    name: str = "triton_mla"
    query_lengths: QueryLengths = "uniform"
    max_seq_len: EngineMaximum = "passed"  # the number of parts follows it: vLLM captures graphs at its own maximum
    gives_lse: bool = True
    takes_num_splits: bool = True  # one, if vLLM shall give a row the same bits in every batch
    takes_empty: bool = True
    distributions: tuple[str, ...] = ("vllm",)
    rules_hold_for: tuple[str, ...] = engines.VLLM_READ
    imports: str = "vllm"
    passes: frozenset[Feature] | None = USUAL - {"query lengths that differ"}

    def since(self, problem: Problem, device: Device) -> tuple[Since, ...]:
        many = Since("0.33.0", "2^31 elements of parts or more (32 bits count them)", self.workspace_bytes(problem) >= 4 * 2**31)
        return (Since("0.32.0", "several query tokens", problem.s_qo > 1), many)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        fits = (p.head_dim_ckv or 0) > 8 and not 0 < (p.head_dim_kpe or 0) <= 8
        return (
            *engines.needs_of_triton(p, device),
            Need("a causal or full mask", p.tree is None),
            Need("a latent of more than 8 + 8 elements, or 8 + 0 (Triton multiplies 16 or more)", fits),
            Need("2 heads or more (of one, products are added up in 16 bits)", p.num_qo_heads > 1),
        )

    def workspace_bytes(self, problem: Problem) -> int:
        p = problem
        return 4 * p.num_q_tokens * p.num_qo_heads * (self._splits(p, engines.MAX_PROCESSORS) * (p.value_dim + 1) + 1)

    def _splits(self, p: Problem, processors: int) -> int:
        """vLLM's choice (`_compute_num_kv_splits`): a power of two of parts of 512 keys or more, up to two a processor."""
        return self.num_splits or min(engines.power_of_two(max(1, p.longest // 512)), 2 * processors)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

        p, (out, lse) = inputs.problem, output_with_lse(inputs)
        cuda = inputs.device.type == "cuda"
        splits = self._splits(p, torch.cuda.get_device_properties(inputs.device).multi_processor_count if cuda else 1)
        rows, heads = out.shape[:2]
        parts = torch.empty(rows, heads, splits, p.value_dim + 1, device=inputs.device)
        cache, scale = inputs.latent[:, :, None], torch.full((1,), inputs.k_scale, device=inputs.device)  # [P, N, 1, D]

        def launch() -> None:
            decode_attention_fwd(
                inputs.q, cache, cache[..., : p.value_dim], out, lse, *_rows_alone(inputs), parts, splits, inputs.sm_scale,
                p.page_size, k_scale=scale, v_scale=scale, is_mla=True,
            )  # fmt: skip

        launch()  # compiles
        config, asked = f"num_kv_splits={splits}", lse if p.return_lse else None
        return Runner(launch, out, "triton_mla_grouped", p.q_dtype, lse=asked, kernel_config=config, plan_step=nothing_to_plan)


def _rows_alone(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """A page table int32 [T, pages] and lengths int32 [T], of each query token as a request, as `forward_mqa` makes them."""
    p, pages, lens = inputs.problem, inputs.page_table, inputs.kv_lens
    if p.s_qo == 1:
        return pages, lens
    pages = pages.repeat_interleave(p.s_qo, dim=0)
    if p.mask == "full":
        return pages, lens.repeat_interleave(p.s_qo)
    behind = torch.arange(1 - p.s_qo, 1, device=lens.device, dtype=lens.dtype)
    return pages, (lens[:, None] + behind).flatten().clamp(min=0)


@dataclass(frozen=True, kw_only=True)
class TokenspeedMla(Adapter):
    routine: str = "mla"
    name: str = "tokenspeed_mla"
    query_lengths: QueryLengths = "uniform"
    max_seq_len: EngineMaximum = "passed"
    takes_empty: bool = True  # vLLM captures full graphs with it, whose padded requests have no token
    distributions: tuple[str, ...] = ("tokenspeed-mla", "nvidia-cutlass-dsl")
    rules_hold_for: tuple[str, ...] = ("tokenspeed-mla>=2.0.4,<2.1",)
    imports: str = "tokenspeed_mla"
    extra: str = "tokenspeed_mla"
    passes: frozenset[Feature] | None = USUAL - {"query lengths that differ"}

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        eight_bits = p.q_dtype == "fp8_e4m3"
        return (
            Need("the SM100 family (10.0 or 10.3)", device.is_sm(10)),
            Need("fp16, bf16 or fp8_e4m3 queries", p.q_dtype in HALF or eight_bits),
            Need("output of the query's dtype, or bf16 with FP8 queries", p.output_dtype == ("bf16" if eight_bits else p.q_dtype)),
            Need("a page_size from 2 to 128 that divides 128", p.page_size > 1 and ROWS % p.page_size == 0),
            Need("up to 128 heads", p.num_qo_heads <= ROWS),
            *engines.latent_needs(p),
        )

    def workspace_bytes(self, problem: Problem) -> int:
        return _workspace_bytes(problem, engines.MAX_PROCESSORS)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from tokenspeed_mla import get_num_sm, tokenspeed_mla_decode

        p, out = inputs.problem, inputs.empty_output()
        size = _workspace_bytes(p, get_num_sm(inputs.device))
        given: dict[str, Any] = {
            "query": engines.queries_by_request(inputs), "kv_cache": inputs.latent,
            "workspace_buffer": torch.zeros(size, dtype=torch.int8, device=inputs.device), "kv_lora_rank": p.head_dim_ckv,
            "qk_rope_head_dim": p.head_dim_kpe, "block_tables": inputs.page_table, "seq_lens": inputs.kv_lens,
            "max_seq_len": p.longest, "softmax_scale": inputs.sm_scale * inputs.k_scale, "output_scale": inputs.v_scale,
            "out": out.view(p.batch_size, p.s_qo, p.num_qo_heads, -1), "causal_mask": p.mask == "causal",
        }  # fmt: skip

        launch = partial(tokenspeed_mla_decode, **given)
        launch()  # compiles
        return Runner(launch, out, "tokenspeed_mla", p.q_dtype)


def _workspace_bytes(p: Problem, processors: int) -> int:
    """As vLLM sizes it: partial results of as many parts as there are processors, their heads padded to a tile."""
    return processors * max(p.num_qo_heads, ROWS) * p.s_qo * (p.value_dim + 1) * 4


ADAPTERS = (FlashAttn3Mla(), FlashAttn3Mla(name="flash_attn_3_unplanned", is_planned=False), VllmTritonMla(), TokenspeedMla())

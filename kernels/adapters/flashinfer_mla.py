"""FlashInfer's BatchMLAPagedAttentionWrapper: DeepSeek's latent attention after absorption, s_qo > 1 as one decode call (MTP).

The cache has one latent per token: a key of D_ckv + D_kpe elements, whose first D_ckv are the value. Rules read from
flashinfer-python 0.7.2.post1: `mla/_batch_mla/_auto_policy.py`, `_backends/*.py`; those of SM90 checked on an H200
(docs/support.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernels.adapter import Device, EngineMaximum, Inputs, Module, Need, Problem, QueryLengths, Runner
from kernels.inputs.step_lengths import HostLengths
from kernels.libraries import flashinfer_common as common
from kernels.libraries.flashinfer_calls import mla_call, plan_mla
from kernels.libraries.flashinfer_modules import flashinfer_module
from kernels.libraries.flashinfer_plans import MLA, plan_words
from kernels.libraries.flashinfer_wrappers import prepared
from kernels.libraries.same_call import with_key
from kernels.problem.dtypes import FP8, HALF
from kernels.problem.features import USUAL, Feature

Rule = Callable[["Problem", "Device"], tuple[Need, ...]]
DEEPSEEK = (512, 64)


def fa_dtype_needs(problem: Problem, device: Device) -> tuple[Need, ...]:
    """What fa2 and fa3 both need of dtypes and head_dims (`_fa_common.py`)."""
    p = problem
    ckv, kpe = p.head_dim_ckv or 0, p.head_dim_kpe or 0
    fp8_under_bf16 = p.q_dtype == "bf16" and p.kv_dtype == "fp8_e4m3" and device.is_sm(9)
    return (
        Need("fp16 or bf16 queries", p.q_dtype in HALF),
        Need("a latent of the query's dtype, or fp8_e4m3 under bf16 queries on SM90", p.kv_dtype == p.q_dtype or fp8_under_bf16),
        Need("with FP8, a latent of 512 + 64 or 512 + 0", p.kv_dtype not in FP8 or (ckv, kpe) in (DEEPSEEK, (512, 0))),
        Need("output of the query's dtype", p.output_dtype == p.q_dtype),
        Need("head_dim_ckv a multiple of 128, head_dim_kpe of 64", ckv % 128 == 0 and kpe % 64 == 0),
    )


def _needs_deepseek_latent(problem: Problem) -> Need:
    return Need("a latent of 512 + 64", (problem.head_dim_ckv, problem.head_dim_kpe) == DEEPSEEK)


def _needs_pages_that_divide_128(problem: Problem) -> Need:
    return Need("a page_size that divides 128", 128 % problem.page_size == 0)


def _needs_every_key(problem: Problem, tile_kv: int) -> Need:
    """Under a causal mask fa2 and fa3 skip a query's last key if it is the first of a KV tile and the heads straddle two tiles."""
    heads, lengths = problem.num_qo_heads, [pair for pair in zip(problem.q_lens, problem.kv_lens, strict=True) if pair[1]]
    tile_q = 128 if problem.num_q_tokens * heads // problem.batch_size > 64 else 64
    ends = ((kv - q, end) for q, kv in lengths for end in range(tile_q, q * heads, tile_q))
    skips = any(end % heads and (context + end // heads) % tile_kv == 0 for context, end in ends)
    sentence = "heads that divide the query tile, or no causal edge on a KV tile (the kernel would skip a key)"
    return Need(sentence, problem.mask == "full" or not skips)


def fa2_needs(problem: Problem, device: Device) -> tuple[Need, ...]:
    tile_kv = 64 if device.is_sm(9, 10) and problem.kv_dtype not in FP8 else 32
    return (
        common.needs_sm80(device),
        *fa_dtype_needs(problem, device),
        common.needs_no_tree(problem),
        _needs_every_key(problem, tile_kv),
    )


def fa3_needs(problem: Problem, device: Device) -> tuple[Need, ...]:
    return (
        Need("SM90 (fa3)", device.is_sm(9)),
        *fa_dtype_needs(problem, device),
        Need("head_dim_ckv 128, 256 or 512", problem.head_dim_ckv in (128, 256, 512)),
        common.needs_no_tree(problem),
        _needs_every_key(problem, tile_kv=64),
    )


def auto_needs(problem: Problem, device: Device) -> tuple[Need, ...]:
    """`auto` takes the first backend that plans: on SM90 it tries fa3 before fa2, elsewhere fa2 first."""
    return fa3_needs(problem, device) if device.is_sm(9) else fa2_needs(problem, device)


def cutlass_needs(problem: Problem, device: Device) -> tuple[Need, ...]:
    p = problem
    one_half_dtype = p.q_dtype in HALF and p.q_dtype == p.kv_dtype == p.output_dtype
    return (
        Need("SM100 family or SM110 (cutlass)", device.is_sm(10, 11)),
        Need("128 heads", p.num_qo_heads == 128),
        _needs_deepseek_latent(p),
        Need("fp16 or bf16 queries, latent and output", one_half_dtype),
        _needs_pages_that_divide_128(p),
        common.needs_causal_drafts(p),
    )


def trtllm_needs(problem: Problem, device: Device) -> tuple[Need, ...]:
    """trtllm-gen on the SM100 family, XQA on SM12x."""
    p, heads, xqa = problem, problem.num_qo_heads, device.is_sm(12)
    one_dtype = p.q_dtype in ("bf16", "fp8_e4m3") and p.kv_dtype == p.q_dtype
    return (
        Need("the SM100 family (trtllm-gen) or SM12x (XQA)", device.is_sm(10, 12)),
        _needs_deepseek_latent(p),
        Need("bf16 or fp8_e4m3 queries, and a latent of the same dtype", one_dtype),
        Need("bf16 output", p.output_dtype == "bf16"),
        Need("page_size 32 or 64", p.page_size in (32, 64)),
        Need("up to 64 heads, or 128 and more", not 64 < heads < 128),
        Need("no log-sum-exp on SM12x (XQA gives none)", not (xqa and p.return_lse)),
        Need("on SM12x, 128 heads and one query token a request", not xqa or (heads == 128 and p.s_qo == 1)),
        common.needs_causal_drafts(p),  # "trtllm-gen supports multi-Q only with causal=True"
    )


def cute_dsl_needs(problem: Problem, device: Device) -> tuple[Need, ...]:
    p = problem
    one_dtype = p.q_dtype in HALF | {"fp8_e4m3"} and p.kv_dtype == p.q_dtype
    return (
        common.needs_sm100(device),
        _needs_deepseek_latent(p),
        Need("fp16, bf16 or fp8_e4m3 queries, and a latent of the same dtype", one_dtype),
        common.needs_half_output(p),
        _needs_pages_that_divide_128(p),
        common.needs_causal_drafts(p),  # its kernel for full masks, cute-dsl-modular, has a rule of its own, which is not read yet
    )


@dataclass(frozen=True, kw_only=True)
class Mla(common.FlashInferAdapter):
    """One backend of the wrapper. Its rule is a function, since `auto` shares those of fa2 and fa3."""

    rule: Rule
    compiled: tuple[str, ...] = ()  # the generated modules that may be loaded
    routine: str = "mla"
    query_lengths: QueryLengths = "varlen"
    max_seq_len: EngineMaximum = "passed"  # as the width of the page table
    passes: frozenset[Feature] | None = USUAL
    # 0.7.0 rewrote the wrapper, and 0.7.1 its backends for fa2 and fa3, which are the same since.
    rules_hold_for: tuple[str, ...] = ("flashinfer-python>=0.7.1,<0.8",)

    def gives_lse_in(self, problem: Problem, device: Device) -> bool:
        return True  # every kernel's wrapper is asked for it, so a forced run shows what the library says

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return self.rule(problem, device)

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        p = problem
        dtypes, dims = (p.q_dtype, p.kv_dtype, p.output_dtype, "int32"), (p.head_dim_ckv or 0, p.head_dim_kpe or 0)
        made = [kernel for kernel in self.compiled if kernel != "fa3" or device.is_sm(9)][:1]
        generator = "attention.modules:gen_batch_mla_module"
        return tuple(flashinfer_module(generator, (kernel, *dtypes, *dims, False)) for kernel in made)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from flashinfer.mla import BatchMLAPagedAttentionWrapper

        backend = self.name if self.name != "trtllm-native" else "xqa" if device.is_sm(12) else "trtllm-gen"
        pages = inputs.kv_indices.clone() if self.routine == "mla" else inputs.kv_indices  # in sparse MLA they are no plan's
        wrapper = BatchMLAPagedAttentionWrapper(
            common.workspace(inputs), use_cuda_graph=True, qo_indptr=inputs.qo_indptr.clone(), kv_indptr=inputs.kv_indptr.clone(),
            kv_indices=pages, kv_len_arr=inputs.kv_lens.clone(), backend=backend,
        )  # fmt: skip
        return with_key(prepared(self, partial(_planned, wrapper), inputs, device), wrapper)


def _planned(wrapper: Any, inputs: Inputs) -> Runner:
    _plan(wrapper, inputs)
    p, out = inputs.problem, inputs.empty_output()
    resolved = str(wrapper._backend)  # what `auto` became, read after the plan
    lse = common.lse_arguments(inputs)
    launch = mla_call(wrapper, inputs, out, **lse, **_scales(inputs))
    of_fa = resolved in ("fa2", "fa3")
    plan_step = partial(_plan_step, wrapper, inputs) if of_fa else None  # the others plan no graph again
    config = plan_words(wrapper, MLA) if of_fa else ""
    more: dict[str, Any] = {"lse": lse.get("lse"), "lse_base": "2", "plan_step": plan_step, "kernel_config": config}
    return Runner(launch, out, resolved, p.q_dtype, **more)


def _plan_step(wrapper: Any, inputs: Inputs, lengths: HostLengths) -> None:
    """Plans fa2 or fa3 for other lengths. They take pages by request alone; given both forms, the wrapper would compare them."""
    pages = inputs.kv_indices[: lengths.num_pages]
    plan_mla(wrapper, inputs, (lengths.qo_indptr, lengths.kv_indptr, pages, lengths.kv_lens))


def _plan(wrapper: Any, inputs: Inputs) -> None:
    """With lengths and pages in both forms: fa2 and fa3 read page indices by request, the others a dense page table."""
    dense = {
        "cum_seq_lens_q": inputs.qo_indptr,
        "block_tables": inputs.page_table,
        "seq_lens": inputs.kv_lens,
        "max_q_len": inputs.problem.s_qo,
    }
    plan_mla(wrapper, inputs, (inputs.qo_indptr, inputs.kv_indptr, inputs.kv_indices, inputs.kv_lens), dense)


def _scales(inputs: Inputs) -> dict[str, float]:
    """The latent's scale: for each part of the latent (fa2, fa3), or for each of the two products (the others)."""
    p = inputs.problem
    if p.kv_dtype not in FP8:
        return {}
    if p.q_dtype in HALF:
        return {"ckv_scale": inputs.k_scale, "kpe_scale": inputs.k_scale}
    return {"bmm1_scale": inputs.sm_scale * inputs.k_scale, "bmm2_scale": inputs.v_scale}


# `skips_unused` and requests without keys of fa2 and fa3 were seen on an H200. Backends that need later GPUs have not run.
_READ_ONLY: dict[str, Any] = {"rules_hold_for": common.READ_ONLY}
_OF_WRAPPER: dict[str, Any] = {"takes_no_keys": True, "max_seq_len": "unread", "skips_unused": True, "gives_lse": True}
ADAPTERS = (
    Mla(name="fa2", rule=fa2_needs, compiled=("fa2",), **_OF_WRAPPER),
    Mla(name="fa3", rule=fa3_needs, compiled=("fa3",), **_OF_WRAPPER),
    Mla(name="auto", rule=auto_needs, compiled=("fa3", "fa2"), **_OF_WRAPPER),
    Mla(name="cutlass", rule=cutlass_needs, query_lengths="single"),
    Mla(name="trtllm-native", rule=trtllm_needs, query_lengths="uniform", takes_pdl=True, gives_lse=True, **_READ_ONLY),
    Mla(name="cute-dsl", rule=cute_dsl_needs, distributions=(*common.FLASHINFER, "nvidia-cutlass-dsl"), **_READ_ONLY),
)

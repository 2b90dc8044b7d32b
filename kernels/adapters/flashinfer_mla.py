"""FlashInfer's BatchMLAPagedAttentionWrapper: DeepSeek's latent attention after absorption, s_qo > 1 as one decode call (MTP).

The cache is one latent a token, keys of D_ckv + D_kpe elements of which the first D_ckv are the values. Rules read from
flashinfer-python 0.7.2.post1: `mla/_batch_mla/_auto_policy.py`, `_backends/*.py`; those of SM90 checked on an H200
(docs/support.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from kernels.adapter import Adapter, Module, QueryLengths, Runner
from kernels.dtypes import FP8, HALF
from kernels.flashinfer_common import WORKSPACE_BYTES, workspace

if TYPE_CHECKING:
    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.problem import Problem

Rule = Callable[["Problem", "Device"], dict[str, bool]]
DEEPSEEK = (512, 64)
NO_LOST_KEY = "heads that divide the query tile, or no causal edge on a KV tile (the kernel would skip a key)"


def _fa(problem: Problem, device: Device) -> dict[str, bool]:
    """What fa2 and fa3 share (`_fa_common.py`)."""
    ckv, kpe = problem.head_dim_ckv or 0, problem.head_dim_kpe or 0
    fp8 = problem.q_dtype == "bf16" and problem.kv_dtype == "fp8_e4m3"
    return {
        "fp16 or bf16 queries": problem.q_dtype in HALF,
        "a latent of the query's dtype, or fp8_e4m3 under bf16 queries on SM90": problem.kv_dtype == problem.q_dtype
        or (fp8 and device.is_sm(9)),
        "with FP8, a latent of 512 + 64": problem.kv_dtype not in FP8 or (ckv, kpe) == DEEPSEEK,
        "output of the query's dtype": problem.output_dtype == problem.q_dtype,
        "head_dim_ckv a multiple of 128, head_dim_kpe of 64": ckv % 128 == 0 and kpe % 64 == 0,
    }


def _keeps_every_key(problem: Problem, tile_kv: int) -> bool:
    """Whether no query's last visible key begins a KV tile while the query straddles a query tile: the kernels would skip it."""
    heads = problem.num_qo_heads
    tile_q = 128 if problem.num_q_tokens * heads // problem.batch_size > 64 else 64
    if tile_q % heads == 0:
        return True
    for q, kv in zip(problem.q_lens, problem.kv_lens, strict=True):
        for end in range(tile_q, q * heads, tile_q):
            query, straddles = divmod(end, heads)
            if straddles and (kv - q + query) % tile_kv == 0:
                return False
    return True


def fa2_needs(problem: Problem, device: Device) -> dict[str, bool]:
    tile_kv = 64 if device.is_sm(9, 10) and problem.kv_dtype not in FP8 else 32
    return (
        {"a CUDA device of SM80 or later": device.kind == "cuda" and device.major >= 8}
        | _fa(problem, device)
        | {
            NO_LOST_KEY: _keeps_every_key(problem, tile_kv),
        }
    )


def fa3_needs(problem: Problem, device: Device) -> dict[str, bool]:
    return (
        {"SM90 (fa3)": device.is_sm(9)}
        | _fa(problem, device)
        | {
            "head_dim_ckv 128, 256 or 512": problem.head_dim_ckv in (128, 256, 512),
            NO_LOST_KEY: _keeps_every_key(problem, tile_kv=64),
        }
    )


def auto_needs(problem: Problem, device: Device) -> dict[str, bool]:
    """`auto` tries one backend after another and takes the first that plans: fa3 then fa2 on SM90, fa2 first elsewhere."""
    return fa3_needs(problem, device) if device.is_sm(9) else fa2_needs(problem, device)


def cutlass_needs(problem: Problem, device: Device) -> dict[str, bool]:
    return {
        "SM100 family or SM110 (cutlass)": device.is_sm(10, 11),
        "one query token a request": problem.s_qo == 1,
        "128 heads": problem.num_qo_heads == 128,
        "a latent of 512 + 64": (problem.head_dim_ckv, problem.head_dim_kpe) == DEEPSEEK,
        "fp16 or bf16 queries, latent and output": problem.q_dtype == problem.kv_dtype == problem.output_dtype
        and problem.q_dtype in HALF,
        "a page_size that divides 128": 128 % problem.page_size == 0,
    }


def trtllm_needs(problem: Problem, device: Device) -> dict[str, bool]:
    """trtllm-gen on the SM100 family, XQA on SM12x."""
    heads, xqa = problem.num_qo_heads, device.is_sm(12)
    return {
        "the SM100 family (trtllm-gen) or SM12x (XQA)": device.is_sm(10, 12),
        "a latent of 512 + 64": (problem.head_dim_ckv, problem.head_dim_kpe) == DEEPSEEK,
        "bf16 or fp8_e4m3 queries, and a latent of the same dtype": problem.q_dtype in ("bf16", "fp8_e4m3")
        and problem.kv_dtype == problem.q_dtype,
        "bf16 output": problem.output_dtype == "bf16",
        "page_size 32 or 64": problem.page_size in (32, 64),
        "up to 64 heads, or 128 and more": not 64 < heads < 128,
        "on SM12x, 128 heads and one query token a request": not xqa or (heads == 128 and problem.s_qo == 1),
    }


def cute_dsl_needs(problem: Problem, device: Device) -> dict[str, bool]:
    return {
        "the SM100 family (10.0 or 10.3)": device.is_sm(10),
        "a latent of 512 + 64": (problem.head_dim_ckv, problem.head_dim_kpe) == DEEPSEEK,
        "fp16, bf16 or fp8_e4m3 queries, and a latent of the same dtype": problem.q_dtype in HALF | {"fp8_e4m3"}
        and problem.kv_dtype == problem.q_dtype,
        "fp16 or bf16 output": problem.output_dtype in HALF,
        "a page_size that divides 128": 128 % problem.page_size == 0,
    }


@dataclass(frozen=True)
class Mla(Adapter):
    routine: ClassVar[str] = "mla"
    name: str
    rule: Rule
    query_lengths: QueryLengths = "varlen"
    compiled: tuple[str, ...] = ()  # the generated modules that may be loaded

    @property
    def skips_unused(self) -> bool:
        return self.name in ("fa2", "fa3", "auto")  # seen on an H200; what needs later GPUs has not run

    def needs(self, problem: Problem, device: Device) -> dict[str, bool]:
        return {"causal drafts": problem.s_qo == 1 or problem.mask == "causal"} | self.rule(problem, device)

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        p = problem
        dtypes, dims = (p.q_dtype, p.kv_dtype, p.output_dtype, "int32"), (p.head_dim_ckv or 0, p.head_dim_kpe or 0)
        made = [kernel for kernel in self.compiled if kernel != "fa3" or device.is_sm(9)][:1]
        return tuple(
            Module("flashinfer.jit.attention.modules:gen_batch_mla_module", (kernel, *dtypes, *dims, False)) for kernel in made
        )

    def extra_bytes(self, problem: Problem) -> int:
        return WORKSPACE_BYTES

    def _backend(self, device: Device) -> str:
        if self.name != "trtllm-native":
            return self.name
        return "xqa" if device.is_sm(12) else "trtllm-gen"

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from flashinfer.mla import BatchMLAPagedAttentionWrapper

        p, out = inputs.problem, inputs.empty_output()
        wrapper = BatchMLAPagedAttentionWrapper(
            workspace(inputs),
            use_cuda_graph=True,
            qo_indptr=inputs.qo_indptr.clone(),
            kv_indptr=inputs.kv_indptr.clone(),
            kv_indices=inputs.kv_indices.clone(),
            kv_len_arr=inputs.kv_lens.clone(),
            backend=self._backend(device),
        )
        fa_fp8 = p.kv_dtype in FP8 and p.q_dtype in HALF
        wrapper.plan(
            metadata=_metadata(inputs),
            num_heads=p.num_qo_heads,
            head_dim_ckv=p.head_dim_ckv,
            head_dim_kpe=p.head_dim_kpe,
            page_size=p.page_size,
            causal=p.s_qo > 1,
            sm_scale=inputs.sm_scale,
            q_data_type=inputs.q.dtype,
            kv_data_type=inputs.latent.dtype,
            output_dtype=out.dtype,
            scale_mode="kv-per-tensor" if fa_fp8 else "bmm-scalar" if p.q_dtype in FP8 else "default",
        )
        resolved = str(wrapper._backend)  # what `auto` became, read after the plan
        run = {"query": inputs.q, "kv_cache": inputs.latent, "out": out, **_scales(inputs)}
        return Runner(lambda: wrapper.run(**run), out, resolved, p.q_dtype)


def _metadata(inputs: Inputs) -> Any:
    """Lengths and pages in both forms: fa2 and fa3 read the indices by request, the others a dense page table."""
    from flashinfer.mla import MLAPlanMetadata

    return MLAPlanMetadata.dual(
        qo_indptr=inputs.qo_indptr,
        kv_indptr=inputs.kv_indptr,
        kv_indices=inputs.kv_indices,
        kv_len_arr=inputs.kv_lens,
        cum_seq_lens_q=inputs.qo_indptr,
        block_tables=inputs.page_table,
        seq_lens=inputs.kv_lens,
        max_q_len=inputs.problem.s_qo,
    )


def _scales(inputs: Inputs) -> dict[str, float]:
    """The latent's one scale, as keys and as values: by the part it scales (fa2, fa3) or by the product (the others)."""
    p = inputs.problem
    if p.kv_dtype not in FP8:
        return {}
    if p.q_dtype in HALF:
        return {"ckv_scale": inputs.k_scale, "kpe_scale": inputs.k_scale}
    return {"bmm1_scale": inputs.sm_scale * inputs.k_scale, "bmm2_scale": inputs.v_scale}


ADAPTERS = (
    Mla("fa2", fa2_needs, compiled=("fa2",)),
    Mla("fa3", fa3_needs, compiled=("fa3",)),
    Mla("auto", auto_needs, compiled=("fa3", "fa2")),
    Mla("cutlass", cutlass_needs, query_lengths="single"),
    Mla("trtllm-native", trtllm_needs, query_lengths="uniform"),
    Mla("cute-dsl", cute_dsl_needs),
)

"""Kernels of sparse MLA on Hopper: FlashMLA's own, and two dense ones that get the indices as a page table of single tokens.

Read from tokenspeed-flashmla 1.0.0.post20260615 and deepseek-ai/FlashMLA at 9241ae3 (`csrc/api/sparse_fwd.h`, `sparse_decode.h`,
`csrc/sm90`), from vLLM 0.25.1 and 0.33.0 (`flashmla_sparse.py`, `flashattn_mla_sparse.py` and
`flashinfer_mla_sparse_sm90.py` of `v1/attention/backends/mla`).

All get slots. An engine's indexer writes positions in a request, and a small kernel of every layer turns them into slots and counts
them (vLLM: `triton_convert_req_index_to_global_index`). That is not timed, and neither is what packs the indices of a query token,
as the two dense kernels need them.
"""

# B = batch_size, Q = s_qo, T = query tokens, H = num_qo_heads, P = pages, N = slots a page, D = D_ckv + D_kpe, k = top_k

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, cast

from kernels.adapter import Adapter, Device, EngineMaximum, Inputs, Need, Problem, QueryLengths, Runner
from kernels.adapters.engine_mla import FlashAttn3Mla
from kernels.adapters.flash_mla import FlashMla, FlashMlaOfVllm
from kernels.adapters.flashinfer_mla import Mla, fa_dtype_needs
from kernels.inputs.copies import InputCopy
from kernels.inputs.tensors import bits, judged
from kernels.lazy import Tensor, torch
from kernels.libraries.engine_common import MAX_PROCESSORS
from kernels.libraries.flashinfer_common import needs_sm80
from kernels.problem.dtypes import HALF
from kernels.problem.features import Feature
from kernels.routines.sparse_mla.inputs import SparseInputs
from kernels.routines.sparse_mla.packed import unpacked
from kernels.routines.sparse_mla.problem import DS_DIMS, DS_MLA, query_rows

ROUTINE = "sparse_mla"
PADDED_HEADS = (64, 128)  # the two counts that FlashMLA's kernels have
ROWS_AT_ONCE = 64
OF_A_BUILD = ("name", "distributions", "rules_hold_for", "imports", "extra", "module")
Attend = Callable[[], tuple["Tensor", "Tensor"]]  # output [T, H, D_vo] and log-sum-exp [T, H], of padded heads too
LENGTHS: frozenset[Feature] = frozenset({"query lengths that differ", "KV lengths that differ"})


def _latent_need(p: Problem) -> Need:
    return Need("a latent of 512 + 64 or 512 + 0", (p.head_dim_ckv, p.head_dim_kpe) in (DS_DIMS, (512, 0)))


@dataclass(frozen=True, kw_only=True)
class FlashMlaSparse(FlashMla):
    """FLASHMLA_SPARSE: `flash_mla_sparse_fwd` over a bf16 cache, the decode kernel for FP8 over fp8_ds_mla.

    Both have 64 or 128 query heads, so fewer are padded in every call, as in vLLM. With FP8 vLLM calls the decode kernel for
    drafts, and where a GPU has fewer than 32 heads for prompts too; for others it decodes the cache first, which is not modelled.
    """

    routine: str = ROUTINE
    query_lengths: QueryLengths = "varlen"
    passes: frozenset[Feature] | None = LENGTHS

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p, block = problem, 64 if problem.kv_dtype == DS_MLA else 128
        return (
            Need("SM90 (FlashMLA)", device.is_sm(9)),
            Need(f"bf16 queries over bf16 or {DS_MLA}", p.q_dtype == "bf16" and p.kv_dtype in ("bf16", DS_MLA)),
            Need("output of the query's dtype", p.output_dtype == p.q_dtype),
            _latent_need(p),
            Need("up to 128 heads", p.num_qo_heads <= PADDED_HEADS[-1]),
            Need(f"top_k a multiple of 128, or of 64 over {DS_MLA}", int(p.axis("top_k") or 0) % block == 0),
        )

    def workspace_bytes(self, problem: Problem) -> int:
        """Padded queries, its output and log-sum-exp, and partial ones for each processor that a query token has, and request."""
        p, heads = problem, PADDED_HEADS[problem.num_qo_heads > PADDED_HEADS[0]]
        batch, tokens = (p.batch_size, p.s_qo) if p.min_s_qo is None else (1, p.num_q_tokens)
        splits = max(1, MAX_PROCESSORS // (tokens * heads // 64)) + batch
        parts = 4 * splits * tokens * heads * (p.value_dim + 1) if p.kv_dtype == DS_MLA else 0
        return 2 * p.num_q_tokens * heads * (p.key_dim + p.value_dim + 6) + parts

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        """A call that copies what the library allocates, [T, H, D_vo]; an engine reads it, and the log-sum-exp, where they lie."""
        p, q, out, heads = inputs.problem, inputs.q, inputs.empty_output(), inputs.problem.num_qo_heads
        copies: tuple[InputCopy, ...] = ()
        sparse, config = cast("SparseInputs", inputs), "output=copied"
        if heads not in PADDED_HEADS:
            q = q.new_zeros(q.shape[0], PADDED_HEADS[heads > PADDED_HEADS[0]], q.shape[2])
            config += f" heads={q.shape[1]}"
        if p.kv_dtype == DS_MLA:
            kernel, attend, copies = "flash_mla_sparse_fp8", _decode(sparse, q, import_module(self.module)), (sparse.packed,)
        else:
            kernel, attend = "flash_mla_sparse_fwd", _prefill(sparse, q, import_module(self.module))

        def launch() -> Tensor | None:
            if q is not inputs.q:
                q[:, :heads].copy_(inputs.q)
            found, lse = attend()
            out.copy_(found[:, :heads])
            return lse[:, :heads] if p.return_lse else None

        launch()  # it makes the plan
        more: dict[str, Any] = {"kernel_config": config, "copies": copies, "lse": "returned" if p.return_lse else None}
        return Runner(launch, out, kernel, p.q_dtype, **more)


def _prefill(inputs: SparseInputs, q: Tensor, library: Any) -> Attend:
    """The kernel gets the number of each query token's indices, or finds -1 among them itself."""
    p, rows = inputs.problem, inputs.rows
    given = {
        "kv": rows.kv[0].flatten(0, 1),  # [P * N, 1, D]
        "indices": inputs.indices[:, None],
        "sm_scale": inputs.sm_scale,
        "d_v": p.value_dim,
        "topk_length": None if p.axis("index_padding") == "within" else rows.kv_lens,
    }
    return lambda: library.flash_mla_sparse_fwd(q=q, **given)[::2]


def _decode(inputs: SparseInputs, q: Tensor, library: Any) -> Attend:
    """-1 is the kernel's own word for no token. Requests of several lengths are one request of all query tokens, as in vLLM."""
    p = inputs.problem
    shape = (p.batch_size, p.s_qo) if len(set(p.q_lens)) == 1 else (1, p.num_q_tokens)
    given = {
        "q": q.view(*shape, *q.shape[1:]),
        "k_cache": inputs.packed.cache,  # [P, N, 1, 656]
        "block_table": None,
        "cache_seqlens": None,
        "head_dim_v": p.value_dim,
        "tile_scheduler_metadata": library.get_mla_metadata()[0],
        "softmax_scale": inputs.sm_scale,
        "is_fp8_kvcache": True,
        "indices": inputs.indices.view(*shape, -1),
    }

    def attend() -> tuple[Tensor, Tensor]:
        out, lse = library.flash_mla_with_kvcache(**given)
        return out.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1)

    return attend


@dataclass(frozen=True, kw_only=True)
class FlashAttn3Sparse(FlashAttn3Mla):
    """FLASH_ATTN_MLA_SPARSE: FlashAttention-3 over pages of one token, each query token a request. vLLM makes no plan for it."""

    routine: str = ROUTINE
    max_seq_len: EngineMaximum = "refused"
    takes_empty: bool = False
    passes: frozenset[Feature] | None = LENGTHS | {"an output of another dtype"}

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        return (
            Need("SM90 (FlashAttention-3)", device.is_sm(9)),
            Need("fp16 or bf16 queries", p.q_dtype in HALF),
            Need("output of the query's dtype", p.output_dtype == p.q_dtype),
            _latent_need(p),
            Need("a latent of the query's dtype", p.kv_dtype == p.q_dtype),
        )

    def workspace_bytes(self, problem: Problem) -> int:
        return super().workspace_bytes(query_rows(problem))

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        return super().prepare(judged(inputs), device)


@dataclass(frozen=True, kw_only=True)
class FlashInferSparse(Mla):
    """FLASHINFER_MLA_SPARSE_SM90 (`fa3`): the wrapper of MLA over pages of one token, each query token a request."""

    routine: str = ROUTINE
    passes: frozenset[Feature] | None = LENGTHS | {"scales of keys and values", "an output of another dtype"}

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        """The plan keeps the inputs' own slots, which change between launches, as an engine writes them behind it in each layer."""
        return replace(super().prepare(judged(inputs), device), plan_again=None, plan_step=None)


def _fa2_needs(problem: Problem, device: Device) -> tuple[Need, ...]:
    return (needs_sm80(device), *fa_dtype_needs(problem, device))


def _fa3_needs(problem: Problem, device: Device) -> tuple[Need, ...]:
    ckv = Need("head_dim_ckv 128, 256 or 512", problem.head_dim_ckv in (128, 256, 512))
    return (Need("SM90 (fa3)", device.is_sm(9)), *fa_dtype_needs(problem, device), ckv)


@dataclass(frozen=True, kw_only=True)
class TorchIndexed(Adapter):
    """Torch alone, from the cache and the indices as engines hold them, in fp32. Slow, and serves every problem."""

    routine: str = ROUTINE
    name: str = "torch_indexed"
    query_lengths: QueryLengths = "varlen"
    gives_lse: bool = True
    distributions: tuple[str, ...] = ("torch",)
    passes: frozenset[Feature] | None = LENGTHS | {"scales of keys and values", "an output of another dtype"}

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def skips_unused_in(self, problem: Problem) -> bool:
        return problem.kv_dtype != DS_MLA

    def workspace_bytes(self, problem: Problem) -> int:
        p = problem
        return 4 * ROWS_AT_ONCE * int(p.axis("top_k") or 0) * (3 * p.key_dim + 3 * p.num_qo_heads)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        sparse, p, out, lse = cast("SparseInputs", inputs), inputs.problem, inputs.empty_output(), inputs.empty_lse()
        copies = (sparse.packed,) if p.kv_dtype == DS_MLA else ()

        def launch() -> None:
            for start in range(0, p.num_q_tokens, ROWS_AT_ONCE):
                rows = slice(start, start + ROWS_AT_ONCE)
                none = sparse.indices[rows] < 0  # [T, k]
                latent = _gathered(sparse, sparse.indices[rows].clamp(min=0).long()).masked_fill_(none[..., None], 0.0)
                scores = torch.einsum("thd,tkd->thk", inputs.q[rows].float() * inputs.sm_scale, latent)
                scores.masked_fill_(none[:, None], -torch.inf)
                total = scores.logsumexp(-1, keepdim=True)
                out[rows] = ((scores - total).exp() @ latent[..., : p.value_dim]).to(out.dtype)
                if lse is not None:
                    lse[rows] = total.squeeze(-1)

        return Runner(launch, out, f"torch_indexed_{inputs.device.type}", "fp32", lse=lse, copies=copies)


def _gathered(inputs: SparseInputs, slots: Tensor) -> Tensor:
    """The latent of these slots [T, k] as meant, fp32 [T, k, D]."""
    if inputs.problem.kv_dtype == DS_MLA:
        return unpacked(inputs.packed.cache.flatten(0, 2)[slots])
    cache = inputs.rows.kv[0].flatten(0, 2)
    return bits(cache)[slots].view(cache.dtype).float() * inputs.k_scale


ADAPTERS = (
    TorchIndexed(),
    FlashMlaSparse(),
    FlashMlaSparse(**{key: getattr(FlashMlaOfVllm, key) for key in OF_A_BUILD}),
    FlashAttn3Sparse(),
    FlashAttn3Sparse(name="flash_attn_3_unplanned", is_planned=False),
    FlashInferSparse(name="fa2", rule=_fa2_needs, compiled=("fa2",), max_seq_len="refused", skips_unused=True, gives_lse=True),
    FlashInferSparse(name="fa3", rule=_fa3_needs, compiled=("fa3",), max_seq_len="refused", skips_unused=True, gives_lse=True),
)

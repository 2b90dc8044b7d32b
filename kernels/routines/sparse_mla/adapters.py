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
from typing import TYPE_CHECKING, Any, cast

from kernels.adapter import Adapter, EngineMaximum, Need, QueryLengths, Runner
from kernels.adapters.engine_mla import FlashAttn3Mla
from kernels.adapters.flash_mla import FlashMla, FlashMlaOfVllm
from kernels.adapters.flashinfer_mla import Mla, fa_dtype_needs
from kernels.inputs.tensors import judged
from kernels.libraries.flashinfer_common import needs_sm80
from kernels.libraries.latent_common import MAX_PROCESSORS
from kernels.problem.dtypes import HALF
from kernels.routines.sparse_mla.problem import DS_DIMS, DS_MLA, query_rows

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.inputs.copies import InputCopy
    from kernels.problem import Problem
    from kernels.problem.features import Feature
    from kernels.routines.sparse_mla.inputs import SparseInputs

ROUTINE = "sparse_mla"
NOPE = (512, 0)
PADDED_HEADS = (64, 128)  # the two counts that FlashMLA's kernels have
ROWS_AT_ONCE = 64
LENGTHS: frozenset[Feature] = frozenset({"query lengths that differ", "KV lengths that differ"})


def _dims(p: Problem) -> tuple[int | None, int | None]:
    return p.head_dim_ckv, p.head_dim_kpe


def _is_packed(copy: InputCopy) -> bool:
    from kernels.routines.sparse_mla.packed import PackedLatent

    return isinstance(copy, PackedLatent)


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
        p, packed = problem, problem.kv_dtype == DS_MLA
        block = 64 if packed else 128
        return (
            Need("SM90 (FlashMLA)", device.is_sm(9)),
            Need(f"bf16 queries over bf16 or {DS_MLA}", p.q_dtype == "bf16" and p.kv_dtype in ("bf16", DS_MLA)),
            Need("output of the query's dtype", p.output_dtype == p.q_dtype),
            Need("a latent of 512 + 64 or 512 + 0", _dims(p) in (DS_DIMS, NOPE)),
            Need("up to 128 heads", p.num_qo_heads <= PADDED_HEADS[-1]),
            Need(f"top_k a multiple of 128, or of 64 over {DS_MLA}", int(p.axis("top_k") or 0) % block == 0),
        )

    def reads_copy(self, copy: InputCopy, problem: Problem) -> bool:
        return _is_packed(copy) or super().reads_copy(copy, problem)

    def workspace_bytes(self, problem: Problem) -> int:
        """Padded queries, its output and log-sum-exp, and partial ones for each processor that a query token has, and request."""
        p, heads = problem, _padded(problem.num_qo_heads)
        batch, tokens = (p.batch_size, p.s_qo) if p.min_s_qo is None else (1, p.num_q_tokens)
        splits = max(1, MAX_PROCESSORS // (tokens * heads // 64)) + batch
        parts = 4 * splits * tokens * heads * (p.value_dim + 1) if p.kv_dtype == DS_MLA else 0
        return 2 * p.num_q_tokens * heads * (p.key_dim + p.value_dim + 6) + parts

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        sparse = cast("SparseInputs", inputs)
        library = import_module(self.module)
        if inputs.problem.kv_dtype == DS_MLA:
            return self._decode(sparse, library)
        return self._prefill(sparse, library)

    def _prefill(self, inputs: SparseInputs, library: Any) -> Runner:
        """The kernel gets the number of each query token's indices, or finds -1 among them itself."""
        p, q, pad = inputs.problem, *_padded_queries(inputs)
        within = p.axis("index_padding") == "within"
        given = {
            "kv": inputs.rows.kv[0].flatten(0, 1),  # [P * N, 1, D]
            "indices": inputs.indices[:, None],
            "sm_scale": inputs.sm_scale,
            "d_v": p.value_dim,
            "topk_length": None if within else inputs.rows.kv_lens,
        }

        def attend() -> tuple[Tensor, Tensor]:
            pad()
            out, _, lse = library.flash_mla_sparse_fwd(q=q, **given)
            return out, lse

        return _copied(inputs, attend, "flash_mla_sparse_fwd", "output=copied")

    def _decode(self, inputs: SparseInputs, library: Any) -> Runner:
        """-1 is the kernel's own word for no token. Requests of several lengths are one request of all query tokens, as in vLLM."""
        p, q, pad = inputs.problem, *_padded_queries(inputs)
        packed, shape = inputs.packed, (p.batch_size, p.s_qo) if len(set(p.q_lens)) == 1 else (1, p.num_q_tokens)
        given = {
            "k_cache": packed.cache,  # [P, N, 1, 656]
            "block_table": None,
            "cache_seqlens": None,
            "head_dim_v": p.value_dim,
            "tile_scheduler_metadata": library.get_mla_metadata()[0],
            "softmax_scale": inputs.sm_scale,
            "is_fp8_kvcache": True,
            "indices": inputs.indices.view(*shape, -1),
        }
        by_request = q.view(*shape, *q.shape[1:])

        def attend() -> tuple[Tensor, Tensor]:
            pad()
            out, lse = library.flash_mla_with_kvcache(q=by_request, **given)
            return out.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1)

        attend()  # plans
        return _copied(inputs, attend, "flash_mla_sparse_fp8", "scheduler_metadata=given output=copied", packed)


@dataclass(frozen=True, kw_only=True)
class FlashMlaSparseOfVllm(FlashMlaSparse):
    """The same calls in vLLM's own build."""

    name: str = FlashMlaOfVllm.name
    distributions: tuple[str, ...] = FlashMlaOfVllm.distributions
    rules_hold_for: tuple[str, ...] = FlashMlaOfVllm.rules_hold_for
    imports: str = FlashMlaOfVllm.imports
    extra: str = FlashMlaOfVllm.extra
    module: str = FlashMlaOfVllm.module


def _padded(heads: int) -> int:
    return PADDED_HEADS[heads > PADDED_HEADS[0]]


def _padded_queries(inputs: SparseInputs) -> tuple[Tensor, Callable[[], object]]:
    """The queries [T, 64 or 128, D], and what copies them there in every call; nothing if they have so many heads."""
    q, heads = inputs.q, inputs.problem.num_qo_heads
    if heads in PADDED_HEADS:
        return q, lambda: None
    padded = q.new_zeros(q.shape[0], _padded(heads), q.shape[2])
    return padded, lambda: padded[:, :heads].copy_(q)


def _copied(
    inputs: SparseInputs, attend: Callable[[], tuple[Tensor, Tensor]], kernel: str, config: str, *copies: InputCopy
) -> Runner:
    """A call that copies what the library allocates, [T, H, D_vo]; an engine reads it, and the log-sum-exp, where they lie."""
    p, out = inputs.problem, inputs.empty_output()

    def launch() -> Tensor | None:
        found, lse = attend()
        out.copy_(found[:, : p.num_qo_heads])
        return lse[:, : p.num_qo_heads] if p.return_lse else None

    heads = "" if p.num_qo_heads in PADDED_HEADS else f" heads={_padded(p.num_qo_heads)}"
    lse: Any = "returned" if p.return_lse else None
    return Runner(launch, out, kernel, p.q_dtype, lse=lse, kernel_config=f"{config}{heads}", copies=copies)


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
            Need("a latent of 512 + 64 or 512 + 0", _dims(p) in (DS_DIMS, NOPE)),
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

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return self.rule(problem, device)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        runner = super().prepare(judged(inputs), device)
        again = runner.plan_again
        of_rows = None if again is None else lambda batch: again(judged(batch))
        return replace(runner, plan_again=of_rows, plan_step=None)


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

    def reads_copy(self, copy: InputCopy, problem: Problem) -> bool:
        return _is_packed(copy) or super().reads_copy(copy, problem)

    def workspace_bytes(self, problem: Problem) -> int:
        p = problem
        return 4 * ROWS_AT_ONCE * int(p.axis("top_k") or 0) * (3 * p.key_dim + 3 * p.num_qo_heads)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        import torch

        sparse, p, out, lse = cast("SparseInputs", inputs), inputs.problem, inputs.empty_output(), inputs.empty_lse()
        copies = (sparse.packed,) if p.kv_dtype == DS_MLA else ()

        def launch() -> None:
            for start in range(0, p.num_q_tokens, ROWS_AT_ONCE):
                rows = slice(start, start + ROWS_AT_ONCE)
                none = sparse.indices[rows] < 0  # [T, k]
                latent = _gathered(sparse, sparse.indices[rows].clamp(min=0).long()).masked_fill_(none[..., None], 0.0)
                scores = torch.einsum("thd,tkd->thk", inputs.q[rows].float() * inputs.sm_scale, latent).masked_fill_(
                    none[:, None], -torch.inf
                )
                total = scores.logsumexp(-1, keepdim=True)
                out[rows] = ((scores - total).exp() @ latent[..., : p.value_dim]).to(out.dtype)
                if lse is not None:
                    lse[rows] = total.squeeze(-1)

        return Runner(launch, out, f"torch_indexed_{inputs.device.type}", "fp32", lse=lse, copies=copies)


def _gathered(inputs: SparseInputs, slots: Tensor) -> Tensor:
    """The latent of these slots [T, k] as meant, fp32 [T, k, D]."""
    from kernels.inputs.tensors import bits
    from kernels.routines.sparse_mla.packed import unpacked

    if inputs.problem.kv_dtype == DS_MLA:
        return unpacked(inputs.packed.cache.flatten(0, 2)[slots])
    cache = inputs.rows.kv[0].flatten(0, 2)
    return bits(cache)[slots].view(cache.dtype).float() * inputs.k_scale


ADAPTERS = (
    TorchIndexed(),
    FlashMlaSparse(),
    FlashMlaSparseOfVllm(),
    FlashAttn3Sparse(),
    FlashAttn3Sparse(name="flash_attn_3_unplanned", is_planned=False),
    FlashInferSparse(name="fa2", rule=_fa2_needs, compiled=("fa2",), max_seq_len="refused", skips_unused=True, gives_lse=True),
    FlashInferSparse(name="fa3", rule=_fa3_needs, compiled=("fa3",), max_seq_len="refused", skips_unused=True, gives_lse=True),
)

"""Problems of sparse MLA: which tokens each query token attends to, and the same problem with each query token as a request.

DeepSeek-V3.2 and GLM-5 choose `top_k` tokens of the context for each query token (their indexer, which is not timed here) and
attend to these alone. Here they are drawn: each query token takes `top_k` tokens of one random order of its request's context, and
starts an eighth of `top_k` behind the one before it. So neighbours share seven eighths, which says how many bytes a kernel must
read at least. No published measurement was found of how many they share.
"""

# T = query tokens of all requests
from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

from kernels.problem.dtypes import HALF, size_bytes
from kernels.problem.problem import Problem
from kernels.problem.routine import Axis, Routine
from kernels.problem.validation import require_latent

STEP = 8  # a query token's first token of the context lies top_k / STEP behind that of the query token before
TOKEN_BYTES = 656  # of fp8_ds_mla: 512 fp8_e4m3, 4 scales in fp32, 64 bf16
CHANGED = 8  # query tokens of a request at most, whose tokens of the cache change in the check
DS_MLA, DS_DIMS = "fp8_ds_mla", (512, 64)
CACHES = ("fp16", "bf16", "fp8_e4m3", DS_MLA)
ONE_MODEL = {"num_qo_heads": 8, "num_kv_heads": 8, "head_dim_qk": 192, "head_dim_vo": 128, "head_dim_ckv": 512, "head_dim_kpe": 64}


class TokenSet(NamedTuple):
    """The tokens of one query token: `context` of its request's random order from `first` on, and its `newest`, itself the last."""

    first: int
    context: int
    newest: int

    @property
    def total(self) -> int:
        return self.context + self.newest


class SparseMla(Routine):
    name = "sparse_mla"
    oracle = "fp32_streaming_softmax"
    latent = attends = True
    keys = frozenset({
        "min_s_qo", "seq_lens", "batch_spec", "softmax_scale", "page_order", "head_dim_ckv", "head_dim_kpe", "q_dtype", "kv_dtype",
        "out_dtype", "return_lse",
    })  # fmt: skip
    # index_order: shuffled, as top-k kernels leave them. newest: whether the query tokens of the request up to a query token's own
    # are among its tokens. index_padding: some query tokens have half as many, and -1 behind them (some) or among them (within).
    axes: ClassVar[Mapping[str, Axis]] = {
        "top_k": 2048,
        "index_order": ("shuffled", "ascending"),
        "newest": ("listed", "left_out"),
        "index_padding": ("none", "some", "within"),
    }
    any_model: ClassVar[Mapping[str, int]] = ONE_MODEL

    def check(self, problem: Any) -> None:
        p = problem
        require_latent(p)
        if p.q_dtype not in HALF | {"fp32"} or (p.kv_dtype not in CACHES and p.kv_dtype != p.q_dtype):
            raise ValueError(f"dtypes {p.q_dtype} over {p.kv_dtype}: allowed: fp16 or bf16 queries over {', '.join(CACHES)}")
        if p.kv_dtype == DS_MLA and ((p.head_dim_ckv, p.head_dim_kpe) != DS_DIMS or p.q_dtype != "bf16"):
            raise ValueError(f"kv_dtype={DS_MLA}: allowed with bf16 queries and a latent of 512 + 64, for which it is made")
        if p.axis("newest") == "left_out" and any(q == kv for q, kv in zip(p.q_lens, p.kv_lens, strict=True)):
            raise ValueError("newest=left_out: allowed with a context, that is, s_kv greater than s_qo; type newest=listed")

    def judged(self, problem: Any) -> Problem:
        return query_rows(problem)

    def flops(self, problem: Any) -> int:
        p = problem
        found: int = 2 * p.num_qo_heads * (p.key_dim + p.value_dim) * sum(one.total for one in chosen(p))
        return found

    def kv_bytes(self, problem: Any) -> int:
        """Each token once for each request in which a query token chose it: what they share is read once at the fewest."""
        return token_bytes(problem) * tokens_read(problem)

    def input_bytes(self, problem: Any) -> int:
        """With the index sets three times (as kernels read them, as pages, as positions), and what fp8_ds_mla decodes to."""
        p = problem
        decoded = size_bytes("bf16", p.key_dim) if p.kv_dtype == DS_MLA else 0
        indices = p.num_q_tokens * int(p.axis("top_k")) * (4 + 4 + 8)
        found: int = p.num_pages * p.page_size * (token_bytes(p) + decoded) + p.query_bytes + p.output_bytes + indices
        return found

    def share(self, model: Any, tp: int) -> dict[str, Any] | str:
        if model.index_topk is None or model.head_dim_ckv is None:
            return (
                f"model {model.name} has no index_topk and head_dim_ckv, so it does not attend sparsely over a latent; "
                f"type model=deepseek_v3_2, or a sweep of another routine, such as +sweep=mla_mtp"
            )
        heads = {key: max(1, getattr(model, key) // tp) for key in ("num_qo_heads", "num_kv_heads")}
        dims = {key: getattr(model, key) for key in ("head_dim_qk", "head_dim_vo", "head_dim_ckv", "head_dim_kpe", "page_size")}
        scale = {} if model.softmax_scale is None else {"softmax_scale": model.softmax_scale}
        return {**heads, **dims, **scale, "top_k": model.index_topk}


ROUTINE = SparseMla()


def token_bytes(problem: Problem) -> int:
    return TOKEN_BYTES if problem.kv_dtype == DS_MLA else size_bytes(problem.kv_dtype, problem.key_dim)


@lru_cache(maxsize=256)
def chosen(problem: Problem) -> tuple[TokenSet, ...]:
    """What each query token of the batch attends to, [T]. All that it may see where that is no more than `top_k`."""
    top_k, step = int(problem.axis("top_k") or 1), _step(problem)
    listed, padded = problem.axis("newest") == "listed", problem.axis("index_padding") != "none"
    found: list[TokenSet] = []
    for q_len, length in zip(problem.q_lens, problem.kv_lens, strict=True):
        context = length - q_len
        for token in range(q_len):
            newest = min(token + 1, max(1, top_k // 2, top_k - context)) if listed else 0
            older = min(top_k - newest, context)
            if padded and not len(found) % 3:
                kept = max(1, (newest + older) // 2)  # half as many: first without some older ones
                newest, older = min(newest, kept), max(0, kept - newest)
            found.append(TokenSet(token * step % max(1, context), older, newest))
    return tuple(found)


def tokens_read(problem: Problem) -> int:
    """Tokens of each request that at least one of its query tokens attends to, summed over requests.

    Of the newest that is each query token; of the context's order all up to the last chosen one, since neighbours overlap.
    """
    total, rows = 0, chosen(problem)
    for start, q_len, length in zip(problem.q_starts, problem.q_lens, problem.kv_lens, strict=False):
        own = rows[start : start + q_len]
        reached = max(token * _step(problem) + one.context for token, one in enumerate(own))
        total += min(length - q_len, reached) + q_len * (own[-1].newest > 0)
    return total


def _step(problem: Problem) -> int:
    """By how much the first token of a query token lies behind that of the one before, in the order of the context."""
    return max(1, int(problem.axis("top_k") or 1) // STEP)


class QueryRows(Problem):
    """The same batch with each query token as a request of its own, whose pages of one token are those that it attends to.

    So it is dense MLA, without a mask and with tokens that several requests share: as the kernels of FlashAttention-3 and
    FlashInfer are called, and as the check judges all. A request's keys are in the order of its indices. Made by `query_rows`.
    """

    real: Problem

    @cached_property
    def q_lens(self) -> tuple[int, ...]:
        return (1,) * self.batch_size

    @cached_property
    def kv_lens(self) -> tuple[int, ...]:
        return tuple(one.total for one in chosen(self.real))

    @property
    def num_pages(self) -> int:
        """All slots of the cache."""
        return self.real.num_pages * self.real.page_size

    @property
    def shares_tokens(self) -> bool:
        return True

    @cached_property
    def apart(self) -> tuple[tuple[int, ...], ...]:
        """The last query tokens of all requests, then those before them, and so on, up to `CHANGED`."""
        last = [(stop - 1, q_len) for stop, q_len in zip(self.real.q_starts[1:], self.real.q_lens, strict=True)]
        return tuple(tuple(row - n for row, q_len in last if n < q_len) for n in range(min(CHANGED, self.real.s_qo)))

    @property
    def judged(self) -> Problem:
        return self


@lru_cache(maxsize=4096)
def query_rows(problem: Problem) -> QueryRows:
    """Each query token of a problem of sparse MLA as a request."""
    counts = {one.total for one in chosen(problem)}
    own: dict[str, Any] = {
        "routine": "mla", "routine_axes": None, "batch_size": problem.num_q_tokens, "s_qo": 1, "min_s_qo": None, "batch_spec": None,
        "s_kv": max(counts), "seq_lens": "fixed" if len(counts) == 1 else "listed", "max_seq_len": problem.axis("top_k"),
        "mask": "full", "page_size": 1, "real": problem, "kv_dtype": "bf16" if problem.kv_dtype == DS_MLA else problem.kv_dtype,
    }  # fmt: skip
    return QueryRows.model_construct(**{**{name: getattr(problem, name) for name in Problem.model_fields}, **own})

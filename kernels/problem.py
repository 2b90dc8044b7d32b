"""One attention problem: its axes, its lengths, the bytes it must move and the FLOPs it must do. Pure Python, no torch."""

from __future__ import annotations

import random
from functools import cached_property
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kernels import batch_spec
from kernels.dtypes import HALF, DtypeName, size_bytes

# Strict: neither true nor "8" is a count. Kernels index with 32 bits.
Count = Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]
Routine = Literal["paged_decode", "paged_prefill", "ragged_prefill", "mla"]

ROUTINES: tuple[str, ...] = get_args(Routine)
INT64_MAX = 2**63 - 1
PLAIN_MASKS = ("causal", "full")
UNUSED = {"ragged_prefill": frozenset({"page_size", "kv_layout", "page_order"}), "mla": frozenset({"kv_layout"})}


class Problem(BaseModel):
    """A batch of requests that each attend with up to `s_qo` query tokens over a KV cache of up to `s_kv` tokens.

    `s_kv` counts every token that a query may see, the query tokens included: the context is `s_kv - s_qo`. Lengths are
    tokens. Routines: `paged_decode` and `paged_prefill` read pages, `ragged_prefill` reads tokens that lie one after another,
    `mla` reads pages of DeepSeek's compressed latent, on which every query head attends (`head_dim_qk` and `head_dim_vo`
    are then the model's own, before absorption; the softmax scale comes from them).

    A new field needs a default that leaves the old problems what they were: `point_id` hashes what differs from the defaults.
    Raises pydantic's ValidationError, one entry for each key that is wrong.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    routine: Routine = "paged_decode"
    model: str = "custom"
    tp: Count = 1  # tensor-parallel size that the head counts are a share of
    batch_size: Count
    s_qo: Count
    min_s_qo: Count | None = None  # with it, query lengths are uniform in [min_s_qo, s_qo]; else all are s_qo
    s_kv: Count
    seq_lens: Literal["fixed", "random", "listed"] = "fixed"
    batch_spec: str | None = None  # the lengths of each request, such as 2q2k_8q1s1k, where they are neither alike nor drawn
    mask: str = "causal"  # causal, full, or the name of the tree in `tree`
    tree: tuple[int, ...] | None = None  # parent of each query token, -1 for the root; every parent comes before its children
    window: Count | None = None  # keys that a query sees back from itself, itself included; None: all
    sinks: bool = False  # one learned logit a head joins each softmax
    page_size: Count = 64
    kv_layout: Literal["HND", "NHD"] = "HND"
    page_order: Literal["random", "sequential"] = "random"
    num_qo_heads: Count
    num_kv_heads: Count
    head_dim_qk: Count
    head_dim_vo: Count
    head_dim_ckv: Count | None = None
    head_dim_kpe: Count | None = None
    q_dtype: DtypeName = "bf16"
    kv_dtype: DtypeName = "bf16"
    out_dtype: DtypeName | None = None  # None: the query's dtype where that has 16 bits or more, else bf16
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="before")
    @classmethod
    def _one_name_for_one_problem(cls, keys: Any) -> Any:
        """A range of one length is that length, a batch of one length needs no spec, what a routine does not have is default."""
        if not isinstance(keys, dict):
            return keys
        unused = UNUSED.get(str(keys.get("routine")), frozenset())
        if keys.get("min_s_qo") is not None and keys["min_s_qo"] == keys.get("s_qo"):
            unused |= {"min_s_qo"}
        kept = {key: value for key, value in keys.items() if key not in unused}
        return _with_lengths(kept) if isinstance(kept.get("batch_spec"), str) else kept

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for check in (_lengths, _heads, _mask, _latent, _dtypes, _size):
            check(self)
        return self

    @property
    def latent(self) -> bool:
        """Whether keys and values are one latent that every head reads."""
        return self.routine == "mla"

    @property
    def paged(self) -> bool:
        return self.routine != "ragged_prefill"

    @property
    def stored_kv_heads(self) -> int:
        """KV heads that the cache holds: one latent for all, or the model's."""
        return 1 if self.latent else self.num_kv_heads

    @property
    def key_dim(self) -> int:
        """Length of the vectors that a query head and a key multiply."""
        return (self.head_dim_ckv or 0) + (self.head_dim_kpe or 0) if self.latent else self.head_dim_qk

    @property
    def value_dim(self) -> int:
        """Length of an output vector of one head."""
        return (self.head_dim_ckv or 0) if self.latent else self.head_dim_vo

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_qo_heads // self.stored_kv_heads

    @property
    def output_dtype(self) -> str:
        """The dtype that a kernel must write."""
        return self.out_dtype or default_output(self.q_dtype)

    @cached_property
    def q_lens(self) -> tuple[int, ...]:
        """Query tokens of each request: all `s_qo`, as `batch_spec` lists them, or uniform in [min_s_qo, s_qo] from `seed` with
        one request at `s_qo`."""
        if self.batch_spec is not None:
            return tuple(q for q, _ in batch_spec.lengths(self.batch_spec))
        if self.min_s_qo is None:
            return (self.s_qo,) * self.batch_size
        draw = random.Random(f"q{self.seed}")
        lens = [draw.randint(self.min_s_qo, self.s_qo) for _ in range(self.batch_size)]
        lens[draw.randrange(self.batch_size)] = self.s_qo
        return tuple(lens)

    @cached_property
    def kv_lens(self) -> tuple[int, ...]:
        """The KV length of each request, query tokens included.

        `fixed`: all `s_kv`. `listed`: those of `batch_spec`. `random`: uniform in [s_qo, s_kv] from `seed`, one request kept at
        `s_kv`, so that the plan, the bytes and the page table all speak of the same lengths.
        """
        if self.batch_spec is not None:
            return tuple(kv for _, kv in batch_spec.lengths(self.batch_spec))
        if self.seq_lens == "fixed":
            return (self.s_kv,) * self.batch_size
        draw = random.Random(self.seed)
        lens = [draw.randint(self.s_qo, self.s_kv) for _ in range(self.batch_size)]
        lens[draw.randrange(self.batch_size)] = self.s_kv
        return tuple(lens)

    @cached_property
    def num_q_tokens(self) -> int:
        return self.batch_size * self.s_qo if self.min_s_qo is None else sum(self.q_lens)

    @cached_property
    def num_kv_tokens(self) -> int:
        return sum(self.kv_lens) if self.seq_lens != "fixed" else self.batch_size * self.s_kv

    @property
    def slots_per_page(self) -> int:
        """Tokens that lie together before a page table is asked again; ragged tokens are pages of one."""
        return self.page_size if self.paged else 1

    @cached_property
    def num_pages(self) -> int:
        """Pages that hold the KV cache; the last page of a request may be partly used."""
        n = self.slots_per_page
        if self.seq_lens != "fixed":
            return sum(-(-length // n) for length in self.kv_lens)
        return self.batch_size * -(-self.s_kv // n)

    @cached_property
    def visible_pairs(self) -> int:
        """(query, key) pairs that the mask lets through, summed over requests."""
        if self.min_s_qo is None and self.seq_lens == "fixed":
            return self.batch_size * self._pairs(self.s_qo, self.s_kv)
        return sum(self._pairs(q, length) for q, length in zip(self.q_lens, self.kv_lens, strict=True))

    def _pairs(self, q: int, length: int) -> int:
        """Pairs of one request. Causal: query j sees length - q + j + 1 keys; a tree's query its ancestors and itself."""
        if self.tree is not None:
            return q * (length - q) + sum(depths(self.tree[:q]))
        if self.window is not None:
            return sum(min(length - q + j + 1, self.window) for j in range(q))
        return q * length - (q * (q - 1) // 2 if self.mask == "causal" else 0)

    @cached_property
    def visible_kv_tokens(self) -> int:
        """KV tokens that at least one query sees: all of them, but for a sliding window."""
        if self.window is None:
            return self.num_kv_tokens
        return sum(min(length, self.window + q - 1) for q, length in zip(self.q_lens, self.kv_lens, strict=True))

    @cached_property
    def flops(self) -> int:
        """Multiplications and additions of Q.K and P.V: 2 * H_q * (d_qk + d_vo) * visible pairs."""
        return 2 * self.num_qo_heads * (self.key_dim + self.value_dim) * self.visible_pairs

    @property
    def kv_token_elements(self) -> int:
        """Elements that the cache holds for one token: keys and values of every head, or the latent once."""
        return self.key_dim if self.latent else self.num_kv_heads * (self.head_dim_qk + self.head_dim_vo)

    @cached_property
    def kv_bytes(self) -> int:
        """Bytes of one read of the keys and values that the queries see."""
        return size_bytes(self.kv_dtype, self.visible_kv_tokens * self.kv_token_elements)

    @cached_property
    def qo_bytes(self) -> int:
        """Bytes of the queries and of one output."""
        rows = self.num_q_tokens * self.num_qo_heads
        return size_bytes(self.q_dtype, rows * self.key_dim) + size_bytes(self.output_dtype, rows * self.value_dim)

    @property
    def bytes(self) -> int:
        """Fewest bytes a kernel moves: queries and KV read once, outputs written once; page tables are not counted."""
        return self.qo_bytes + self.kv_bytes

    @cached_property
    def input_bytes(self) -> int:
        """Bytes that the inputs and one output occupy, whole pages counted."""
        return size_bytes(self.kv_dtype, self.num_pages * self.slots_per_page * self.kv_token_elements) + self.qo_bytes


def default_output(q_dtype: str) -> str:
    """The dtype of an output that none is asked for: the query's where that has 16 bits or more, else bf16."""
    return q_dtype if q_dtype in HALF or q_dtype == "fp32" else "bf16"


def depths(tree: tuple[int, ...]) -> list[int]:
    """Tokens on the way from the root to each token of a tree, both counted: the draft keys it sees."""
    found: list[int] = []
    for parent in tree:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def _with_lengths(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys with the lengths that their `batch_spec` lists. Raises ValueError where a key says something else."""
    listed = batch_spec.keys_of(keys["batch_spec"])
    for key, value in listed.items():
        if key != "batch_spec" and keys.get(key, value) != value:
            raise ValueError(f"{key}={keys[key]!r}: batch_spec={keys['batch_spec']!r} says {value}; leave {key} out")
    return keys | listed


def _lengths(p: Problem) -> None:
    if p.seq_lens == "listed" and p.batch_spec is None:
        raise ValueError("seq_lens='listed': allowed with a batch_spec, which lists them; type fixed or random, or give batch_spec")
    if p.s_qo > p.s_kv:
        raise ValueError(
            f"s_qo={p.s_qo} is greater than s_kv={p.s_kv}; allowed: s_qo <= s_kv, since s_kv counts the s_qo "
            f"draft tokens too. Type sweep.s_qo=[...] with smaller values, or add an exclude rule for these points"
        )
    if p.min_s_qo is not None and p.min_s_qo > p.s_qo:
        raise ValueError(
            f"s_qo={{min: {p.min_s_qo}, max: {p.s_qo}}}: allowed: a min that is at most max, such as {{min: 1, max: 8}}"
        )


def _heads(p: Problem) -> None:
    if p.num_qo_heads % p.num_kv_heads:
        raise ValueError(
            f"num_qo_heads={p.num_qo_heads} does not divide by num_kv_heads={p.num_kv_heads}; "
            f"allowed: a multiple of num_kv_heads, such as {p.num_kv_heads * 8}"
        )


def _mask(p: Problem) -> None:
    if (p.mask in PLAIN_MASKS) != (p.tree is None):
        raise ValueError(f"mask={p.mask!r}: allowed: {' or '.join(PLAIN_MASKS)}, or the name of a tree in conf/trees")
    if p.tree is not None and (
        len(p.tree) != p.s_qo or p.tree[0] != -1 or any(not 0 <= parent < i for i, parent in enumerate(p.tree) if i)
    ):
        raise ValueError(
            f"mask={p.mask!r}: tree {list(p.tree)} for s_qo={p.s_qo}; allowed: s_qo parents, -1 and then earlier tokens"
        )
    if p.window is not None and p.mask != "causal":
        raise ValueError(f"window={p.window}: allowed with mask=causal alone, not with mask={p.mask!r}")


def _latent(p: Problem) -> None:
    given = p.head_dim_ckv is not None and p.head_dim_kpe is not None
    if p.latent and not given:
        raise ValueError("head_dim_ckv: routine=mla needs head_dim_ckv and head_dim_kpe; type model=deepseek_v3, or give both")
    if p.latent and (p.window is not None or p.sinks):
        raise ValueError("routine=mla takes neither window nor sinks; no model has MLA with them")


def _dtypes(p: Problem) -> None:
    if "nvfp4" in (p.q_dtype, p.output_dtype):
        raise ValueError("dtype nvfp4: allowed for keys and values alone; type sweep.dtype=[{q: bf16, kv: nvfp4}]")
    dims = (p.head_dim_qk, p.head_dim_vo)
    if p.kv_dtype == "nvfp4" and (p.latent or any(dim % 16 for dim in dims)):
        raise ValueError(f"kv_dtype=nvfp4 with head_dims {dims}: allowed: multiples of 16 (a block has one scale), and no mla")


def _size(p: Problem) -> None:
    if p.flops > INT64_MAX:
        raise ValueError(
            f"batch_size={p.batch_size}, s_kv={p.s_kv} and s_qo={p.s_qo} make {p.flops:.1g} FLOPs; "
            f"allowed: at most {INT64_MAX:.1g}, which a row can hold"
        )

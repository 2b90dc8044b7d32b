"""One attention problem: its axes, its lengths, the bytes it must move and the FLOPs it must do. Pure Python, no torch."""

from __future__ import annotations

import random
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kernels.dtypes import HALF, SIZE_BYTES, DtypeName

# Strict: neither true nor "8" is a count. Kernels index with 32 bits.
Count = Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]

INT64_MAX = 2**63 - 1


class Problem(BaseModel):
    """A batch of requests that each attend with `s_qo` query tokens over a paged KV cache of up to `s_kv` tokens.

    `s_kv` counts every token that a query may see, the `s_qo` draft tokens included: the context is `s_kv - s_qo`.
    Lengths are tokens. Raises pydantic's ValidationError, one entry for each key that is wrong.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    routine: Literal["paged_decode"] = "paged_decode"
    model: str = "custom"
    batch_size: Count
    s_qo: Count
    s_kv: Count
    seq_lens: Literal["fixed", "random"] = "fixed"
    mask: Literal["causal", "full"] = "causal"
    page_size: Count = 64
    kv_layout: Literal["HND", "NHD"] = "HND"
    page_order: Literal["random", "sequential"] = "random"
    num_qo_heads: Count
    num_kv_heads: Count
    head_dim_qk: Count
    head_dim_vo: Count
    q_dtype: DtypeName = "bf16"
    kv_dtype: DtypeName = "bf16"
    out_dtype: DtypeName | None = None  # None: the query's dtype where that has 16 bits or more, else bf16
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.s_qo > self.s_kv:
            raise ValueError(
                f"s_qo={self.s_qo} is greater than s_kv={self.s_kv}; allowed: s_qo <= s_kv, since s_kv counts the s_qo "
                f"draft tokens too. Type sweep.s_qo=[...] with smaller values, or add an exclude rule for these points"
            )
        if self.num_qo_heads % self.num_kv_heads:
            raise ValueError(
                f"num_qo_heads={self.num_qo_heads} does not divide by num_kv_heads={self.num_kv_heads}; "
                f"allowed: a multiple of num_kv_heads, such as {self.num_kv_heads * 8}"
            )
        if self.flops > INT64_MAX:
            raise ValueError(
                f"batch_size={self.batch_size}, s_kv={self.s_kv} and s_qo={self.s_qo} make {self.flops:.1g} FLOPs; "
                f"allowed: at most {INT64_MAX:.1g}, which a row can hold"
            )
        return self

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_qo_heads // self.num_kv_heads

    @property
    def output_dtype(self) -> str:
        """The dtype that a kernel must write."""
        if self.out_dtype is not None:
            return self.out_dtype
        return self.q_dtype if self.q_dtype in HALF or self.q_dtype == "fp32" else "bf16"

    @cached_property
    def kv_lens(self) -> tuple[int, ...]:
        """The KV length of each request, draft tokens included.

        `fixed`: all `s_kv`. `random`: uniform in [s_qo, s_kv] from `seed`, one request kept at `s_kv`, so that the
        plan, the bytes and the page table all speak of the same lengths.
        """
        if self.seq_lens == "fixed":
            return (self.s_kv,) * self.batch_size
        draw = random.Random(self.seed)
        lens = [draw.randint(self.s_qo, self.s_kv) for _ in range(self.batch_size)]
        lens[draw.randrange(self.batch_size)] = self.s_kv
        return tuple(lens)

    @cached_property
    def num_kv_tokens(self) -> int:
        return sum(self.kv_lens) if self.seq_lens == "random" else self.batch_size * self.s_kv

    @cached_property
    def num_pages(self) -> int:
        """Pages that hold the KV cache; the last page of a request may be partly used."""
        if self.seq_lens == "random":
            return sum(-(-length // self.page_size) for length in self.kv_lens)
        return self.batch_size * -(-self.s_kv // self.page_size)

    @property
    def visible_pairs(self) -> int:
        """(query, key) pairs that the mask lets through, summed over requests.

        Causal: query j of a draft block of q sees L - q + j + 1 keys, which sums to q*L - q*(q-1)/2.
        """
        q = self.s_qo
        pairs = q * self.num_kv_tokens
        return pairs - self.batch_size * q * (q - 1) // 2 if self.mask == "causal" else pairs

    @property
    def flops(self) -> int:
        """Multiplications and additions of Q.K and P.V: 2 * H_q * (d_qk + d_vo) * visible pairs."""
        return 2 * self.num_qo_heads * (self.head_dim_qk + self.head_dim_vo) * self.visible_pairs

    @property
    def kv_bytes(self) -> int:
        """Bytes of one read of the keys and values that the requests hold."""
        return self.num_kv_tokens * self.num_kv_heads * (self.head_dim_qk + self.head_dim_vo) * SIZE_BYTES[self.kv_dtype]

    @property
    def bytes(self) -> int:
        """Fewest bytes a kernel moves: queries and KV read once, outputs written once; page tables are not counted."""
        per_row = self.head_dim_qk * SIZE_BYTES[self.q_dtype] + self.head_dim_vo * SIZE_BYTES[self.output_dtype]
        return self.batch_size * self.s_qo * self.num_qo_heads * per_row + self.kv_bytes

    @property
    def input_bytes(self) -> int:
        """Bytes that the inputs and one output occupy, whole pages counted."""
        per_token = self.num_kv_heads * (self.head_dim_qk + self.head_dim_vo) * SIZE_BYTES[self.kv_dtype]
        return self.num_pages * self.page_size * per_token + self.bytes - self.kv_bytes

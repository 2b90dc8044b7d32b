"""Problems of writing a cache: new tokens of each request get their slots in pages, as they are, quantised, or rotated before that.

The axes are those of attention over pages, since a step writes what it then attends to: `s_kv` counts the new tokens, the last
`s_qo` of each request. Only pages that these reach are in memory. Earlier ones of all requests are a few shared pages, as of a
common prefix, so a context takes no room. `head_dim_ckv` and `head_dim_kpe` make it the latent of MLA.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from kernels.problem.dtypes import FP8, HALF, size_bytes
from kernels.problem.routine import Axis, Routine
from kernels.problem.validation import require_latent

SPARE_PAGES = 8  # of earlier tokens of all requests: whoever writes there is seen


class CacheWrite(Routine):
    name = "cache_write"
    oracle = "fp32_rotation"
    keys = frozenset({"min_s_qo", "seq_lens", "batch_spec", "kv_layout", "head_dim_ckv", "head_dim_kpe", "q_dtype", "kv_dtype"})
    # rope: keys are rotated before, and queries too, which are then a second output in the cache's dtype, as attention in FP8 reads
    # them. scales: of an FP8 cache, one for keys and one for values, or one for each head of these.
    axes: ClassVar[Mapping[str, Axis]] = {"rope": ("none", "neox", "interleaved"), "scales": ("tensor", "head")}
    second_output = True
    any_model: ClassVar[Mapping[str, int]] = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128}
    promises: ClassVar[Mapping[str, str]] = {
        "lost": "loses a token in one KV head",
        "moved": "writes a token into another slot",
        "stray": "writes a token into a second slot beside its own",
        "off": "leaves an element two numbers of the cache's dtype off",
        "kept": "writes from memory",
    }

    def completed(self, keys: dict[str, Any]) -> dict[str, Any]:
        """A latent has one head, so its scale is that of the tensor."""
        axes = str(keys["routine_axes"]).replace("scales=head", "scales=tensor")
        return {**keys, "routine_axes": axes} if keys.get("head_dim_ckv") else keys

    def check(self, problem: Any) -> None:
        p, given, cached = problem, problem.q_dtype, problem.kv_dtype
        require_latent(p)
        whole = p.head_dim_qk == p.head_dim_vo if p.head_dim_ckv is None else p.head_dim_kpe
        turned, by_head = p.axis("rope") != "none", p.axis("scales") == "head"
        rotates = not turned or (given not in FP8 and sizes(p).rotated % 2 == 0)
        for fits, words in (
            (whole, "keys and values of one head_dim, or head_dim_ckv with head_dim_kpe"),
            (given == cached or (cached in FP8 and given not in FP8), f"a cache in {given} or FP8, and FP8 keys in their own"),
            (given in HALF | FP8 | {"fp32"}, "keys in 32, 16 or 8 bits"),
            (rotates, "with rope keys in 16 or 32 bits, of an even head_dim"),
            (not by_head or (given != cached and not turned), "scales=head for keys that are quantised alone"),
        ):
            if not fits:
                found = f"q_dtype={given}, kv_dtype={cached}, {p.routine_axes}, head_dims {p.head_dim_qk} and {p.head_dim_vo}"
                raise ValueError(f"{found}: allowed with routine=cache_write: {words}")

    def flops(self, problem: Any) -> int:
        """One for each element that is written, and three more for one that is rotated."""
        p, own = problem, sizes(problem)
        rotated = own.rotated * (p.num_qo_heads + (1 if p.head_dim_ckv else p.num_kv_heads)) if own.queries else 0
        found: int = p.num_q_tokens * (own.elements + 3 * rotated)
        return found

    def kv_bytes(self, problem: Any) -> int:
        """What is written into the cache."""
        return size_bytes(problem.kv_dtype, problem.num_q_tokens * sizes(problem).elements)

    def qo_bytes(self, problem: Any) -> int:
        """New keys and values, read once; with rope queries, read once and written once."""
        p, own = problem, sizes(problem)
        written = size_bytes(p.kv_dtype, p.num_q_tokens * own.queries)
        return size_bytes(p.q_dtype, p.num_q_tokens * (own.elements + own.queries)) + written

    def input_bytes(self, problem: Any) -> int:
        """The pages before the write and the call's own, the table of angles, and the rest."""
        own = sizes(problem)
        angles = 4 * own.rotated * problem.s_kv if own.queries else 0
        return 2 * size_bytes(problem.kv_dtype, own.pages * problem.page_size * own.elements) + angles + self.qo_bytes(problem)

    def share(self, model: Any, tp: int) -> dict[str, Any] | str:
        heads = {key: max(1, getattr(model, key) // tp) for key in ("num_qo_heads", "num_kv_heads")}
        dims = ("head_dim_qk", "head_dim_vo", "head_dim_ckv", "head_dim_kpe", "page_size")
        return {**heads, **{key: value for key in dims if (value := getattr(model, key)) is not None}}


ROUTINE = CacheWrite()


class Sizes(NamedTuple):
    token: tuple[int, ...]  # in the cache: keys and values of each head, [2, K, D]; or a latent [D]
    elements: int  # of a token
    rotated: int  # elements of a key that are rotated with rope: the last ones of a latent
    queries: int  # elements of a token's queries, which are written if they are rotated
    reached: list[tuple[int, int]]  # of each request the first page that new tokens reach, and how many there are from it on
    pages: int  # of the cache


def sizes(problem: Any) -> Sizes:
    p, n = problem, problem.page_size
    token = (p.head_dim_ckv + p.head_dim_kpe,) if p.head_dim_ckv else (2, p.num_kv_heads, p.head_dim_qk)
    reached = [((kv - q) // n, -(-kv // n) - (kv - q) // n) for q, kv in zip(p.q_lens, p.kv_lens, strict=True)]
    queries = p.num_qo_heads * token[-1] if p.axis("rope") != "none" else 0
    pages = SPARE_PAGES + sum(count for _, count in reached)
    return Sizes(token, math.prod(token), p.head_dim_kpe or p.head_dim_qk, queries, reached, pages)

"""One attention problem: the lengths of its requests, the bytes it must move and its FLOPs. Pure Python, no torch."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

from pydantic import model_validator

from kernels.problem import batch_spec
from kernels.problem.dtypes import size_bytes
from kernels.problem.fields import ProblemFields
from kernels.problem.routine import routine_of, with_axes
from kernels.problem.trees import depths
from kernels.problem.validation import names_usual_scale, require_consistent, with_listed_lengths

INT64_MAX = 2**63 - 1
# Keys that a routine ignores.
UNUSED = {"ragged_prefill": frozenset({"page_size", "kv_layout", "page_order", "max_seq_len"}), "mla": frozenset({"kv_layout"})}


class Problem(ProblemFields):
    """A batch of requests. Each attends with up to `s_qo` query tokens over a KV cache of up to `s_kv` tokens.

    Lengths are tokens. `s_kv` includes the query tokens, so the context before them is `s_kv - s_qo`.

    `paged_decode` and `paged_prefill` read pages. `ragged_prefill` reads consecutive tokens. `mla` reads pages of DeepSeek's
    compressed latent, which every query head attends to; `head_dim_qk` and `head_dim_vo` are then the model's own, before
    absorption, and the softmax scale comes from them. `cascade` reads pages too; the first `shared_prefix` tokens of all requests
    are the same, and lie in the same pages. `merge_states` has the inputs of `paged_decode`. Its answer is the same, merged from
    `num_states` partial answers that are given; bytes and FLOPs are those of the merge alone.

    A new field needs a default that does not change existing problems: `point_id` hashes what differs from the defaults.
    Raises pydantic's ValidationError, with one entry for each wrong key.
    """

    @model_validator(mode="before")
    @classmethod
    def _one_name_for_one_problem(cls, keys: Any) -> Any:
        """Gives equal problems equal keys: makes a range of one length that length, and drops keys that the routine ignores."""
        if not isinstance(keys, dict):
            return keys
        keys = with_axes(keys)
        unused = UNUSED.get(str(keys.get("routine")), frozenset())
        if keys.get("min_s_qo") is not None and keys["min_s_qo"] == keys.get("s_qo"):
            unused |= {"min_s_qo"}
        kept = {key: value for key, value in keys.items() if key not in unused} if unused else dict(keys)
        kept = with_listed_lengths(kept) if isinstance(kept.get("batch_spec"), str) else kept
        if kept.get("mask") != "prefix":
            kept.pop("mask_prefix", None)
        if names_usual_scale(kept):
            del kept["softmax_scale"]
        if kept.get("graph_batch") in (None, kept.get("batch_size")):  # no request is added
            kept.pop("graph_batch", None)
            kept.pop("graph_fill", None)
        return kept

    @model_validator(mode="after")
    def _consistent(self) -> Problem:
        require_consistent(self)
        if self.flops > INT64_MAX:
            raise ValueError(
                f"batch_size={self.batch_size}, s_kv={self.s_kv} and s_qo={self.s_qo} make {self.flops:.1g} FLOPs; "
                f"allowed: at most {INT64_MAX:.1g}, which a row can hold"
            )
        return self

    @cached_property
    def q_lens(self) -> tuple[int, ...]:
        """Query tokens of each request.

        `batch_spec` lists them. Otherwise all are `s_qo`, or with `min_s_qo` uniform in [min_s_qo, s_qo], drawn from `seed`, with
        one request at `s_qo`.
        """
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
        """KV tokens of each request, query tokens included.

        `fixed`: all are `s_kv`. `listed`: from `batch_spec`. `random`: uniform in [shared_prefix + s_qo, s_kv], drawn from `seed`,
        with one request at `s_kv`.
        """
        if self.batch_spec is not None:
            return tuple(kv for _, kv in batch_spec.lengths(self.batch_spec))
        if self.seq_lens == "fixed":
            return (self.s_kv,) * self.batch_size
        draw = random.Random(self.seed)
        least = self.prefix_tokens + self.s_qo if self.s_qo <= self.s_kv else 1  # cross attention: the lengths have no relation
        lens = [draw.randint(least, self.s_kv) for _ in range(self.batch_size)]
        lens[draw.randrange(self.batch_size)] = self.s_kv
        return tuple(lens)

    @property
    def lacks_keys(self) -> bool:
        """Whether some requests have no key (s0 in `batch_spec`): an output of 0, and a log-sum-exp of -infinity or of the sink."""
        return self.batch_spec is not None and 0 in self.kv_lens

    @cached_property
    def q_starts(self) -> tuple[int, ...]:
        """The first query token of each request, and the number of all."""
        return tuple(accumulate(self.q_lens, initial=0))

    @cached_property
    def requests_by_lengths(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """Requests by (query tokens, KV tokens). Those of equal lengths may be computed together."""
        found: dict[tuple[int, int], list[int]] = defaultdict(list)
        for request, lengths in enumerate(zip(self.q_lens, self.kv_lens, strict=True)):
            found[lengths].append(request)
        return {lengths: tuple(requests) for lengths, requests in found.items()}

    @property
    def judged(self) -> Problem:
        """The problem by whose keys an answer is judged: this one, unless its routine has another (`Routine.judged`)."""
        own = routine_of(self.routine)
        return self if own is None else own.judged(self)

    @property
    def shares_tokens(self) -> bool:
        """Whether several requests may read one token of the cache, beside those of a shared prefix."""
        return False

    @property
    def apart(self) -> Sequence[Sequence[int]]:
        """Groups of requests no two of which share a token, beside those of a shared prefix."""
        return (range(self.batch_size),)

    @cached_property
    def num_q_tokens(self) -> int:
        return self.batch_size * self.s_qo if self.min_s_qo is None else sum(self.q_lens)

    @cached_property
    def num_kv_tokens(self) -> int:
        """KV tokens of all requests. A shared prefix counts once for each."""
        return sum(self.kv_lens) if self.seq_lens != "fixed" else self.batch_size * self.s_kv

    @property
    def slots_per_page(self) -> int:
        """Tokens in one page. A ragged cache counts as pages of one token."""
        return self.page_size if self.paged else 1

    @property
    def prefix_pages(self) -> int:
        """Pages that all requests share. They are used whole."""
        return self.prefix_tokens // self.slots_per_page

    @property
    def longest(self) -> int:
        """KV tokens of the longest request that the call allows for: `max_seq_len`, or the batch's own longest."""
        return self.s_kv if self.max_seq_len is None else self.max_seq_len

    @property
    def table_width(self) -> int:
        """Pages that a row of the page table has room for."""
        return -(-self.longest // self.slots_per_page)

    @property
    def num_pages(self) -> int:
        """Pages of the KV cache. The last page of a request may be partly used."""
        return self.num_listed_pages - (self.batch_size - 1) * self.prefix_pages

    @cached_property
    def num_listed_pages(self) -> int:
        """Entries of all requests' page tables together, which name a shared page once for each request."""
        n = self.slots_per_page
        if self.seq_lens != "fixed":
            return sum(-(-length // n) for length in self.kv_lens)
        return self.batch_size * -(-self.s_kv // n)

    @cached_property
    def visible_pairs(self) -> int:
        """(query, key) pairs that the mask allows, summed over requests, for one head."""
        if self.min_s_qo is None and self.seq_lens == "fixed":
            return self.batch_size * self._pairs(self.s_qo, self.s_kv)
        return sum(self._pairs(q, length) for q, length in zip(self.q_lens, self.kv_lens, strict=True))

    def _pairs(self, q: int, length: int) -> int:
        """Pairs of one request. Causal: query j sees length - q + j + 1 keys. Tree: the context, its ancestors and itself."""
        if not length:
            return 0
        if self.tree is not None:
            return q * (length - q) + sum(depths(self.tree[:q]))
        if self.window is not None and self.mask == "full":
            owns = range(length - q, length)
            return sum(min(own + self.window, length) - max(0, own - self.window + 1) for own in owns)
        if self.window is not None:
            whole = min(max(self.window - (length - q), 0), q)  # queries that see all before them
            return whole * (length - q) + whole * (whole + 1) // 2 + (q - whole) * self.window
        both_ways = min(self.mask_prefix or 0, q)
        return q * length - (0 if self.mask == "full" else q * (q - 1) // 2 - both_ways * (both_ways - 1) // 2)

    @cached_property
    def visible_kv_tokens(self) -> int:
        """KV tokens that at least one query sees: all of them, unless there is a sliding window."""
        if self.window is None:
            return self.num_kv_tokens
        return sum(min(length, self.window + q - 1) for q, length in zip(self.q_lens, self.kv_lens, strict=True))

    @cached_property
    def flops(self) -> int:
        """Multiplications and additions: those of attention, or 2 * num_states for each element of a merged output."""
        if own := routine_of(self.routine):
            return own.flops(self)
        if self.num_states is not None:
            return 2 * self.num_states * self.num_q_tokens * self.num_qo_heads * self.value_dim
        return self.attention_flops

    @cached_property
    def attention_flops(self) -> int:
        """Multiplications and additions of Q.K and P.V: 2 * num_qo_heads * (key_dim + value_dim) * visible pairs."""
        return 2 * self.num_qo_heads * (self.key_dim + self.value_dim) * self.visible_pairs

    @property
    def kv_token_elements(self) -> int:
        """Elements of one token in the cache: keys and values of every head, or the latent once."""
        return self.key_dim if self.latent else self.num_kv_heads * (self.head_dim_qk + self.head_dim_vo)

    @cached_property
    def kv_bytes(self) -> int:
        """Bytes to read the visible keys and values once, those of a shared prefix once for all requests.

        In `merge_states` bytes of the states, which stand in their place: outputs, and log-sum-exps in fp32.
        """
        if (own := routine_of(self.routine)) and (found := own.kv_bytes(self)) is not None:
            return found
        if self.num_states is not None:
            rows = self.num_states * self.num_q_tokens * self.num_qo_heads
            return size_bytes(self.state_dtype, rows * self.value_dim) + size_bytes("fp32", rows)
        tokens = self.visible_kv_tokens - (self.batch_size - 1) * self.prefix_tokens
        return size_bytes(self.kv_dtype, tokens * self.kv_token_elements)

    @property
    def unshared_bytes(self) -> int:
        """As `bytes`, for a kernel that reads a shared prefix once for every request."""
        return self.bytes if self.num_states is not None or routine_of(self.routine) else self.attention_bytes

    @property
    def attention_bytes(self) -> int:
        """Bytes of attention itself, as the reference computes it: a shared prefix is read once for every request."""
        if routine_of(self.routine):
            return self.bytes
        return self.query_bytes + self.output_bytes + size_bytes(self.kv_dtype, self.visible_kv_tokens * self.kv_token_elements)

    @cached_property
    def qo_bytes(self) -> int:
        """Bytes of the queries, which a merge does not read, and of one output."""
        if (own := routine_of(self.routine)) and (found := own.qo_bytes(self)) is not None:
            return found
        return self.output_bytes + (self.query_bytes if self.num_states is None else 0)

    @property
    def query_bytes(self) -> int:
        return size_bytes(self.q_dtype, self.num_q_tokens * self.num_qo_heads * self.key_dim)

    @property
    def output_bytes(self) -> int:
        """Bytes of one output, with its log-sum-exp if that is asked for."""
        rows = self.num_q_tokens * self.num_qo_heads
        lse = size_bytes("fp32", rows) if self.return_lse else 0
        return size_bytes(self.output_dtype, rows * self.value_dim) + lse

    @property
    def bytes(self) -> int:
        """The fewest bytes a kernel can move: it reads queries and KV, or states, once and writes outputs once. No page tables."""
        return self.qo_bytes + self.kv_bytes

    @cached_property
    def input_bytes(self) -> int:
        """Bytes of memory for the inputs and one output, counting whole pages and a page table as wide as `max_seq_len`."""
        if (own := routine_of(self.routine)) and (found := own.input_bytes(self)) is not None:
            return found
        table = 4 * self.batch_size * self.table_width if self.max_seq_len is not None else 0  # else small beside its cache
        cache = size_bytes(self.kv_dtype, self.num_pages * self.slots_per_page * self.kv_token_elements)
        padding = size_bytes(self.kv_dtype, self.num_pages * self.kv_token_elements // 2) if self.kv_memory == "padded" else 0
        return cache + padding + self.query_bytes + self.output_bytes + table

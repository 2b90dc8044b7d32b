"""The features of a problem: what a kernel must get besides shapes, dtypes of queries and keys, and one causal length. Pure.

A kernel that does not get a feature computes another problem, so its answer is wrong whatever the kernel could do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from kernels.problem.dtypes import FP8, default_output
from kernels.problem.fields import ProblemFields

Feature = Literal[
    "attention sinks", "a soft cap of logits", "a sliding window", "a full mask", "a prefix mask", "a tree of drafts",
    "query lengths that differ", "KV lengths that differ", "scales of keys and values", "block scales",
    "an output of another dtype", "padded requests",
]  # fmt: skip
FEATURES: tuple[Feature, ...] = get_args(Feature)
# What nearly every kernel is told; an adapter says by how much its own is told more or less.
USUAL: frozenset[Feature] = frozenset({
    "a full mask", "query lengths that differ", "KV lengths that differ", "scales of keys and values", "an output of another dtype",
})  # fmt: skip
# For backends that hand over all that a kernel of FlashAttention's kind takes. Padded requests come with lengths that differ.
ALL_BUT_BLOCKS: frozenset[Feature] = frozenset(FEATURES) - {"block scales", "padded requests", "a prefix mask"}

_HAS: dict[Feature, Callable[[ProblemFields], bool]] = {
    "attention sinks": lambda p: p.sinks,
    "a soft cap of logits": lambda p: p.soft_cap is not None,
    "a sliding window": lambda p: p.window is not None,
    "a full mask": lambda p: p.s_qo > 1 and p.mask == "full",
    "a prefix mask": lambda p: p.mask == "prefix",
    "a tree of drafts": lambda p: p.tree is not None,
    "query lengths that differ": lambda p: p.min_s_qo is not None,
    "KV lengths that differ": lambda p: p.seq_lens != "fixed",
    "scales of keys and values": lambda p: p.kv_dtype in FP8 | {"nvfp4"},
    "block scales": lambda p: p.kv_dtype == "nvfp4",
    "an output of another dtype": lambda p: p.output_dtype != default_output(p.q_dtype),
    "padded requests": lambda p: p.graph_batch is not None,
}


def features_of(problem: ProblemFields) -> tuple[Feature, ...]:
    """The features that this problem has, in the order of `FEATURES`."""
    return tuple(feature for feature in FEATURES if _HAS[feature](problem))

"""Small problems for the checks of a backend, found by asking its support rule. Pure: no torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import chain, product
from typing import Any

from pydantic import ValidationError

from kernels.adapter import Adapter
from kernels.device import Device
from kernels.problem import Problem, batch_spec
from kernels.problem.routine import routine_of

Keys = Mapping[str, Any]

MAX_STEPS = 8  # of the search for a served problem
TREE = {"s_qo": 7, "mask": "binary", "tree": (-1, 0, 0, 1, 1, 2, 2)}
NO_TREE = {"tree": None}
LISTED_BY_SPEC = {"batch_size", "s_qo", "min_s_qo", "s_kv", "seq_lens"}  # a batch spec says them itself
HEADS = ((8, 2), (8, 8), (8, 1), (64, 8), (40, 8), (24, 8), (10, 2), (128, 8))
HEAD_DIMS = ((32, 32), (64, 64), (128, 128), (256, 256), (80, 80), (40, 40), (512, 512), (192, 128), (32, 16))
LATENT_DIMS = ((32, 16), (512, 64), (256, 64), (64, 32), (64, 0), (512, 0))
DTYPES = ("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2")
QUERY_LENGTHS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65)
PAGE_SIZES = (16, 64, 1, 2, 8, 32, 48, 128, 256)

# What each axis is set to, one change at a time.
AXES: dict[str, tuple[Keys, ...]] = {
    "batch_size": tuple({"batch_size": n} for n in (1, 2, 3, 5, 33)),
    "s_qo": tuple({"s_qo": n, "mask": "causal", **NO_TREE} for n in QUERY_LENGTHS),
    "s_kv": tuple({"s_kv": n} for n in (77, 64, 65, 128, 300, 1000)),
    "whole prompt": ({"s_qo": 77, "s_kv": 77},),
    "query lengths": ({"s_qo": 4, "min_s_qo": 1, "batch_size": 4},),
    "KV lengths": ({"seq_lens": "random", "batch_size": 4},),
    "mixed batch": (
        {"batch_spec": "q40_2q1s77_q3s50"},
        {"batch_spec": "q1s77_q1s30_q1s50"},
        {"batch_spec": "q9s80_2q1s177_q3s150"},
        {"batch_spec": "q1s77_q1s0_q1s50"},
    ),
    "mask": ({"mask": "full", **NO_TREE}, {"mask": "full", "s_qo": 4, **NO_TREE}, TREE),
    "window": tuple({"window": n, "mask": "causal", **NO_TREE} for n in (9, 64)),
    "sinks": ({"sinks": True},),
    "softmax_scale": ({"softmax_scale": 0.05},),
    "soft_cap": ({"soft_cap": 30.0},),
    "log-sum-exp": ({"return_lse": True},),
    "shared_prefix": tuple({"shared_prefix": n} for n in (32, 64)),
    "num_states": tuple({"num_states": n} for n in (2, 16, 17)),
    "page_size": tuple({"page_size": n} for n in PAGE_SIZES),
    "kv_layout": ({"kv_layout": "NHD"}, {"kv_layout": "HND"}),
    "page_order": ({"page_order": "sequential"},),
    "padded graph": tuple({"graph_batch": 4, "batch_size": 3, "graph_fill": fill} for fill in (0, 1)),
    "heads": tuple({"num_qo_heads": q, "num_kv_heads": kv} for q, kv in HEADS),
    "head dims": tuple({"head_dim_qk": qk, "head_dim_vo": vo} for qk, vo in HEAD_DIMS),
    "dtype": (
        *({"q_dtype": dtype, "kv_dtype": dtype} for dtype in DTYPES),
        *({"q_dtype": dtype, "kv_dtype": dtype, "out_dtype": dtype} for dtype in DTYPES[3:]),
    ),
    "q_dtype": tuple({"q_dtype": dtype} for dtype in DTYPES),
    "kv_dtype": tuple({"kv_dtype": dtype} for dtype in (*DTYPES, "nvfp4")),
    "out_dtype": tuple({"out_dtype": dtype} for dtype in (None, "bf16", "fp16", "fp32", "fp8_e4m3")),
}
LATENT_AXES: dict[str, tuple[Keys, ...]] = {
    "heads": tuple({"num_qo_heads": n, "num_kv_heads": n} for n in (8, 16, 64, 128, 4)),
    "head dims": tuple({"head_dim_ckv": ckv, "head_dim_kpe": kpe} for ckv, kpe in LATENT_DIMS),
}

OTHER_OUTPUT = "outputs of another dtype"

# What the answers are checked on, by the name of the check.
FAMILIES: dict[str, tuple[Keys, ...]] = {
    "one query token": ({"s_qo": 1, "min_s_qo": None, "mask": "causal", **NO_TREE},),
    "causal drafts": tuple({"s_qo": n, "mask": "causal", **NO_TREE} for n in (3, 8)),
    "drafts that see all": ({"s_qo": 3, "mask": "full", **NO_TREE},),
    "draft trees": (TREE,),
    "prefix masks": tuple({"mask": "prefix", "mask_prefix": n, "s_qo": q, **NO_TREE} for n, q in ((2, 3), (9, 20))),
    "whole prompts": ({"s_qo": 77, "s_kv": 77, "mask": "causal", **NO_TREE},),
    "query lengths that differ": ({"s_qo": 4, "min_s_qo": 1, "batch_size": 4, "mask": "causal", **NO_TREE},),
    "KV lengths that differ": ({"seq_lens": "random", "batch_size": 4},),
    "a mixed batch": tuple(
        {"batch_spec": spec, "mask": "causal", **NO_TREE} for spec in ("q40_2q1s77_q3s50", "q9s80_2q1s177_q3s150")
    ),
    "requests without keys": tuple(
        {"batch_spec": spec, "return_lse": lse, "sinks": sinks, "mask": "causal", **NO_TREE}
        for spec in ("q1s77_2q1s0_q1s50", "q3s0_q3s77", "q9s80_2q1s0_q3s0")
        for lse, sinks in ((False, False), (True, False), (True, True), (False, True))
    ),
    "sliding windows": tuple({"window": 9, "s_qo": n, "mask": "causal", **NO_TREE} for n in (1, 5)),
    "windows that reach ahead": tuple({"window": 9, "s_qo": n, "mask": "full", **NO_TREE} for n in (5, 20)),
    "more queries than keys": tuple({"s_qo": n, "s_kv": 40, "mask": "full", **NO_TREE} for n in (41, 70)),
    "attention sinks": tuple({"sinks": True, "s_qo": n, "mask": "causal", **NO_TREE} for n in (1, 3)),
    "softmax scales": ({"softmax_scale": 0.04, "s_qo": 3, "mask": "causal", **NO_TREE}, {"softmax_scale": 1.0}),
    "soft caps": ({"soft_cap": 50.0, "s_qo": 3, "mask": "causal", **NO_TREE}, {"soft_cap": 15.0, "softmax_scale": 0.3}),
    "log-sum-exp": tuple(
        {"return_lse": True, "s_qo": n, "mask": "causal", "sinks": sinks, **NO_TREE} for sinks in (False, True) for n in (1, 3)
    ),
    "shared prefixes": tuple({"shared_prefix": n, "batch_size": 3} for n in (32, 64)),
    "numbers of states": tuple({"num_states": n, "s_qo": s_qo, "mask": "causal", **NO_TREE} for n in (2, 8, 16) for s_qo in (1, 8)),
    "batches": tuple({"batch_size": n} for n in (1, 5)),
    "contexts": tuple({"s_kv": n} for n in (64, 1000)),
    "page sizes": tuple({"page_size": n} for n in (1, 16, 64, 128)),
    "page layouts": ({"kv_layout": "HND"}, {"kv_layout": "NHD"}, {"page_order": "sequential"}),
    "strides of the cache": (
        *({"kv_memory": memory, "kv_layout": layout} for memory in ("apart", "by_token", "padded") for layout in ("HND", "NHD")),
        *({"kv_memory": memory, "num_qo_heads": 8, "num_kv_heads": 1} for memory in ("by_token", "padded", "degenerate")),
    ),
    "an engine's maximum": ({"max_seq_len": 4096}, {"max_seq_len": 4096, "seq_lens": "random", "batch_size": 4}),
    "a padded graph": (
        {"graph_batch": 4, "batch_size": 3},
        {"graph_batch": 9, "batch_size": 2, "s_qo": 3, "mask": "causal", **NO_TREE},
        {"graph_batch": 4, "batch_size": 3, "graph_fill": 1, "seq_lens": "random"},
    ),
    "programmatic dependent launch": ({"enable_pdl": True}, {"enable_pdl": False}),
    "heads": tuple({"num_qo_heads": q, "num_kv_heads": kv} for q, kv in HEADS[1:5]),
    "head dims": AXES["head dims"][:5],
    "fp32, fp16 and bf16": AXES["dtype"][:3],
    "FP8 and nvfp4": (*AXES["dtype"][3:], *AXES["kv_dtype"][3:]),
    OTHER_OUTPUT: AXES["out_dtype"][1:],
    "combinations": (
        *(
            {"s_qo": s_qo, "mask": mask, "kv_layout": layout, "q_dtype": dtype, "kv_dtype": dtype, **NO_TREE}
            for s_qo, mask, layout, dtype in product((1, 3), ("causal", "full"), ("HND", "NHD"), ("fp32", "fp16", "bf16"))
        ),
        {"s_qo": 2, "head_dim_vo": 16},
    ),
}
PREFIXES = {"shared_prefix", "shared prefixes"}
STATES = {"num_states", "numbers of states"}
PADDING = {"padded graph", "a padded graph"}
PAGES = {"page_size", "kv_layout", "page_order", "page sizes", "page layouts", "strides of the cache", "an engine's maximum"}
NOT_IN = {  # axes and families that a routine does not have
    "paged_decode": PREFIXES | STATES,
    "paged_prefill": PREFIXES | STATES,
    "cascade": {
        "window",
        "sliding windows",
        "windows that reach ahead",
        "more queries than keys",
        "whole prompt",
        "whole prompts",
        *PADDING,
        *STATES,
    },
    "merge_states": PREFIXES | PADDING | {"strides of the cache"},
    "ragged_prefill": PAGES | PADDING | PREFIXES | STATES,
    "mla": {"kv_layout", "strides of the cache", *PREFIXES, *STATES},
}


def axes_of(routine: str) -> dict[str, tuple[Keys, ...]]:
    """Every change that the search makes to a problem of this routine, by axis."""
    if folder := routine_of(routine):
        return dict(folder.changes())
    own = {**AXES, **(LATENT_AXES if routine == "mla" else {})}
    return {axis: changes for axis, changes in own.items() if axis not in NOT_IN.get(routine, ())}


def families_of(routine: str) -> dict[str, tuple[Keys, ...]]:
    """The changes under which answers are checked, by the name of the check."""
    if folder := routine_of(routine):
        return dict(folder.changes())
    latent = {"heads": LATENT_AXES["heads"], "head dims": LATENT_AXES["head dims"]}
    own = {**FAMILIES, **(latent if routine == "mla" else {})}
    return {name: changes for name, changes in own.items() if name not in NOT_IN.get(routine, ())}


def changed(problem: Problem, keys: Keys) -> Problem | None:
    """The problem with other values of some keys; None if there is no such problem."""
    kept = problem.model_dump(exclude=LISTED_BY_SPEC if "batch_spec" in keys else None)
    try:
        return Problem.model_validate({**kept, **keys})
    except ValidationError:
        return None


def shorter(problem: Problem) -> Problem | None:
    """The same batch of queries with less context behind a shared prefix; None if no request has any."""
    q_lens, kv_lens, prefix = problem.q_lens, problem.kv_lens, problem.shared_prefix or 0
    less = [kv - (kv - q - prefix) * (1 + i % 3) // 4 for i, (q, kv) in enumerate(zip(q_lens, kv_lens, strict=True))]
    return changed(problem, batch_spec.keys_of(batch_spec.name(zip(q_lens, less, strict=True)))) if less != [*kv_lens] else None


@lru_cache(maxsize=256)  # the searches for all backends of a routine begin at the same problems
def neighbours(problem: Problem) -> tuple[Problem, ...]:
    """Problems that differ from this one in one axis, none twice."""
    others = (changed(problem, keys) for keys in chain.from_iterable(axes_of(problem.routine).values()))
    return tuple(dict.fromkeys(other for other in others if other is not None and other != problem))


@cache
def starts(routine: str) -> tuple[Problem, ...]:
    """Where the search for a served problem begins, the smallest first."""
    if folder := routine_of(routine):
        return tuple(Problem.model_validate({"routine": routine, **keys}) for keys in folder.starts())
    heads = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 32, "head_dim_vo": 32, "page_size": 16}
    own = {
        "mla": {"num_kv_heads": 8, "head_dim_ckv": 32, "head_dim_kpe": 16},
        "cascade": {"shared_prefix": 64, "s_kv": 149},
        "merge_states": {"num_states": 3},
    }
    small = Problem.model_validate({"routine": routine, "batch_size": 2, "s_qo": 1, "s_kv": 77, **heads, **own.get(routine, {})})
    large: Keys = {"page_size": 64, "head_dim_qk": 128, "head_dim_vo": 128, "num_qo_heads": 64, "num_kv_heads": 8}
    if routine == "mla":
        large = {**large, "num_kv_heads": 64, "head_dim_ckv": 512, "head_dim_kpe": 64, "head_dim_qk": 192}
    prompt: Keys = {"s_qo": 77, "s_kv": 77}
    eight: Keys = {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}
    mixed: Keys = {"batch_spec": "3q4s77_q9s77"}  # for a backend that splits a batch, which has no call for equal requests
    more = [{}, {"s_qo": 3}, large, {**large, "s_qo": 3}, prompt, {**large, **prompt}, {**large, **eight}, TREE, mixed]
    more += [{**large, **mixed}, {**large, "batch_spec": "3q1s77_q9s77"}]
    return tuple(p for keys in more if (p := changed(small, keys)) is not None)


def find_closest(adapter: Adapter, device: Device) -> tuple[Problem, list[str]]:
    """A small problem that the backend serves on this device, without unmet conditions; else the one that lacks the fewest of them.

    From each start it takes the change of one axis that leaves the fewest unmet conditions, until none is left.
    """
    found: list[tuple[Problem, list[str]]] = []
    for start in starts(adapter.routine):
        problem = _descend(adapter, device, start)
        found.append((problem, adapter.unmet(problem, device)))
        if not found[-1][1]:
            break
    return min(found, key=lambda one: len(one[1]))


def _descend(adapter: Adapter, device: Device, problem: Problem) -> Problem:
    lacking = len(adapter.unmet(problem, device))
    for _ in range(MAX_STEPS):
        if not lacking:
            break
        best = min(neighbours(problem), key=lambda p: len(adapter.unmet(p, device)))
        left = len(adapter.unmet(best, device))
        if left >= lacking:
            break
        problem, lacking = best, left
    return problem


def describe(problem: Problem, compared_with: Problem | None = None) -> str:
    """A problem in words: what differs from the defaults, or from the other problem."""
    keys = problem.model_dump(exclude={"routine", "model", "tp", "seed"}, exclude_defaults=compared_with is None)
    other = compared_with.model_dump() if compared_with is not None else {}
    return " ".join(f"{name}={value}" for name, value in keys.items() if name not in other or other[name] != value)

"""What the plans of FlashInfer's fa2 and fa3 chose, in words such as `cta_tile_q=64 split_kv=true`.

A plan is a list of integers, which `ToVector` of a C++ struct makes (`data/include/flashinfer/attention/scheduler.cuh`). Their
names are read from that file of the installed release, which its kernels are compiled from, so a list is never read by the order
of another release. The four structs are the same in 0.5.3, 0.6.0, 0.6.8, 0.6.13, 0.6.16, 0.7.0, 0.7.1 and 0.7.2.post1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kernels.lazy import torch

# The struct of each kind of plan. The kernels `fa2` and `fa3` of prefill serve decode on tensor cores too.
DECODE, MLA = "decode", "mla"
STRUCTS = {DECODE: "DecodePlanInfo", "fa2": "PrefillPlanInfo", "fa3": "PrefillPlanSM90Info", MLA: "MLAPlanInfo"}
SOURCE = Path("flashinfer") / "attention" / "scheduler.cuh"
CHUNK_BYTES = 4  # of the chunk's length, whose type is that of the offsets, int32 here
# The word for each integer that a reader may want. All others are offsets into workspaces, or follow from the problem.
WORDS = {
    "cta_tile_q": "cta_tile_q", "split_kv": "split_kv", "padded_batch_size": "padded_batch",
    "same_schedule_for_all_heads": "same_schedule_for_all_heads", "num_blks_x": "cluster_size", "num_blks_y": "clusters",
}  # fmt: skip
FLAGS = frozenset({"split_kv", "same_schedule_for_all_heads"})

Plan = Mapping[str, int]


def plan_words(wrapper: Any, kind: str) -> str:
    """What a planned wrapper chose; empty for a kernel that has no such plan, and for a plan that cannot be read.

    - `cta_tile_q`: rows of a block of fa2 on tensor cores. A row is a query token with one of the query heads of a KV head.
    - `split_kv`: whether the keys of a request may be split among blocks. Under CUDA graphs fa2 on tensor cores always says true.
    - `padded_batch`: blocks that are launched for each KV head, those without work included.
    - `kv_chunk`: KV tokens of a part, if keys may be split. A request that has no more than these is not split.
    - `same_schedule_for_all_heads`: fa3 orders its tiles once for all heads, which it does if there are many.
    - `cluster_size`, `clusters`: blocks of MLA that share one tile of queries, and how many such clusters are launched.
    """
    plan = planned(wrapper, kind)
    told = [(WORDS[name], _written(name, plan[name])) for name in WORDS if name in plan]
    if chunk := _kv_chunk(wrapper, plan):
        told.append(("kv_chunk", str(chunk)))
    return " ".join(f"{word}={value}" for word, value in told)


def parts_words(parts: Mapping[str, tuple[Any, str]]) -> str:
    """The same for the wrappers of several calls, by their names: `prefix (split_kv=true) rest (split_kv=false)`."""
    told = {name: plan_words(wrapper, kind) for name, (wrapper, kind) in parts.items()}
    return " ".join(f"{name} ({words})" for name, words in told.items() if words)


def planned(wrapper: Any, kind: str) -> Plan:
    """The integers of a wrapper's plan by their names; empty if it has none, or another number of them than the struct."""
    found = getattr(wrapper, "_plan_info", None)
    if kind not in STRUCTS or found is None:
        return {}
    try:
        numbers = tuple(int(number) for number in found)
    except (TypeError, ValueError):
        return {}
    names = fields_of(STRUCTS[kind])
    return dict(zip(names, numbers, strict=True)) if len(numbers) == len(names) else {}


@cache
def fields_of(struct: str) -> tuple[str, ...]:
    """The names of what `ToVector` of a struct writes, in its order; none if the installed release has no such source."""
    try:
        from flashinfer.jit.env import FLASHINFER_INCLUDE_DIR
    except ImportError:
        return ()
    source = Path(FLASHINFER_INCLUDE_DIR) / SOURCE
    text = source.read_text() if source.is_file() else ""
    found = re.search(rf"struct {struct} \{{.*?ToVector\(\) const \{{\s*return \{{([\w\s,]*)\}};", text, re.DOTALL)
    return tuple(found[1].replace(",", " ").split()) if found else ()


def _kv_chunk(wrapper: Any, plan: Plan) -> int | None:
    """KV tokens of a part, from the plan's memory on the host, so without a wait; None if keys are not split, or it has none."""
    staged, at = getattr(wrapper, "_pin_memory_int_workspace_buffer", None), plan.get("kv_chunk_size_ptr_offset")
    if at is None or not plan.get("split_kv") or not isinstance(staged, torch.Tensor) or staged.device.type != "cpu":
        return None
    written = bytes(staged.view(torch.uint8)[at : at + CHUNK_BYTES].tolist())
    chunk = int.from_bytes(written, "little", signed=True)
    return chunk if len(written) == CHUNK_BYTES and chunk > 0 else None


def _written(name: str, number: int) -> str:
    return ("false", "true")[bool(number)] if name in FLAGS else str(number)

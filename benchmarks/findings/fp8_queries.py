"""FlashAttention-3 with FP8 queries beside the fastest kernel with bf16 queries, over FP8 caches on an H100: drafts and trees."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, rows, span, table_of

DRAFTS, TREES = "h100_target_verify", "h100_xqa_specdec"
SHAPE = ["mask", "s_qo", "batch_size", "s_kv"]
FP8 = "fp8_e4m3"


def ratios(dataset: str) -> pd.Series:
    """By shape: its time over that of the fastest kernel with bf16 queries. Pages are head-major and in random order."""
    ok = rows(dataset)
    usual = ok[(ok["kv_dtype"] == FP8) & (ok["kv_layout"] == "HND") & (ok["page_order"] == "random")]
    ours = usual[(usual["backend"] == FA3) & (usual["q_dtype"] == FP8)].set_index(SHAPE)["own_us"]
    theirs = usual[usual["q_dtype"] == "bf16"].groupby(SHAPE)["own_us"].min()
    return (ours / theirs).dropna()


def of_drafts() -> str:
    return f"On H100s FlashAttention-3 was timed over FP8 caches with FP8 queries too.\n{part_of(ratios(DRAFTS))}"


def of_trees(trees: tuple[str, ...]) -> str:
    found = ratios(TREES)
    found = found[found.index.get_level_values("mask").isin(trees)]
    return f"On H100s FlashAttention-3 was timed with FP8 queries too, over {len(found)} trees and FP8 caches.\n{part_of(found)}"


def part_of(found: pd.Series) -> str:
    return f"Of the time of the fastest kernel with bf16 queries it takes {by_length(found)}."


def by_length(found: pd.Series) -> str:
    parts = [f"{span(part)} with {s_qo}" for s_qo, part in found.groupby(level="s_qo")]
    return f"{', '.join(parts[:-1])} and {parts[-1]} query tokens"


def table(dataset: str) -> str:
    wide = ratios(dataset).unstack("s_qo")
    return table_of(
        "FlashAttention-3 with FP8 queries over an FP8 cache on H100s: its time over that of the fastest kernel with bf16 queries, by s_qo",
        wide.rename_axis(columns="s_qo"),
        "{:.2f}",
    )

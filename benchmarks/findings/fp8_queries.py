"""FlashAttention-3 with FP8 queries beside the fastest kernel with bf16 queries, over FP8 caches on Hopper: drafts and trees."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, rows, span, table_of

FP8 = "fp8_e4m3"
QUERIES = "_fp8_queries"  # after the name of a sweep: the dataset of an H200's points with FP8 queries
DRAFTS = {  # by card: the datasets with FP8 queries, and with bf16 ones
    "H100": ("h100_target_verify", "h100_target_verify"),
    "H200": (f"h200_target_verify{QUERIES}", "h200_target_verify"),
}
TREES = {
    "H100": ("h100_xqa_specdec", "h100_xqa_specdec"),
    "H200": (f"h200_xqa_specdec{QUERIES}", "h200_xqa_specdec"),
}
Pairs = dict[str, tuple[str, str]]
SHAPE = ["mask", "s_qo", "batch_size", "s_kv"]


def datasets(pairs: Pairs) -> tuple[str, ...]:
    """Those of `DRAFTS` or `TREES` with FP8 queries."""
    return tuple(ours for ours, _ in pairs.values())


def ratios(pair: tuple[str, str]) -> pd.Series:
    """By shape: its time over that of the fastest kernel with bf16 queries. Pages are head-major and in random order."""
    fp8, bf16 = (usual(rows(dataset)) for dataset in pair)
    ours = fp8[(fp8["backend"] == FA3) & (fp8["q_dtype"] == FP8)].set_index(SHAPE)["own_us"]
    theirs = bf16[bf16["q_dtype"] == "bf16"].groupby(SHAPE)["own_us"].min()
    return (ours / theirs).dropna()


def usual(ok: pd.DataFrame) -> pd.DataFrame:
    return ok[(ok["kv_dtype"] == FP8) & (ok["kv_layout"] == "HND") & (ok["page_order"] == "random")]


def of_drafts() -> str:
    parts = (part_of(card, ratios(pair)) for card, pair in DRAFTS.items())
    return "FlashAttention-3 was timed over FP8 caches with FP8 queries too.\n" + "\n".join(parts)


def of_trees(trees: tuple[str, ...]) -> str:
    found = {card: ratios(pair) for card, pair in TREES.items()}
    found = {card: part[part.index.get_level_values("mask").isin(trees)] for card, part in found.items()}
    parts = (part_of(card, part) for card, part in found.items())
    (shapes,) = {len(part) for part in found.values()}
    return f"FlashAttention-3 was timed with FP8 queries too, over {shapes} trees and FP8 caches.\n" + "\n".join(parts)


def part_of(card: str, found: pd.Series) -> str:
    return f"On {card}s, of the time of the fastest kernel with bf16 queries, it takes {by_length(found)}."


def by_length(found: pd.Series) -> str:
    parts = [f"{span(part)} with {s_qo}" for s_qo, part in found.groupby(level="s_qo")]
    return f"{', '.join(parts[:-1])} and {parts[-1]} query tokens"


def tables(pairs: Pairs) -> tuple[str, ...]:
    """A table of each card."""
    return tuple(
        table_of(
            f"FlashAttention-3 with FP8 queries over an FP8 cache on {card}s: its time over that of the fastest kernel with bf16 queries, by s_qo",
            ratios(pair).unstack("s_qo").rename_axis(columns="s_qo"),
            "{:.2f}",
        )
        for card, pair in pairs.items()
    )

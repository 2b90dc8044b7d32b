"""FlashAttention-3 with FP8 queries beside the fastest kernel with bf16 queries, over FP8 caches on Hopper: drafts and trees."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, rows, span, table_of

FP8 = "fp8_e4m3"
QUERIES = "_fp8_queries"  # after the name of a sweep: the dataset of an H200's points with FP8 queries
DRAFTS = {  # by card: the datasets with FP8 queries, and with bf16 ones
    "H100": ("h100_drafts/target_verify", "h100_drafts/target_verify"),
    "H200": (f"h200_drafts/target_verify{QUERIES}", "h200_drafts/target_verify"),
}
TREES = {
    "H100": ("h100_drafts/xqa_specdec", "h100_drafts/xqa_specdec"),
    "H200": (f"h200_drafts/xqa_specdec{QUERIES}", "h200_drafts/xqa_specdec"),
}
Pairs = dict[str, tuple[str, str]]
SHAPE = ["mask", "s_qo", "batch_size", "s_kv"]


def datasets(pairs: Pairs) -> tuple[str, ...]:
    """Those of `DRAFTS` or `TREES` with FP8 queries."""
    return tuple(ours for ours, _ in pairs.values())


def ratios(pair: tuple[str, str]) -> pd.Series:
    """By shape: its time over that of the fastest kernel with bf16 queries. Pages are head-major and in random order."""
    ours, theirs = _of(pair, FP8).set_index(SHAPE)["own_us"], _of(pair, "bf16").groupby(SHAPE)["own_us"].min()
    return (ours / theirs).dropna()


def cards(pair: tuple[str, str]) -> set[str]:
    """The cards of these shapes' rows."""
    return {*_of(pair, FP8)["device_uuid"], *_of(pair, "bf16")["device_uuid"]}


def cards_differ(pair: tuple[str, str]) -> bool:
    """Whether no card has both rows with FP8 queries and rows with bf16 ones of these shapes."""
    return set(_of(pair, FP8)["device_uuid"]).isdisjoint(_of(pair, "bf16")["device_uuid"])


def _of(pair: tuple[str, str], q_dtype: str) -> pd.DataFrame:
    ok = usual(rows(pair[0] if q_dtype == FP8 else pair[1]))
    return ok[(ok["q_dtype"] == q_dtype) & ((q_dtype != FP8) | (ok["backend"] == FA3))]


def of_launch(pairs: Pairs) -> str:
    """What is taken off for the launch on each side, and how far a ratio is lower if the smaller of both is taken off both."""
    parts, most = [], 0.0
    for card, pair in pairs.items():
        fp8, bf16 = (_of(pair, q_dtype) for q_dtype in (FP8, "bf16"))
        least = min(fp8["launch_us"].min(), bf16["launch_us"].min())
        ours, theirs = (of.groupby(SHAPE)["median_us"].min() - least for of in (fp8, bf16))
        most = max(most, (ratios(pair) - ours / theirs).max())
        parts.append(f"{span(fp8['launch_us'], '{:.1f}')} and {span(bf16['launch_us'], '{:.1f}')} µs on {card}s")
    return (
        f"What is taken off for the launch of calls with FP8 and with bf16 queries is {' and '.join(parts)}."
        f" With the smaller taken off both, ratios of short calls are lower by up to {most:.2f}."
    )


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
    return f"On {card}s it takes, of the time of the fastest kernel with bf16 queries, {by_length(found)}."


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

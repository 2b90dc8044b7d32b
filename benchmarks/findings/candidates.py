"""The main sweep on an H100 with the kernels of engines: where another one than FlashAttention-3 is faster, and by how much."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, SAME, rows, span, table_of, tally
from benchmarks.findings.page import checked

DATASET = "h100_specdec_all_candidates"
KEY = ["kv_dtype", "s_qo", "batch_size", "s_kv"]
FA4, SGLANG, VLLM = "flash_attn_4", "sglang_triton", "vllm_triton"
OF_ENGINES = (FA4, SGLANG, VLLM)
FEW = 1  # request


def times() -> pd.DataFrame:
    """µs by shape and backend. Over an FP8 cache with bf16 or FP8 queries, whichever are faster there."""
    return rows(DATASET).pivot_table(index=KEY, columns="backend", values="own_us", aggfunc="min")


def regrets(us: pd.DataFrame) -> pd.DataFrame:
    """By shape: FlashAttention-3's time over that of the fastest kernel that is no build of it, whose name is `best`."""
    others = us.loc[:, ~us.columns.str.startswith(FA3)]
    return pd.DataFrame({"regret": us[FA3] / others.min(axis=1), "best": others.idxmin(axis=1)})


def of_regrets(us: pd.DataFrame) -> str:
    """At how many shapes another kernel is faster, which one, and by how much."""
    found = regrets(us)
    behind = found[found["regret"] > 1 + SAME]
    one = behind[behind.index.get_level_values("s_qo") == 1]
    drafts = behind.drop(one.index)
    least = behind[behind.index.get_level_values("batch_size") > FEW]["regret"]
    return checked(
        f"In the whole main sweep another kernel than FlashAttention-3 is faster by more than {SAME:.0%} at {len(behind)} of {len(found)} shapes: {tally(behind['best'])}."
        f"\n{len(one)} of them have one query token over an FP8 cache, where FlashAttention-3 takes up to {one['regret'].max():.2f} times as long"
        f" (up to {least.max():.2f} with more than one request).\nThe other {len(drafts)} are over a bf16 cache ({span(drafts['regret'])} times).",
        set(one.index.get_level_values("kv_dtype")) == {"fp8_e4m3"},
        set(drafts.index.get_level_values("kv_dtype")) == {"bf16"},
        not set(behind["best"]) & set(OF_ENGINES),
    )


def of_engines(us: pd.DataFrame) -> str:
    """The engines' other kernels, over all shapes that they serve."""
    ratios = us[list(OF_ENGINES)].div(us[FA3], axis=0)
    few = ratios.index.get_level_values("batch_size") == FEW
    bf16 = ratios.index.get_level_values("kv_dtype") == "bf16"
    words = (
        f"There {name} takes over a bf16 cache {span(ratios.loc[bf16 & few, name])} times FlashAttention-3's time with one request,"
        f" and {span(ratios.loc[bf16 & ~few, name])} with more.\n"
        for name in OF_ENGINES
    )
    return "".join(words) + checked(
        f"None of these three is faster than FlashAttention-3 by more than {SAME:.0%} at any shape.",
        bool((ratios.min() >= 1 - SAME).all()),
    )


def table(us: pd.DataFrame) -> str:
    """Every shape at which another kernel is faster."""
    found = regrets(us)
    behind = found[found["regret"] > 1 + SAME]
    shown = us.loc[behind.index, sorted(us.columns)].dropna(axis=1, how="all")
    return "\n\n".join(
        (
            table_of(f"µs where another kernel than FlashAttention-3 is faster by more than {SAME:.0%}, main sweep", shown),
            table_of(
                "FlashAttention-3's time there over the fastest other's", behind[["regret"]].rename_axis(columns=""), "{:.2f}"
            ),
        )
    )

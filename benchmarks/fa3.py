"""FlashAttention-3 beside FlashInfer's kernels, as tables of docs/backends.md, from `results/h200_main/specdec_long_ctx`."""

from __future__ import annotations

import pandas as pd

from benchmarks.rows import frame_of
from orchestrator import ROOT
from orchestrator.tables import Grid

SWEEP = ROOT / "results" / "h200_main/specdec_long_ctx"
SHAPE = ["batch_size", "s_kv", "s_qo"]
FA3 = "flash_attn_3"
OTHERS = {"fa2_tc": "fa2 on tensor cores", "trtllm-native": "XQA"}
QUERIES = {"bf16": "bf16", "fp8_e4m3": "fp8_e4m3"}  # of FlashAttention-3, by the cache
SAME = 0.02


def times(of: str = "own_us") -> pd.DataFrame:
    """µs of each backend, by queries, cache and shape: the median without the launch of the graph, or `median_us` with it."""
    ok = frame_of(SWEEP).query("status == 'ok'")
    ok = ok.assign(own_us=ok["median_us"] - ok["launch_us"])
    return ok.pivot_table(index=["q_dtype", "kv_dtype", *SHAPE], columns="backend", values=of)


def over_others(cache: str) -> pd.Series:
    """By shape: its time over that of the faster of two of FlashInfer's kernels, which take bf16 queries."""
    found = times()
    return found.loc[QUERIES[cache], cache][FA3] / found.loc["bf16", cache][list(OTHERS)].min(axis=1)


def leads() -> Grid:
    """FlashAttention-3 against the faster of two of FlashInfer's kernels. Over FP8 caches those take bf16 queries."""
    cells = []
    for cache, queries in QUERIES.items():
        for s_qo, ratio in over_others(cache).groupby("s_qo"):
            counts = ((ratio < 1 - SAME).sum(), ratio.between(1 - SAME, 1 + SAME).sum(), (ratio > 1 + SAME).sum())
            figures = (f"{figure:.2f}" for figure in (ratio.median(), ratio.min(), ratio.max()))
            cells.append((cache, queries, str(s_qo), *map(str, counts), *figures))
    header = ("cache", "its queries", "s_qo", "faster", "within 2%", "slower", "time over theirs, median", "least", "most")
    return Grid("", header, tuple(cells))


def plans() -> Grid:
    """What it costs to make the plan in every call, and what a limit of 32 splits costs: time over that of a plan made before."""
    found, cells = times(), []
    ours = found[found[FA3].notna()]
    for (batch, s_kv), rows in ours.groupby(["batch_size", "s_kv"]):
        more = rows["flash_attn_3_unplanned"] - rows[FA3]
        over = [(rows[name] / rows[FA3]).median() for name in ("flash_attn_3_unplanned", "flash_attn_3_32_splits")]
        cells.append((str(batch), f"{s_kv:,}", f"{more.median():.1f}", *(f"{ratio - 1:+.1%}" for ratio in over)))
    header = ("batch", "s_kv", "plan made in the call: µs more, median", "of the time", "at most 32 splits: of the time")
    return Grid("", header, tuple(cells))

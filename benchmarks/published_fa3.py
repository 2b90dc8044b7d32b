"""Our times of FlashAttention-3 beside published ones, as a table of docs/flash_attention_3.md.

The published ones (`benchmarks/data/published_fa3.csv`, rounded to 0.1 µs) are aiconfigurator's, of an H200:
`generation_attention_perf.parquet` of vLLM 0.24.0 and SGLang 0.5.14, under `aic-core/src/aiconfigurator_core/systems/data` in
https://github.com/ai-dynamo/aiconfigurator, commit 095f58a. They have 64 query heads, 8 KV heads, head_dim 128 and one query token;
s_kv is `step` + 1. Its collectors (`collector/vllm/collect_attn.py`, `collector/sglang/collect_attn.py`) replay a CUDA graph of an
engine's call, which writes the new keys and values too, between two events (`collector/helper.py`), without a flush.
"""

from __future__ import annotations

import pandas as pd

from benchmarks.fa3 import FA3, times
from benchmarks.rows import frame_of
from orchestrator import ROOT
from orchestrator.tables import Grid

DATA = ROOT / "benchmarks" / "data" / "published_fa3.csv"
BUILDS = ROOT / "results" / "h100_engine_builds"
SGLANG = "SGLang 0.5.14"
NAMES = {"flash_attn_3_sglang": "SGLang's build", "flash_attn_3_vllm": "vLLM's", FA3: "`tokenspeed-fa3`"}
SHAPE = ["kv_dtype", "batch_size", "s_kv"]
OURS = ("median_us", "own_us")


def compared() -> pd.DataFrame:
    """By shape: our median with and without the launch of the graph, and the published time of each engine."""
    theirs = pd.read_csv(DATA).pivot(index=SHAPE, columns="engine", values="published_us")
    ours = pd.DataFrame({name: times(name)[FA3].dropna() for name in OURS}).query("s_qo == 1").reset_index()
    return ours.set_index(SHAPE)[list(OURS)].join(theirs, how="inner").sort_index()


def agreement() -> Grid:
    """Published times, ours, and how much longer theirs are than ours without the launch."""
    found, cells = compared(), []
    engines = [name for name in reversed(found.columns) if name not in OURS]
    for (kv, batch, s_kv), row in zip(found.index, found.to_dict("records"), strict=True):
        theirs = (f"{row[engine]:.1f} ({row[engine] / row['own_us'] - 1:+.0%})" for engine in engines)
        cells.append((kv, str(batch), f"{s_kv:,}", *(f"{row[name]:.1f}" for name in OURS), *theirs))
    return Grid("", ("cache", "batch", "s_kv", "ours, µs", "without the launch", *engines), tuple(cells))


def by_pages() -> pd.DataFrame:
    """By shape and pages (tokens, order), of one query token on an H100: µs without the launch of each build."""
    ok = frame_of(BUILDS).query("status == 'ok' and routine == 'paged_decode' and s_qo == 1")
    ok = ok.assign(own_us=ok["median_us"] - ok["launch_us"], pages=ok["page_size"].astype(str) + " " + ok["page_order"])
    return ok.pivot_table(index=[*SHAPE, "pages"], columns="backend", values="own_us")[list(NAMES)]


def token_pages() -> Grid:
    """SGLang's published times over ours, and what pages of one token cost on an H100, at the same shapes."""
    published, cells = compared(), []
    ours, coarse, fine = (by_pages().xs(pages, level="pages") for pages in ("64 random", "64 sequential", "1 sequential"))
    for shape in published.index:
        kv, batch, s_kv = shape
        theirs = published.loc[shape, SGLANG] / published.loc[shape, "own_us"]
        both = fine.loc[shape, "flash_attn_3_sglang"] / ours.loc[shape, FA3]
        costs = (f"{fine.loc[shape, build] / coarse.loc[shape, build] - 1:+.0%}" for build in NAMES)
        cells.append((kv, str(batch), f"{s_kv:,}", f"{theirs - 1:+.0%}", f"{both - 1:+.0%}", *costs))
    header = ("cache", "batch", "s_kv", "published", "measured", *(f"pages of one, {name}" for name in NAMES.values()))
    return Grid("", header, tuple(cells))

"""Our times of FlashAttention-3 beside published ones, as a table of docs/flash_attention_3.md.

The published ones (`benchmarks/data/published_fa3.csv`, rounded to 0.1 µs) are aiconfigurator's, of an H200 and an H100:
`generation_attention_perf.parquet` of vLLM 0.19.0 and 0.24.0 and of SGLang 0.5.14, under
`aic-core/src/aiconfigurator_core/systems/data` in https://github.com/ai-dynamo/aiconfigurator, commit 095f58a. Of the shapes here
that of vLLM 0.19.0 has four, on the H200 twice. They have 64 query heads, 8 KV heads, head_dim 128 and one query token;
s_kv is `step` + 1. Its collectors (`collector/vllm/collect_attn.py`, `collector/sglang/collect_attn.py`) replay a CUDA graph of an
engine's call, which writes the new keys and values too, between two events (`collector/helper.py`), without a flush.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.fa3 import FA3, times
from benchmarks.rows import frame_of
from orchestrator import ROOT
from orchestrator.tables import Grid

DATA = ROOT / "benchmarks" / "data" / "published_fa3.csv"
BUILDS = {card: ROOT / "results" / f"{card.lower()}_engine_builds" for card in ("H100", "H200")}
CANDIDATES = ROOT / "results" / "h100_specdec_all_candidates"
ON_H200 = ROOT / "results" / "h200_specdec_all_candidates"
OLDER_VLLM, VLLM, SGLANG = "vLLM 0.19.0", "vLLM 0.24.0", "SGLang 0.5.14"
NAMES = {"flash_attn_3_sglang": "SGLang's build", "flash_attn_3_vllm": "vLLM's", FA3: "`tokenspeed-fa3`"}
SHAPE = ["kv_dtype", "batch_size", "s_kv"]
OURS = ("median_us", "own_us")


def published(card: str) -> pd.DataFrame:
    """By shape: the published µs of each engine on a kind of card, the mean of several measurements if there are."""
    rows = pd.read_csv(DATA).query("device == @card")
    return rows.pivot_table(index=SHAPE, columns="engine", values="published_us")


def compared() -> pd.DataFrame:
    """By shape, on an H200: our median with and without the launch of the graph, and the published time of each engine."""
    ours = pd.DataFrame({name: times(name)[FA3].dropna() for name in OURS}).query("s_qo == 1").reset_index()
    return ours.set_index(SHAPE)[list(OURS)].join(published("H200")[[VLLM, SGLANG]], how="inner").sort_index()


def agreement() -> Grid:
    """Published times, ours, and how much longer theirs are than ours without the launch, and than that of the engine's build."""
    found, cells = compared().join(vllm_build(ON_H200)).join(sglang_build("H200")), []
    for (kv, batch, s_kv), row in zip(found.index, found.to_dict("records"), strict=True):
        theirs = (f"{row[engine]:.1f} ({row[engine] / row['own_us'] - 1:+.0%})" for engine in (VLLM, SGLANG))
        pairs = ((row["ours, vLLM"], row[VLLM]), (row["ours, SGLang"], row[SGLANG]))
        builds = [text for ours, published in pairs for text in (f"{ours:.1f}", f"{published / ours - 1:+.0%}")]
        cells.append((kv, str(batch), f"{s_kv:,}", *(f"{row[name]:.1f}" for name in OURS), *theirs, *builds))
    own = ("ours, vLLM's build", f"{VLLM} over it", "ours, SGLang's build", f"{SGLANG} over it")
    return Grid("", ("cache", "batch", "s_kv", "ours, µs", "without the launch", VLLM, SGLANG, *own), tuple(cells))


def vllm_build(folder: Path) -> pd.DataFrame:
    """By shape: our time without the launch of vLLM's build, with one query token and pages of 64."""
    return of_build(folder, "flash_attn_3_vllm").to_frame("ours, vLLM")


def sglang_build(card: str) -> pd.DataFrame:
    """By shape: our time without the launch of SGLang's build, one query token and SGLang's pages: of one token, in sequence."""
    return by_pages(card).xs("1 sequential", level="pages")["flash_attn_3_sglang"].to_frame("ours, SGLang")


def of_build(folder: Path, backend: str) -> pd.Series:
    ok = frame_of(folder).query("status == 'ok' and s_qo == 1 and backend == @backend").set_index(SHAPE)
    return ok["median_us"] - ok["launch_us"]


def same_builds() -> pd.DataFrame:
    """By shape, on H100s: our time without the launch of each engine's own build, with its pages, and the published times."""
    ours = vllm_build(CANDIDATES).join(sglang_build("H100"), how="outer")
    return ours.join(published("H100")).join(published("H200"), rsuffix=" on an H200").dropna(subset=[VLLM])


def agreement_of_builds() -> Grid:
    """Published times of an H100 beside ours of each engine's build with its pages, and what vLLM 0.24.0 takes more than 0.19.0."""
    found, cells = same_builds(), []
    for (kv, batch, s_kv), row in zip(found.index, found.to_dict("records"), strict=True):
        pairs = ((row["ours, vLLM"], row[VLLM]), (row["ours, SGLang"], row[SGLANG]))
        sides = [text for ours, theirs in pairs for text in (f"{ours:.1f}", f"{theirs:.1f} ({theirs / ours - 1:+.0%})")]
        newer = [row[f"{VLLM}{card}"] - row[f"{OLDER_VLLM}{card}"] for card in ("", " on an H200")]
        cells.append((kv, str(batch), f"{s_kv:,}", *sides, *("–" if pd.isna(us) else f"{us:+.1f}" for us in newer)))
    engines = ("ours, vLLM's build, µs", VLLM, "ours, SGLang's build, µs", SGLANG)
    releases = ("0.24.0 − 0.19.0 on the H100, µs", "on the H200")
    return Grid("", ("cache", "batch", "s_kv", *engines, *releases), tuple(cells))


def by_pages(card: str) -> pd.DataFrame:
    """By shape and pages (tokens, order), of one query token: µs without the launch of each build."""
    ok = frame_of(BUILDS[card]).query("status == 'ok' and routine == 'paged_decode' and s_qo == 1")
    ok = ok.assign(own_us=ok["median_us"] - ok["launch_us"], pages=ok["page_size"].astype(str) + " " + ok["page_order"])
    return ok.pivot_table(index=[*SHAPE, "pages"], columns="backend", values="own_us")[list(NAMES)]


def token_pages() -> Grid:
    """SGLang's published times over ours, and what pages of one token cost, at the same shapes, on an H200."""
    published, cells = compared(), []
    ours, coarse, fine = (by_pages("H200").xs(pages, level="pages") for pages in ("64 random", "64 sequential", "1 sequential"))
    for shape in published.index:
        kv, batch, s_kv = shape
        theirs = published.loc[shape, SGLANG] / published.loc[shape, "own_us"]
        both = fine.loc[shape, "flash_attn_3_sglang"] / ours.loc[shape, FA3]
        costs = (f"{fine.loc[shape, build] / coarse.loc[shape, build] - 1:+.0%}" for build in NAMES)
        cells.append((kv, str(batch), f"{s_kv:,}", f"{theirs - 1:+.0%}", f"{both - 1:+.0%}", *costs))
    header = ("cache", "batch", "s_kv", "published", "measured", *(f"pages of one, {name}" for name in NAMES.values()))
    return Grid("", header, tuple(cells))

"""Paged decode by group ratio, page size and query tokens."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import choices, folder_of, grid_of, rows, span, table_of, tally, winners
from benchmarks.findings.page import Finding, checked
from orchestrator.tables import Grid

SWEEP = "specdec_paged_decode"
RATIO = {"group": "query heads a KV head"}


def finding() -> Finding:
    ok = rows(SWEEP)
    causal = ok[(ok["mask"] == "causal") & (ok["seq_lens"] == "fixed") & ok["min_s_qo"].isna()]
    half = causal[(causal["kv_dtype"] == "bf16") & (causal["q_dtype"] == "bf16")]
    by_draft = half[half["page_size"] == 64].pivot_table(index=["group", "s_qo"], columns="backend", values="own_us")
    first = winners(half[half["page_size"] == 64], ["group", "s_qo"], "backend")
    pages = half[half["group"] == 8].pivot_table(index=["backend", "s_qo"], columns="page_size", values="own_us")
    growth = {name: by_draft[name].unstack("s_qo") for name in ("fa2_tc", "flash_attn_3", "trtllm-native") if name in by_draft}
    free = ", ".join(f"`{name}` {t.loc[8, 4] / t.loc[8, 1]:.2f} and {t.loc[8, 16] / t.loc[8, 1]:.2f}" for name, t in growth.items())
    paging = pages.div(pages[64], axis=0)
    return Finding(
        name="paged_decode",
        question="What does a draft cost, by query heads a KV head and by page size?",
        answer="A draft costs little until its query tokens times the query heads of a KV head exceed one tile of the kernel.\n"
        f"At 8 heads, the time of 4 and of 16 query tokens, divided by that of one: {free}.\n"
        f"Over {len(first)} pairs of GQA ratio and draft the fastest is {tally(first['backend'])}.",
        table=short_table(by_draft),
        advice=checked(
            "draft with FlashAttention-3 over a 16-bit cache; with another kernel, draft until the tile is full.\n"
            "The page size matters for few kernels, as the tables show.",
            (first["backend"] == "flash_attn_3").mean() > 0.7 and growth["flash_attn_3"].loc[8, 16] < 1.1 * growth["flash_attn_3"].loc[8, 1],
        ),
        limits="measured at batch 16, s_kv 8,192 and head_dim 128. Of the kernels here, full masks and drafts of different lengths are served only by "
        + ", ".join(f"`{name}`" for name in serving_all(ok)) + ".",
        command=f"python -m orchestrator +sweep={SWEEP} mode=report results.path=results/{folder_of(SWEEP)}",
        datasets=(SWEEP,),
        evidence=(
            table_of("µs at pages of 64 tokens", by_draft.rename_axis(index=RATIO)),
            page_sizes(paging),
            table_of("µs by page size, 8 heads a KV head", pages),
            *fp8(causal),
        ),
    )  # fmt: skip


def short_table(by_draft: pd.DataFrame) -> Grid:
    kept = by_draft.loc[[(group, s_qo) for group in (4, 8, 16) for s_qo in (1, 4, 16)]]
    return grid_of(
        "µs at pages of 64 tokens", kept.rename_axis(index=RATIO).drop(columns=[c for c in ("auto", "fa2") if c in kept])
    )


def serving_all(ok: pd.DataFrame) -> list[str]:
    """Backends that served a full mask over a draft, and drafts of different lengths."""
    full = set(ok[(ok["mask"] == "full") & (ok["s_qo"] > 1)]["backend"])
    return sorted(full & set(ok[ok["min_s_qo"].notna()]["backend"]))


def page_sizes(paging: pd.DataFrame) -> str:
    lines = []
    for backend, part in paging.groupby(level="backend"):
        others = part.drop(columns=64).stack()
        if len(others):
            lines.append(f"- `{backend}`: {span(others)} of its time at pages of 64.")
    return "By page size, over all drafts at 8 heads a KV head:\n\n" + "\n".join(lines)


def fp8(causal: pd.DataFrame) -> tuple[str, ...]:
    eight = choices(causal[(causal["kv_dtype"] == "fp8_e4m3") & (causal["page_size"] == 64)])
    if eight.empty:
        return ()
    eight = eight.assign(backend=eight["backend"] + " (" + eight["q_dtype"] + " queries)")
    wide = eight.pivot_table(index=["group", "s_qo"], columns="backend", values="own_us")
    return (table_of("µs over an FP8 cache, pages of 64", wide.rename_axis(index=RATIO)),)

"""The main sweep: drafts over long contexts."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings import builds, sustained_load
from benchmarks.findings.frames import FA3, RESULTS, SAME, choices, folder_of, named, rows, span, tally, winners
from benchmarks.findings.page import Finding, checked
from orchestrator.analysis.names import shown
from orchestrator.analysis.questions import best, open_views
from orchestrator.tables import Grid, markdown

SWEEP = "specdec_long_ctx"
CACHES = {"bf16": "a bf16", "fp8_e4m3": "an FP8"}
SHAPE = ["batch_size", "s_kv", "s_qo"]


def finding() -> Finding:
    ok = rows(SWEEP)
    first = winners(ok, ["kv_dtype", *SHAPE]).reset_index()
    over = fa3_over_others(ok)
    sentences = [
        f"Over {CACHES[kv]} cache the fastest is {tally(part['family'])} of {len(part)} shapes."
        for kv, part in first.groupby("kv_dtype")
    ]
    exact = first.groupby("resolved_backend")["rel_err"].max().sort_values()
    worst = (
        f"`{exact.index[-1]}` has an error of up to {exact.iloc[-1]:.1%} of a row's size, `{exact.index[0]}` of {exact.iloc[0]:.2%}"
    )
    drafts = over[over.index.get_level_values("s_qo") > 1]
    fp8 = drafts[drafts.index.get_level_values("kv_dtype") == "fp8_e4m3"]
    half = drafts[drafts.index.get_level_values("kv_dtype") == "bf16"]
    two = first[(first["kv_dtype"] == "bf16") & (first["s_qo"] == 2)]
    return Finding(
        name="decode",
        question="Which decode backend is fastest for drafts over long contexts?",
        answer="\n".join(sentences),
        table=Grid(
            "fastest by cache and query tokens; FlashAttention-3's time over the best other kernel's", HEADER, cells(first, over)
        ),
        advice=f"with drafts use FlashAttention-3. It takes {span(half)} of the best other kernel's time over a bf16 cache, and"
        f" {span(fp8)} over FP8 (median {half.median():.2f} and {fp8.median():.2f})."
        + checked(" With 2 query tokens over a bf16 cache `fa2_tc` is ahead", two["family"].eq("fa2_tc").mean() > 0.5)
        + f" at {two['family'].eq('fa2_tc').sum()} of {len(two)} shapes, by up to {two.loc[two['family'].eq('fa2_tc'), 'ahead'].max():.1%}."
        " With one query token the kernels are closer, and the tables decide.",
        limits=f"the fastest kernel is not the most exact. Among the winners {worst}. FlashAttention-4, FlexAttention and Triton kernels have"
        " [a section of their own](#what-do-triton-flexattention-and-flashattention-4-cost-beside-flashattention-3-on-hopper)."
        " Over an FP8 cache FlashAttention-3 takes FP8 queries; the others have bf16 queries or, if faster, FP8 ones."
        f" {builds.of_other_builds()} {sustained_load.pointer()}",
        command=f"python -m orchestrator +sweep={SWEEP} mode=report results.path=results/{folder_of(SWEEP)}",
        datasets=(SWEEP, builds.ON_H200),
        evidence=(markdown(best.grids(open_views(RESULTS / folder_of(SWEEP)))), ways(ok)),
        in_readme=in_readme(first),
    )


def in_readme(first: pd.DataFrame) -> str:
    drafts, bf16 = first["s_qo"] > 1, first["kv_dtype"] == "bf16"
    long, two, one = first[drafts & ((first["s_qo"] > 2) | ~bf16)], first[(first["s_qo"] == 2) & bf16], first[~drafts]
    others = [shown(str(name)) for name in one["family"].value_counts().index if name != FA3]
    return checked(
        "With drafts FlashAttention-3; with 2 query tokens over a bf16 cache `fa2_tc` is slightly ahead.",
        long["family"].eq(FA3).mean() > 0.9,
        two["family"].eq("fa2_tc").mean() > 0.5,
        two["ahead"].median() < 0.05,
    ) + checked(f" Without drafts {', '.join(others[:-1])} or {others[-1]} at most shapes.", one["family"].eq(FA3).mean() < 0.5)


HEADER = (
    "cache",
    "s_qo",
    "shapes",
    "fastest",
    "ahead by, median",
    "FlashAttention-3 over the best other",
    "largest error of a winner",
)


def fa3_over_others(ok: pd.DataFrame) -> pd.Series:
    """By cache and shape: the time of FlashAttention-3 over that of the best other kernel, whatever the dtype of its queries."""
    least = choices(ok).groupby(["kv_dtype", *SHAPE, ok["family"].eq(FA3)])["own_us"].min().unstack()
    return (least[True] / least[False]).dropna()


def cells(first: pd.DataFrame, over: pd.Series) -> tuple[tuple[str, ...], ...]:
    found = []
    for (kv, s_qo), part in first.groupby(["kv_dtype", "s_qo"]):
        ratio = over.xs((kv, s_qo), level=("kv_dtype", "s_qo"))
        least = part["rel_err"].idxmax()
        error = f"{part['rel_err'].max():.4f} ({shown(part.loc[least, 'resolved_backend'])})"
        row = (kv, str(s_qo), str(len(part)), tally(part["family"]), f"{part['ahead'].median():.1%}")
        found.append((*row, f"{ratio.median():.2f} ({span(ratio)})", error))
    return tuple(found)


def ways(ok: pd.DataFrame) -> str:
    """The three ways to call FlashAttention-3, against a plan made before the layers."""
    key = ["q_dtype", "kv_dtype", *SHAPE]
    times = ok[ok["family"] == FA3].pivot_table(index=key, columns="backend", values="own_us")
    ratios = times.div(times[FA3], axis=0).drop(columns=FA3).stack().rename("ratio").reset_index()
    short = ratios.merge(times[FA3].rename("us").reset_index(), on=key)
    found = [
        (named(backend), kv, str(s_qo), str(len(part)), f"{part['ratio'].median():.3f}", span(part["ratio"], "{:.3f}"),
         str(int((part["ratio"] > 1 + SAME).sum())))
        for (backend, kv, s_qo), part in short.groupby(["backend", "kv_dtype", "s_qo"])
    ]  # fmt: skip
    header = ("backend", "cache", "s_qo", "points", "median", "least to most", f"over {SAME:.0%} slower")
    title = "time divided by that of `flash_attn_3`, whose plan is made once before the layers, with any number of splits"
    note = "`flash_attn_3_unplanned` makes its plan in every call, as SGLang does for drafts.\n`flash_attn_3_32_splits` splits the keys into at most 32 parts, as vLLM does in full CUDA graphs."
    return f"{note}\n\n{markdown([Grid(title, header, tuple(found))])}"

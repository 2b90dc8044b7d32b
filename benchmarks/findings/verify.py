"""The same draft through decode kernels and through prefill kernels."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings import draft_candidates, fp8_queries, nearness
from benchmarks.findings.frames import FA3, choices, folder_of, of_best, ratio_grid, rows, table_of, tally, winners
from benchmarks.findings.page import Finding, checked
from orchestrator.analysis.questions import crossover, views_of
from orchestrator.tables import Grid, markdown

SWEEP, MAIN = "target_verify", "h200_main/specdec_all_candidates"
SHAPE = ["kv_dtype", "batch_size", "s_kv", "s_qo"]
CACHES = {"bf16": "a bf16 cache", "fp8_e4m3": "an FP8 cache with bf16 queries"}
SLOW = 1.5  # of the best's time at the median: not to take


def finding() -> Finding:
    ok = rows(SWEEP)
    usual = ok[(ok["kv_layout"] == "HND") & (ok["page_order"] == "random")]
    ratios = of_best(choices(usual), SHAPE)
    first = winners(usual, SHAPE).reset_index()
    middle = ratios.groupby(["kv_dtype", "kernel"])["ratio"].median()
    slow = {kv: [kernel for kernel, ratio in part.droplevel(0).items() if ratio > SLOW] for kv, part in middle.groupby("kv_dtype")}
    usable = [kernel not in slow[kv] for kv, kernel in zip(ratios["kv_dtype"], ratios["kernel"], strict=True)]
    short = ratio_grid("", ratios[usable], ["kv_dtype", "kernel"])
    one_name = first["family"].where(first["family"] != "fa2", "fa2_tc")  # of one kernel
    sentences = [
        f"Over {CACHES[kv]} the fastest is {tally(one_name[part.index])} of {len(part)} shapes."
        for kv, part in first.groupby("kv_dtype")
    ]
    return Finding(
        name="verify",
        question="Verify a draft with the decode kernel or with the prefill kernel?",
        answer="Choose the kernel and not the path: `fa2_tc` of decode and `fa2` of prefill, for example, are one kernel, here called fa2_tc.\n"
        + "\n".join((*sentences, draft_candidates.of_drafts(), fp8_queries.of_drafts())),
        table=Grid("time divided by the best kernel's, at the same problem", short.header, short.cells),
        advice="\n".join(
            f"over {CACHES[kv]} do not use {', '.join(f'`{kernel}`' for kernel in names)}:"
            f" {'each' if len(names) > 1 else 'it'} takes over {SLOW} times the best kernel's time at the median."
            for kv, names in slow.items()
            if names
        )
        + "\n"
        + draft_candidates.advice(),
        limits=checked(
            "FlashAttention-3 serves no FP8 cache with bf16 queries; with FP8 ones see [the main sweep](#which-decode-backend-is-fastest-for-drafts-over-long-contexts) too. Those of this sweep ran on another H100 and on another H200 than the bf16 ones.\n",
            set(usual["q_dtype"]) == {"bf16"},
            not ((usual["family"] == FA3) & (usual["kv_dtype"] != "bf16")).any(),
            *(fp8_queries.cards_differ(pair) for pair in fp8_queries.DRAFTS.values()),
        )
        + f"{fp8_queries.of_launch(fp8_queries.DRAFTS)}\nThe kernels of engines ran on one H100 that other processes held too, and on one H200 while compilers used its CPU.\n"
        + f"{nearness.sentence(draft_candidates.DRAFTS['H200'], folder_of(SWEEP), MAIN)}\n{layouts(ok)[0]}\n{twins(usual)}",
        in_readme=checked(
            "The kernel matters, not the path: FlashAttention-3 over a bf16 cache; over an FP8 one, with bf16 queries, fa2 or XQA. With FP8 queries see the first row.",
            first.loc[first["kv_dtype"] == "bf16", "family"].eq(FA3).mean() > 0.75,
            set(one_name[first["kv_dtype"] != "bf16"]) == {"fa2_tc", "trtllm-native"},
        ),
        command=f"python -m orchestrator +sweep={SWEEP} mode=report question=crossover results.path=results/{folder_of(SWEEP)}",
        datasets=(SWEEP, *draft_candidates.DRAFTS.values(), *fp8_queries.datasets(fp8_queries.DRAFTS)),
        evidence=(
            markdown([ratio_grid("time divided by the best kernel's, at the same problem", ratios, ["kv_dtype", "kernel"])]),
            markdown(crossover.grids(views_of(usual))),
            layouts(ok)[1],
            *(draft_candidates.draft_tables(card) for card in draft_candidates.DRAFTS),
            *fp8_queries.tables(fp8_queries.DRAFTS),
        ),
    )


def twins(usual: pd.DataFrame) -> str:
    """How much two names of one kernel differ."""
    one, other = (usual[usual["kernel"] == kernel].set_index(SHAPE)["own_us"] for kernel in ("decode fa2_tc", "prefill fa2"))
    rel_diff = (one / other - 1).abs().dropna()
    return (
        f"`fa2_tc` (decode) and `fa2` (prefill) launch the same kernel. Over {len(rel_diff)} problems their times differ by {rel_diff.median():.2%}"
        f" at the median, {rel_diff.quantile(0.9):.1%} at the 90th percentile and {rel_diff.max():.1%} at most. Differences of this size mean nothing."
    )


def layouts(ok: pd.DataFrame) -> tuple[str, str]:
    """A sentence and a table: how much the layout of the pages changes a time."""
    same = ok[(ok["batch_size"] == 8) & (ok["s_kv"] == 50000) & (ok["s_qo"] == 4) & (ok["kv_dtype"] == "bf16")]
    same = same.assign(pages=same["kv_layout"] + " " + same["page_order"])
    by_layout = same.pivot_table(index="kernel", columns="pages", values="own_us").rename_axis(columns=None)
    spread = (by_layout.max(axis=1) / by_layout.min(axis=1) - 1).max()
    sentence = f"The layout of the pages (head-major or token-major, in order or not) changes no kernel by more than {spread:.1%} at 8 x 50,000."
    return sentence, table_of("µs by layout, batch 8, s_kv 50,000, s_qo 4, bf16", by_layout)

"""Linear drafts, full masks and trees: XQA, fa2 and FlashAttention-3."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings import draft_candidates, fp8_queries, nearness
from benchmarks.findings.frames import folder_of, rows, span, table_of, tally
from benchmarks.findings.page import Finding, checked
from orchestrator.tables import Grid

SWEEP = "xqa_specdec"
TREES = ("binary", "eagle_top4", "medusa_7b_63")
KEY = ["mask", "q_dtype", "kv_dtype", "batch_size", "s_kv", "s_qo"]
NAMES = {"XQA": ("decode trtllm-native",), "fa2": ("decode fa2_tc", "prefill fa2"), "flash_attn_3": ("decode flash_attn_3",)}


def finding() -> Finding:
    ok = rows(SWEEP)
    wide = ok.pivot_table(index=KEY, columns="kernel", values="own_us")
    columns = {
        name: wide[[k for k in kernels if k in wide]].min(axis=1) for name, kernels in NAMES.items() if set(kernels) & set(wide)
    }
    times = pd.DataFrame(columns).reset_index()
    drafts = times[times["q_dtype"] == "bf16"].assign(tree=times["mask"].isin(TREES))
    trees, linear = drafts[drafts["tree"]], drafts[drafts["mask"] == "causal"]
    worst = ok[ok["backend"] == "trtllm-native"].groupby("resolved_backend")["rel_err"].max()
    costs = ", ".join(f"{name} {span(tree_cost(times, name))} times" for name in columns)
    return Finding(
        name="trees",
        question="Which kernel verifies a tree of drafts?",
        answer=f"The time of a tree, divided by that of a causal draft of the same length: {costs}.\n"
        f"With bf16 queries and trees the fastest is {tally(fastest(trees, columns))} of {len(trees)} shapes; "
        f"with linear drafts it is {tally(fastest(linear, columns))} of {len(linear)}.\n"
        + f"{draft_candidates.of_trees(TREES)}\n{fp8_queries.of_trees(TREES)}",
        table=short_table(drafts, list(columns)),
        advice=advice(trees, columns),
        limits=f"XQA's Hopper kernel for FP8 has an error of up to {worst['xqa_hopper_fp8']:.1%} of a row's size, its other kernels of {worst['xqa']:.2%}."
        " FlashAttention-3 serves a tree in two calls, for the context and for the drafts, and a merge. Its time is that of all three.\n"
        f"The times with FP8 queries and with bf16 ones are of {' and of '.join(f'{len(fp8_queries.cards(pair))} {card}s' for card, pair in fp8_queries.TREES.items())}.\n"
        f"{fp8_queries.of_launch(fp8_queries.TREES)}\n"
        f"The kernels of engines ran on one H100, and on one H200 while compilers used its CPU. {nearness.sentence(draft_candidates.TREES['H200'], folder_of(SWEEP))}",
        command=f"python -m orchestrator mode=report question=crossover results.path=results/{folder_of(SWEEP)}",
        datasets=(SWEEP, *draft_candidates.TREES.values(), *fp8_queries.datasets(fp8_queries.TREES)),
        evidence=(
            *(ratio(times, name) for name in columns if name != "fa2"),
            paths(ok),
            *(draft_candidates.tree_table(card) for card in draft_candidates.TREES),
            *fp8_queries.tables(fp8_queries.TREES),
        ),
    )


def advice(trees: pd.DataFrame, columns: object) -> str:
    """What to take, as far as every shape agrees."""
    best = fastest(trees, columns)
    short = (trees["batch_size"] == 1) & (trees["s_kv"] == 8192)
    fp8 = trees["kv_dtype"] == "fp8_e4m3"
    few = short & ((trees["s_qo"] == 8) | (fp8 & (trees["s_qo"] == 16)))
    agreed = (best[few] == "fa2").all() and (best[~few & fp8] == "XQA").all() and (best[~few & ~fp8] == "flash_attn_3").all()
    return checked(
        "verify trees over a 16-bit cache with FlashAttention-3, and over an FP8 cache with XQA, if queries have 16 bits.\n"
        "For one request over 8,192 tokens fa2 is ahead with 8 query tokens, and over an FP8 cache with 16 too.",
        agreed,
    ) + checked(
        " With drafts of 16 tokens or more FP8 queries and FlashAttention-3 are faster there.",
        *(fp8_queries.ratios(pair).loc[list(TREES), 16:].max() < 1 for pair in fp8_queries.TREES.values()),
    )


def fastest(times: pd.DataFrame, names: object) -> pd.Series:
    return times[list(names)].idxmin(axis=1)  # type: ignore[call-overload]


def tree_cost(times: pd.DataFrame, name: str) -> pd.Series:
    by = times.set_index(KEY)[name]
    return (by.xs("binary", level="mask") / by.xs("causal", level="mask")).dropna()


def short_table(drafts: pd.DataFrame, names: list[str]) -> Grid:
    cells = []
    for (kv, tree, batch), part in drafts[drafts["tree"] | (drafts["mask"] == "causal")].groupby(
        ["kv_dtype", "tree", "batch_size"]
    ):
        over = [(part[name] / part[names].min(axis=1)).median() for name in names]
        row = (kv, "tree" if tree else "linear", str(batch), str(len(part)), tally(fastest(part, names)))
        cells.append((*row, *("–" if pd.isna(ratio) else f"{ratio:.2f}" for ratio in over)))
    title = "who is fastest, and the median of each time over the fastest"
    return Grid(title, ("cache", "draft", "batch", "shapes", "fastest", *names), tuple(cells))


def ratio(times: pd.DataFrame, name: str) -> str:
    wide = times.assign(ratio=times[name] / times["fa2"]).pivot_table(index=KEY[:-1], columns="s_qo", values="ratio")
    return table_of(f"{name}'s time over fa2's (the faster of decode and prefill); under 1 it is ahead", wide, "{:.2f}")


def paths(ok: pd.DataFrame) -> str:
    kernels = ok[ok["backend"] == "trtllm-native"].groupby(["kv_dtype", "s_qo"])["resolved_backend"].first().unstack()
    return table_of("XQA's kernel by cache and s_qo, 8 heads a KV head", kernels.rename_axis(columns="s_qo"), "{}")

"""gpt-oss on an H100 beside H200s, at all contexts of the sweep."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.cards import MORE_BANDWIDTH
from benchmarks.findings.frames import FA3, choices, keeping, rows, span
from benchmarks.findings.page import Finding, checked
from benchmarks.findings.sinks import (
    FP8,
    FULL,
    LAYER,
    NAMES,
    OF_PREFILL,
    REST,
    SWEEP,
    WINDOW,
    also,
    costs_by_cache,
    decode_by_cache,
    evidence,
    fastest,
    of_fp8_queries,
    of_prefill,
    on_h200,
    short_table,
    with_layer,
)

ON_H100 = "h100_drafts/target_verify_gpt_oss"
DISTURBED = 1.15  # median over the fastest sample: other work on the GPU slowed the samples
SLOW = (8192, 32768, 131072)  # contexts at which prefill's `fa3` is slower in layers with a window
LONG = 4096  # tokens of a request; fewer fill the GPU for a few µs alone
BOUND = 1.2  # a kernel that takes so many times as long on an H100 is bound by the memory


def finding() -> Finding:
    every = choices(with_layer(rows(ON_H100)).query("page_order == 'random'"))
    calm = undisturbed(every)
    h200 = on_h200()
    (cost, in_fp8, wide), (there, there_in_fp8, there_wide) = (costs_by_cache(ok) for ok in (calm, h200))
    over = cost.div(cost.min(axis=1), axis=0)
    contexts = sorted(every["s_kv"].unique())
    return Finding(
        name="sinks_on_h100",
        question="And on an H100, which kernel verifies drafts of a model with sinks and windows?",
        answer="\n".join(
            (
                f"At all {len(contexts)} contexts of the sweep, {contexts[0]:,} to {contexts[-1]:,} tokens, over one layer of each kind:",
                fastest("Over a bf16 cache, with", cost),
                fastest("Over an FP8 cache with bf16 queries, for", wide),
                of_fp8_queries(in_fp8, calm),
                agreement("a bf16 cache", cost, there),
                agreement("an FP8 cache with bf16 queries", wide, there_wide),
                agreement("an FP8 cache with queries of both dtypes", in_fp8, there_in_fp8),
                of_memory(calm, h200),
                of_prefill(calm),
                of_two_speeds(calm, h200),
            )
        ),
        table=short_table({"H100": cost, "H200": there}),
        advice=f"with one kernel for all drafts over a bf16 cache take FlashAttention-3 on an H100: it costs up to {over[FA3].max():.2f} times the best,"
        f" `fa2_tc` {over['fa2_tc'].max():.2f} and XQA (`trtllm-native`) {over['trtllm-native'].max():.2f} times.\n"
        f"{also()}",
        limits=f"one H100, and the H200's rows are of three runs on as many cards. {of_disturbed(every, calm)} {OF_PREFILL}",
        command="python -m orchestrator +sweep=target_verify model=gpt_oss_120b 'sweep.window=[null,128]' mode=report"
        f" results.path=results/{ON_H100}",
        datasets=(ON_H100, SWEEP, FP8, REST),
        evidence=evidence(calm, cost),
    )


def undisturbed(ok: pd.DataFrame) -> pd.DataFrame:
    """Without the problems of which other work on the GPU slowed a kernel for most of its samples: all kernels of these go."""
    slowed = ok["median_us"] > DISTURBED * ok["min_us"]
    return ok[~slowed.groupby([ok[name] for name in (*LAYER, "kv_dtype")]).transform("any")]


def of_disturbed(every: pd.DataFrame, calm: pd.DataFrame) -> str:
    key = [*LAYER, "kv_dtype"]
    before, after = (len(ok.drop_duplicates(key)) for ok in (every, calm))
    return (
        f"Another process held the same GPU, and {before - after} of {before} problems of one kind of layer are left out:"
        f" there the median of a kernel is over {DISTURBED} times its fastest sample."
    )


def agreement(cache: str, here: pd.DataFrame, there: pd.DataFrame) -> str:
    """How often both cards have one fastest kernel, and what each one's choice costs on the other."""
    shared = here.index.intersection(there.index)
    mine, its = here.loc[shared], there.loc[shared]
    same = int((mine.idxmin(axis=1) == its.idxmin(axis=1)).sum())
    kept, other_way = keeping(its, mine).max() - 1, keeping(mine, its).max() - 1
    elsewhere = (
        f"; to keep its choice elsewhere costs at most {kept:.1%}, and the H100's on the H200 {other_way:.1%}"
        if same < len(shared)
        else ""
    )
    return f"Over {cache} the H200 has the same fastest kernel at {same} of {len(shared)} shared shapes{elsewhere}."


def of_memory(calm: pd.DataFrame, h200: pd.DataFrame) -> str:
    """Why FlashAttention-3 is nearer to the best here: it is not bound by the memory, and the others are."""
    key = [*LAYER, "backend"]
    here, there = (
        ok[(ok["layer"] == FULL) & (ok["batch_size"] > 1) & (ok["s_qo"] <= 4) & (ok["s_kv"] >= LONG)].set_index(key)["own_us"]
        for ok in (decode_by_cache(card)[0] for card in (calm, h200))
    )
    ratio = (here / there).dropna()
    at = {name: ratio.xs(name, level="backend") for name in (*NAMES, "flash_attn_3_unplanned")}
    two = at["fa2_tc"].xs(2, level="s_qo")
    others = pd.concat([at[FA3], at["flash_attn_3_unplanned"], at["fa2_tc"].xs(4, level="s_qo")])
    return checked(
        f"Without a window, with 8 or 32 requests of {LONG:,} tokens or more, XQA takes {at['trtllm-native'].median():.2f} times as long as on the H200 with 2 or 4 query tokens ({span(at['trtllm-native'])})."
        f"\n`fa2_tc` takes with 2 {two.median():.2f} times ({span(two)}).\nThe H200's memory is {MORE_BANDWIDTH:.2f} times as fast by the data sheets."
        f" FlashAttention-3, and `fa2_tc` with 4, take {span(others)} times: they do not gain from faster memory, so on an H100 FlashAttention-3 is nearer to the best.",
        at["trtllm-native"].median() > BOUND,
        two.min() > BOUND,
        others.max() < 1.06,
    )


def of_two_speeds(*cards: pd.DataFrame) -> str:
    """`fa3` of prefill in layers with a window and with one request has two speeds, by context: why what it gains differs so much."""
    slow, quick = [], []
    for ok in cards:
        mine = ok[(ok["kernel"] == "prefill fa3") & (ok["layer"] == WINDOW) & (ok["batch_size"] == 1) & (ok["kv_dtype"] == "bf16")]
        slow.append(mine[mine["s_kv"].isin(SLOW)]["own_us"])
        quick.append(mine[~mine["s_kv"].isin(SLOW)]["own_us"])
    return checked(
        f"On both cards `fa3` takes {span(pd.concat(slow), '{:.1f}')} µs there at {', '.join(f'{s_kv:,}' for s_kv in SLOW)} tokens, and {span(pd.concat(quick), '{:.1f}')} µs at other contexts."
        "\nWhy was not measured.",
        *(at.min() > 1.05 * other.max() for at, other in zip(slow, quick, strict=True)),
    )

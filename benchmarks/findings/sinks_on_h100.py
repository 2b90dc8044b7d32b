"""gpt-oss on an H100 at all contexts of the sweep, beside the four that ran on an H200."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.cards import MORE_BANDWIDTH
from benchmarks.findings.frames import FA3, choices, of_best, ratio_grid, rows, span, table_of, tally, winners
from benchmarks.findings.page import Finding, checked
from benchmarks.findings.sinks import FP8, LAYER, NAMES, SWEEP, fastest, of_both_layers, with_layer
from orchestrator.analysis.names import shown
from orchestrator.tables import Grid, markdown

ON_H100 = "h100_target_verify_gpt_oss"
DISTURBED = 1.15  # median over the fastest sample: other work on the GPU slowed the samples
BOUND = 1.2  # a kernel that takes so many times as long on an H100 is bound by the memory
PREFILL, DECODE = "paged_prefill", "paged_decode"
MANY = 8  # query tokens
WINDOW, FULL = "a window of 128", "full attention"


def finding() -> Finding:
    every = choices(with_layer(rows(ON_H100)).query("page_order == 'random'"))
    calm = undisturbed(every)
    cost, in_fp8, wide = (of_both_layers(part) for part in decode_by_cache(calm))
    there, there_fp8 = on_h200()
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
                agreement("an FP8 cache with bf16 queries", wide, there_fp8),
                of_memory(calm),
                of_prefill(calm),
            )
        ),
        table=short_table({"H100": cost, "H200": there}),
        advice=f"with one kernel for all drafts over a bf16 cache take FlashAttention-3 on an H100: it costs up to {over[FA3].max():.2f} times the best,"
        f" `fa2_tc` {over['fa2_tc'].max():.2f} and XQA (`trtllm-native`) {over['trtllm-native'].max():.2f} times.\n"
        "For one request, try `fa3` of prefill in the layers with a window.\n"
        f"Over an FP8 cache take FlashAttention-3 with FP8 queries from {MANY} query tokens on, if that error is allowed.",
        limits=f"one H100, and the H200's rows are of two earlier runs. {of_disturbed(every, calm)}"
        " `fa2` of prefill is the same kernel as `fa2_tc`, and counts as decode."
        " Over an FP8 cache no other prefill kernel serves.",
        command="python -m orchestrator +sweep=target_verify model=gpt_oss_120b 'sweep.window=[null,128]' mode=report"
        f" results.path=results/{ON_H100}",
        datasets=(ON_H100, SWEEP, FP8),
        evidence=(
            markdown(
                [
                    ratio_grid(
                        "time divided by the best kernel's, by kind of layer",
                        of_best(calm[~same_as_decode(calm)], [*LAYER, "kv_dtype"]),
                        ["kv_dtype", "layer", "kernel", "q_dtype"],
                    )
                ]
            ),
            table_of(
                "µs of decode kernels over one layer of each kind, a bf16 cache",
                cost[list(NAMES)].unstack("s_qo")[list(NAMES)].stack("family", future_stack=True),
            ),
        ),
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


def decode_by_cache(ok: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Decode over a bf16 cache, over an FP8 cache, and over that with bf16 queries alone."""
    decode = ok[ok["routine"] == DECODE]
    fp8 = decode[decode["kv_dtype"] != "bf16"]
    return decode[decode["kv_dtype"] == "bf16"], fp8, fp8[fp8["q_dtype"] == "bf16"]


def on_h200() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The costs over a bf16 and an FP8 cache, both with bf16 queries."""
    bf16, fp8 = (choices(with_layer(rows(name)).query("page_order == 'random'")) for name in (SWEEP, FP8))
    return of_both_layers(decode_by_cache(bf16)[0]), of_both_layers(decode_by_cache(fp8)[2])


def of_fp8_queries(cost: pd.DataFrame, calm: pd.DataFrame) -> str:
    """FlashAttention-3 over an FP8 cache, which no dataset of an H200 has for this model."""
    first = cost.idxmin(axis=1)
    many = first[first.index.get_level_values("s_qo") >= MANY]
    fp8 = calm[calm["kv_dtype"] != "bf16"]
    errors = fp8.groupby("q_dtype")["rel_err"].max()
    over_bf16 = calm[calm["kv_dtype"] == "bf16"]["rel_err"].max()
    return checked(
        f"Over an FP8 cache FlashAttention-3 needs FP8 queries. With them it is faster than all others at {(first == FA3).sum()} of {len(first)} shapes,"
        f" and at {(many == FA3).sum()} of {len(many)} with {MANY} query tokens or more."
        f" Its error is up to {errors['fp8_e4m3']:.1%} of a row's size, and with bf16 queries errors are {errors['bf16']:.1%} at most over this cache and {over_bf16:.1%} over a bf16 one.",
        set(fp8[fp8["q_dtype"] == "fp8_e4m3"]["family"]) == {FA3},
    )


def agreement(cache: str, here: pd.DataFrame, there: pd.DataFrame) -> str:
    """How often both cards have one fastest kernel, and what the H200's choice costs on the H100."""
    shared = here.index.intersection(there.index)
    mine, choice = here.loc[shared], there.loc[shared].idxmin(axis=1)
    kept = pd.Series([mine.at[at, name] for at, name in choice.items()], index=shared) / mine.min(axis=1)
    same = int((mine.idxmin(axis=1) == choice).sum())
    return f"Over {cache} the H200 has the same fastest kernel at {same} of {len(shared)} shared shapes; to keep its choice elsewhere costs at most {kept.max() - 1:.1%}."


def of_memory(calm: pd.DataFrame) -> str:
    """Why FlashAttention-3 is nearer to the best here: it is not bound by the memory, and the others are."""
    key = [*LAYER, "backend"]
    here, there = (
        decode_by_cache(ok)[0].query("layer == @FULL and batch_size > 1 and s_qo <= 4").set_index(key)["own_us"]
        for ok in (calm, choices(with_layer(rows(SWEEP)).query("page_order == 'random'")))
    )
    ratio = (here / there).dropna()
    at = {name: ratio.xs(name, level="backend") for name in (*NAMES, "flash_attn_3_unplanned")}
    two = at["fa2_tc"].xs(2, level="s_qo")
    others = pd.concat([at[FA3], at["flash_attn_3_unplanned"], at["fa2_tc"].xs(4, level="s_qo")])
    return checked(
        f"Without a window and with 8 or 32 requests, XQA takes {at['trtllm-native'].median():.2f} times as long as on the H200 with 2 or 4 query tokens ({span(at['trtllm-native'])}),"
        f" and `fa2_tc` with 2 takes {two.median():.2f} times ({span(two)}).\nThe H200's memory is {MORE_BANDWIDTH:.2f} times as fast by the data sheets."
        f" FlashAttention-3, and `fa2_tc` with 4, take {span(others)} times: they do not gain from faster memory, so on an H100 FlashAttention-3 is nearer to the best.",
        at["trtllm-native"].median() > BOUND,
        two.min() > BOUND,
        others.max() < 1.06,
    )


def same_as_decode(ok: pd.DataFrame) -> pd.Series:
    """`fa2` of prefill, which launches the same kernel as `fa2_tc`."""
    return (ok["routine"] == PREFILL) & (ok["backend"] == "fa2")


def of_prefill(calm: pd.DataFrame) -> str:
    """Decode kernel or prefill kernel, over a bf16 cache."""
    bf16 = calm[(calm["kv_dtype"] == "bf16") & ~same_as_decode(calm)]
    first = winners(bf16, LAYER, "routine").reset_index()
    won = first[first["routine"] == PREFILL]
    able = first[(first["layer"] == WINDOW) & (first["batch_size"] == 1)]
    ahead = span(won["ahead"], "{:.1%}")
    return checked(
        f"Over a bf16 cache a prefill kernel is the fastest in layers with a window and with one request, at {len(won)} of {len(able)} problems: always `fa3`, and the best decode kernel takes {ahead} longer."
        f" At the other {len(first) - len(able)} problems of one kind of layer a decode kernel is the fastest.",
        set(won["kernel"]) == {"prefill fa3"},
        bool(won.index.isin(able.index).all()),
    )


def short_table(costs: dict[str, pd.DataFrame]) -> Grid:
    """Over a bf16 cache, by card."""
    cells = []
    for card, cost in costs.items():
        over = cost.div(cost.min(axis=1), axis=0)
        for s_qo, part in over.groupby(level="s_qo"):
            first = tally(cost.loc[part.index].idxmin(axis=1))
            times = (f"{part[name].median():.2f} ({part[name].max():.2f})" for name in NAMES)
            cells.append((card, str(s_qo), str(len(part)), first, *times))
    title = "one layer of each kind together, a bf16 cache: time over the best decode kernel's, median (most) over shapes"
    return Grid(title, ("card", "s_qo", "shapes", "fastest", *map(shown, NAMES)), tuple(cells))

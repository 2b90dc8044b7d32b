"""A model with attention sinks, half of whose layers see a window: gpt-oss."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, choices, folder_of, of_best, one_card, ratio_grid, rows, span, table_of, tally, winners
from benchmarks.findings.page import Finding, checked
from orchestrator.analysis.names import shown
from orchestrator.tables import Grid, markdown

SWEEP, FP8, REST = "target_verify_gpt_oss", "target_verify_gpt_oss_fp8", "target_verify_gpt_oss_rest"
BY_PAGE = "specdec_paged_decode_gpt_oss"
SHAPE = ["batch_size", "s_kv", "s_qo"]
LAYER = ["layer", *SHAPE]
NAMES = ("fa2_tc", FA3, "trtllm-native")  # the table's
PREFILL, DECODE = "paged_prefill", "paged_decode"
WINDOW, FULL = "a window of 128", "full attention"
MANY = 8  # query tokens
ALIKE = (4096, 8192, 16384, 32768, 131072)  # contexts that end at the edge of a kernel's tile: in a window their work is the same
QUESTION = "Which kernel verifies drafts of a model with sinks and windows?"
ON_H100 = "and-on-an-h100-which-kernel-verifies-drafts-of-a-model-with-sinks-and-windows"  # a section


def finding() -> Finding:
    every = on_h200()
    cost, in_fp8, wide = costs_by_cache(every)
    over = cost.div(cost.min(axis=1), axis=0)
    contexts = sorted(every["s_kv"].unique())
    return Finding(
        name="sinks",
        question=QUESTION,
        answer="\n".join(
            (
                "gpt-oss-120b has attention sinks, and in half of its layers a token sees only the last 128 tokens.",
                "Over one layer of each kind, the number of query tokens decides.",
                f"At all {len(contexts)} contexts of the sweep, {contexts[0]:,} to {contexts[-1]:,} tokens:",
                fastest("Over a bf16 cache, with", cost),
                fastest("Over an FP8 cache with bf16 queries, for", wide),
                of_fp8_queries(in_fp8, every),
                of_prefill(every),
            )
        ),
        table=short_table({"H200": cost}),
        advice="choose by the draft length of your server.\n"
        f"One kernel for all of these shapes costs over a bf16 cache up to {over['fa2_tc'].max():.2f} times the best (`fa2_tc`), {over[FA3].max():.2f} times"
        f" (FlashAttention-3) or {over['trtllm-native'].max():.2f} times (XQA, `trtllm-native`).\n{also()}",
        limits=f"{of_cards(every)} {OF_PREFILL}"
        f" In [the next section](#{ON_H100}) they are compared with an H100."
        " Sinks are drawn in bf16.",
        command="python -m orchestrator +sweep=target_verify model=gpt_oss_120b 'sweep.window=[null,128]' mode=report"
        f" results.path=results/{folder_of(REST)}",
        datasets=(SWEEP, FP8, REST, BY_PAGE),
        evidence=(*evidence(every, cost), by_page(with_layer(rows(BY_PAGE)))),
    )


OF_PREFILL = (
    "`fa2` of prefill is the same kernel as `fa2_tc`, and counts as decode. Over an FP8 cache no other prefill kernel serves."
)


def on_h200() -> pd.DataFrame:
    """Rows of three runs, of an H200 each, with `layer`. Of the points that two of them have, the FP8 dataset's count."""
    first = rows(SWEEP)
    every = pd.concat([first[first["kv_dtype"] == "bf16"], rows(FP8), rows(REST)], ignore_index=True)
    return choices(with_layer(every).query("page_order == 'random'"))


def of_cards(every: pd.DataFrame) -> str:
    """How many cards there were, and what is left out of the ratios for that."""
    bf16 = every[every["kv_dtype"] == "bf16"]
    problems, mixed = (len(ok.drop_duplicates(LAYER)) for ok in (bf16, bf16.drop(one_card(bf16, LAYER).index)))
    return (
        checked(
            f"three runs on three H200s, and each ratio is of one of them. So {mixed} of {problems} problems of one kind of layer over a bf16 cache, whose decode and prefill kernels ran on two cards, are left out of what is said of prefill."
            "\nFlashAttention-3 with FP8 queries ran on the newest card alone, and is compared at the contexts that only this card has.",
            every["device_uuid"].nunique() == 3 == every["run_id"].nunique(),
        )
        + f"\n{of_agreement(every)}"
    )


def of_agreement(every: pd.DataFrame) -> str:
    """How far the newest card agrees with the two older ones: no point ran on it and an older one, but in a window the work hardly depends on the context."""
    ok = every[(every["layer"] == WINDOW) & (every["routine"] == DECODE) & (every["q_dtype"] == "bf16") & every["s_kv"].isin(ALIKE)]
    by = ok.pivot_table(
        index=["kv_dtype", "batch_size", "s_qo", "backend"], columns="device_uuid", values="own_us", aggfunc="median"
    )
    (newest,) = rows(REST)["device_uuid"].unique()
    ratio = by.drop(columns=newest).rdiv(by[newest], axis=0).stack().dropna()
    return checked(
        f"No point ran on the newest card and an older one.\nBut in layers with a window a decode call does the same work at {len(ALIKE)} of the contexts, of which the newest card has one.\nThere {len(ratio)} calls of it differ from the older cards' median"
        f" by {(ratio - 1).abs().median():.1%} at the median and {(ratio - 1).abs().max():.1%} at most.",
        (ratio - 1).abs().max() < 0.08,
    )


def also() -> str:
    """What a server of either card can do beside choosing by the draft length."""
    return (
        "For one request, try `fa3` of prefill in the layers with a window.\n"
        f"Over an FP8 cache take FlashAttention-3 with FP8 queries from {MANY} query tokens on, if that error is allowed."
    )


def costs_by_cache(ok: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Costs of decode over a bf16 cache, over an FP8 cache with queries of both dtypes, and over that with bf16 queries alone.

    Each is of shapes whose kernels ran on one card.
    """
    bf16, fp8, wide = (of_both_layers(one_card(part, SHAPE)) for part in decode_by_cache(ok))
    return bf16, fp8, wide


def decode_by_cache(ok: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Decode over a bf16 cache, over an FP8 cache, and over that with bf16 queries alone."""
    decode = ok[ok["routine"] == DECODE]
    fp8 = decode[decode["kv_dtype"] != "bf16"]
    return decode[decode["kv_dtype"] == "bf16"], fp8, fp8[fp8["q_dtype"] == "bf16"]


def with_layer(ok: pd.DataFrame) -> pd.DataFrame:
    """With `layer`, the kind of layer in words."""
    return ok.assign(layer=ok["window"].map(lambda window: "full attention" if pd.isna(window) else f"a window of {int(window)}"))


def fastest(begins: str, cost: pd.DataFrame) -> str:
    """A sentence on the fastest kernel for each number of query tokens, one a line."""
    return "\n".join(
        f"{begins} {s_qo} query tokens the fastest is {tally(part.idxmin(axis=1))} of {len(part)} shapes."
        for s_qo, part in cost.groupby(level="s_qo")
    )


def by_page(ok: pd.DataFrame) -> str:
    """µs of decode kernels in 16 requests of 8,192 tokens, by cache, kind of layer and page size."""
    fixed = choices(ok[(ok["seq_lens"] == "fixed") & (ok["mask"] == "causal") & (ok["q_dtype"] == "bf16")])
    times = fixed.pivot_table(index=["kv_dtype", "layer", "page_size", "s_qo"], columns="family", values="own_us")
    return table_of("µs without the launch, 16 requests of 8,192 tokens, bf16 queries, by page size", times)


def of_both_layers(decode: pd.DataFrame) -> pd.DataFrame:
    """By shape and kernel: µs of one layer of each kind together. FlashAttention-3 is called in the same way in both."""
    layers = decode.pivot_table(index=[*SHAPE, "family", "backend"], columns="layer", values="own_us")
    return layers.dropna().sum(axis=1).groupby(level=[*SHAPE, "family"]).min().unstack("family")


def same_as_decode(ok: pd.DataFrame) -> pd.Series:
    """`fa2` of prefill, which launches the same kernel as `fa2_tc`."""
    return (ok["routine"] == PREFILL) & (ok["backend"] == "fa2")


def of_prefill(ok: pd.DataFrame) -> str:
    """Decode kernel or prefill kernel, over a bf16 cache, at the problems of one card."""
    bf16 = one_card(ok[(ok["kv_dtype"] == "bf16") & ~same_as_decode(ok)], LAYER)
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


def of_fp8_queries(cost: pd.DataFrame, ok: pd.DataFrame) -> str:
    """FlashAttention-3 over an FP8 cache, which needs FP8 queries, beside kernels with bf16 queries."""
    first = cost.idxmin(axis=1)
    many = first[first.index.get_level_values("s_qo") >= MANY]
    fp8 = ok[ok["kv_dtype"] != "bf16"]
    contexts = cost.index.get_level_values("s_kv").nunique()
    return checked(
        f"Over an FP8 cache FlashAttention-3 needs FP8 queries. With them it is faster than all others at {(first == FA3).sum()} of {len(first)} shapes of {contexts} contexts,"
        f" and at {(many == FA3).sum()} of {len(many)} with {MANY} query tokens or more. {of_errors(ok)[0].upper()}{of_errors(ok)[1:]}",
        set(fp8[fp8["q_dtype"] == "fp8_e4m3"]["family"]) == {FA3},
        (many == FA3).mean() > 0.9,
    )


def of_errors(ok: pd.DataFrame) -> str:
    fp8 = ok[ok["kv_dtype"] != "bf16"]
    errors = fp8.groupby("q_dtype")["rel_err"].max()
    over_bf16 = ok[ok["kv_dtype"] == "bf16"]["rel_err"].max()
    return (
        f"its error is up to {errors['fp8_e4m3']:.1%} of a row's size, and with bf16 queries errors are {errors['bf16']:.1%} at most"
        f" over this cache and {over_bf16:.1%} over a bf16 one."
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


def evidence(ok: pd.DataFrame, cost: pd.DataFrame) -> tuple[str, ...]:
    """Ratios by kind of layer, of problems of one card, and µs over one layer of each kind."""
    key = [*LAYER, "kv_dtype"]
    return (
        markdown(
            [
                ratio_grid(
                    "time divided by the best kernel's, by kind of layer",
                    of_best(one_card(ok[~same_as_decode(ok)], key), key),
                    ["kv_dtype", "layer", "kernel", "q_dtype"],
                )
            ]
        ),
        table_of(
            "µs of decode kernels over one layer of each kind, a bf16 cache",
            cost[list(NAMES)].unstack("s_qo")[list(NAMES)].stack("family", future_stack=True),
        ),
    )

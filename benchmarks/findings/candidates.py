"""The main sweep on an H100 and on an H200 with the kernels of engines: which is fastest, and where it is no FlashAttention-3."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, SAME, keeping, rows, span, table_of, tally
from benchmarks.findings.page import checked
from orchestrator.tables import Grid, markdown

DATASETS = {"H100": "h100_main/specdec_all_candidates", "H200": "h200_main/specdec_all_candidates"}
KEY = ["kv_dtype", "s_qo", "batch_size", "s_kv"]
FA4, SGLANG, VLLM = "flash_attn_4", "sglang_triton", "vllm_triton"
OF_ENGINES = (FA4, SGLANG, VLLM)
CACHES = {"bf16": "a bf16", "fp8_e4m3": "an FP8"}
FEW, MANY, AT = 1, 8, 32  # requests
OTHER = "h200_main/specdec_long_ctx"  # FlashInfer's kernels and FlashAttention-3 on another H200


def times(card: str) -> pd.DataFrame:
    """µs by shape and backend. Over an FP8 cache with bf16 or FP8 queries, whichever are faster there."""
    return _times(DATASETS[card])


def _times(dataset: str) -> pd.DataFrame:
    return rows(dataset).pivot_table(index=KEY, columns="backend", values="own_us", aggfunc="min")


def regrets(us: pd.DataFrame) -> pd.DataFrame:
    """By shape: FlashAttention-3's time over that of the fastest kernel that is no build of it, whose name is `best`.

    `regret` is of `tokenspeed-fa3`'s build, and `of_builds` of the fastest of the three.
    """
    own = us.columns.str.startswith(FA3)
    others = us.loc[:, ~own]
    least = others.min(axis=1)
    return pd.DataFrame({"regret": us[FA3] / least, "of_builds": us.loc[:, own].min(axis=1) / least, "best": others.idxmin(axis=1)})


def behind(us: pd.DataFrame, column: str = "regret") -> pd.DataFrame:
    """The shapes at which another kernel is faster."""
    found = regrets(us)
    return found[found[column] > 1 + SAME]


def answer() -> str:
    """The sentences of both GPUs, and what differs."""
    return "\n".join(text for card in DATASETS for text in (of_regrets(card), of_engines(card))) + f"\n{differences()}"


def of_regrets(card: str) -> str:
    """Which backend is fastest; at how many shapes it is no FlashAttention-3, which one, and by how much."""
    us = times(card)
    found, of_builds = behind(us), behind(us, "of_builds")
    one = found[(found.index.get_level_values("s_qo") == 1) & (found.index.get_level_values("kv_dtype") == "fp8_e4m3")]
    rest = found.drop(one.index)
    least = one[one.index.get_level_values("batch_size") > FEW]["regret"]
    fastest = "\n".join(
        f"In the main sweep on an {card}, over {CACHES[kv]} cache, the fastest of ten backends is {tally(part.idxmin(axis=1))} of {len(part)} shapes."
        for kv, part in us.groupby(level="kv_dtype")
    )
    return checked(
        f"{fastest}"
        f"\nAt {ties(us.loc['bf16'])} of the {len(us.loc['bf16'])} bf16 shapes the two fastest are within {SAME:.0%}."
        f"\nAt {len(found)} of {len(us)} shapes a kernel that is no FlashAttention-3 beats `tokenspeed-fa3`'s build by more than {SAME:.0%}: {tally(found['best'])}."
        f"\n{len(one)} of them have one query token over an FP8 cache, where that build takes up to {one['regret'].max():.2f} times as long"
        f" (up to {least.max():.2f} with more than one request).\nThe other {len(rest)} have one request ({span(rest['regret'])} times)."
        f"\nIt beats the fastest of FlashAttention-3's three builds by more than {SAME:.0%} at {len(of_builds)} shapes (up to {of_builds['of_builds'].max():.2f} times).",
        set(rest.index.get_level_values("batch_size")) == {FEW},
        not set(found["best"]) & set(OF_ENGINES),
        us.shape[1] == 10,
    )


def ties(us: pd.DataFrame) -> int:
    """At how many shapes the two fastest are within `SAME`."""
    return int((us.apply(lambda row: row.nsmallest(2).iloc[1] / row.min(), axis=1) <= 1 + SAME).sum())


def of_engines(card: str) -> str:
    """The engines' other kernels, over all shapes that they serve."""
    us = times(card)
    ratios = us[list(OF_ENGINES)].div(us[FA3], axis=0)
    few = ratios.index.get_level_values("batch_size") == FEW
    bf16 = ratios.index.get_level_values("kv_dtype") == "bf16"
    words = (
        f"On the {card} {name} takes over a bf16 cache {span(ratios.loc[bf16 & few, name])} times FlashAttention-3's time with one request,"
        f" and {span(ratios.loc[bf16 & ~few, name])} with more.\n"
        for name in OF_ENGINES
    )
    return "".join(words) + checked(
        f"None of these three is faster than FlashAttention-3 by more than {SAME:.0%} at any shape.",
        bool((ratios.min() >= 1 - SAME).all()),
    )


def speed_ups() -> pd.DataFrame:
    """By shape and backend: the H100's time over the H200's, from `MANY` requests on."""
    ratios = times("H100") / times("H200")
    return ratios[ratios.index.get_level_values("batch_size") >= MANY]


def kept(chosen_on: str, used_on: str) -> pd.Series:
    """By shape: what the fastest backend of one GPU takes on another, in times of the best there."""
    return keeping(times(chosen_on), times(used_on))


def differences() -> str:
    """What an H200 gains by backend, and what the H100's choice costs on it."""
    bf16, there, back = speed_ups().loc["bf16"].median(), kept("H100", "H200"), kept("H200", "H100")
    dear, dear_back = there[there > 1 + SAME], back[back > 1 + SAME]
    ahead = times("H100").idxmin(axis=1).loc[dear.index] == FA4
    return "\n".join(
        (
            checked(
                f"From {MANY} requests on an H200 is over a bf16 cache {bf16[FA3]:.2f} times as fast as an H100 with FlashAttention-3 (median),"
                f" {bf16[FA4]:.2f} times with {FA4}, {bf16[SGLANG]:.2f} with {SGLANG} and {bf16[VLLM]:.2f} with {VLLM}.",
                bool((bf16[list(OF_ENGINES)] < bf16[FA3]).all()),
            ),
            checked(
                f"So {FA4}, which with many requests keeps up with FlashAttention-3 on an H100, falls behind on an H200.",
                bool((regrets_of(FA4, "H100").median() < 1 + SAME) and (regrets_of(FA4, "H200").min() > 1 + SAME)),
            ),
            seen_twice(),
            checked(
                f"To keep the H200's fastest backend costs more than {SAME:.0%} on the H100 at {len(dear_back)} of {len(back)} shapes, all over an FP8 cache, and {dear_back.max() - 1:.0%} at most.",
                set(dear_back.index.get_level_values("kv_dtype")) == {"fp8_e4m3"},
            ),
            f"The other way round it is {len(dear)} shapes: at {ahead.sum()} the H100's choice is {FA4}, which costs up to {dear[ahead].max() - 1:.0%} on the H200;"
            f" at the others it costs up to {dear[~ahead].max() - 1:.0%}.",
            checked(
                f"{FA4} is ahead of FlashAttention-3's fastest build by {lead_on_h100() - 1:.1%} at most on the H100, so these are ties there.",
                1 < lead_on_h100() < 1 + SAME,
            ),
        )
    )


def lead_on_h100() -> float:
    """The most that FlashAttention-4 is ahead of the fastest build of FlashAttention-3 on the H100, as a ratio of times."""
    us = times("H100")
    return float((us.loc[:, us.columns.str.startswith(FA3)].min(axis=1) / us[FA4]).max())


def advice() -> str:
    """Where another kernel is worth a try on an H200, and at which error."""
    ahead = behind(times("H200"), "of_builds").loc["fp8_e4m3", 1]
    most = ahead.xs(AT, level="batch_size")["of_builds"]
    us = times("H200").loc["fp8_e4m3", 1]
    lead = (us.loc[:, us.columns.str.startswith(FA3)].min(axis=1) / us["trtllm-native"]).groupby("batch_size")
    ok = rows(DATASETS["H200"]).query("kv_dtype == 'fp8_e4m3' and s_qo == 1")
    xqa, fa3 = (ok[ok["backend"] == name]["rel_err"].max() for name in ("trtllm-native", FA3))
    return checked(
        f"On an H200 try XQA (`trtllm-native`) too for one query token over an FP8 cache: with {AT} requests FlashAttention-3's fastest build takes {span(most)} times its time."
        f"\nWith 64 requests it takes {span(lead.get_group(64))} times, with 8 {span(lead.get_group(8))}, with one {span(lead.get_group(1))}; other numbers of requests were not measured, and why {AT} is special is not known."
        f"\nIts error is larger: up to {xqa:.1%} of a row's size, against {fa3:.1%}.",
        set(ahead["best"]) == {"trtllm-native"},
        len(most) == 4,
        xqa > fa3,
    )


def seen_twice() -> str:
    """XQA's lead over an FP8 cache with one query token, at the number of requests where it is largest, on both H200s."""
    over = [(us[FA3] / us["trtllm-native"]).loc["fp8_e4m3", 1, AT] for us in (times("H200"), _times(OTHER))]
    return checked(
        f"XQA's lead with {AT} requests and one query token over an FP8 cache was measured on two H200s."
        f"\n`tokenspeed-fa3`'s build takes {span(over[0])} times its time on this one, and {span(over[1])} times on that of `{OTHER}`.",
        bool((over[0] / over[1] - 1).abs().max() < 1.5 * SAME),
    )


def regrets_of(backend: str, card: str) -> pd.Series:
    """Its time over FlashAttention-3's over a bf16 cache, from `MANY` requests on."""
    us = times(card).loc["bf16"]
    return (us[backend] / us[FA3])[us.index.get_level_values("batch_size") >= MANY]


def short_table() -> str:
    """By GPU and cache: the fastest backend, and how often FlashAttention-3 is as fast."""
    cells = []
    for card in DATASETS:
        for kv, us in times(card).groupby(level="kv_dtype"):
            best = us.min(axis=1)
            own, builds = us[FA3] / best, us.loc[:, us.columns.str.startswith(FA3)].min(axis=1) / best
            near = (f"{int((part <= 1 + SAME).sum())} of {len(us)} (worst {part.max():.2f})" for part in (own, builds))
            cells.append((card, str(kv), tally(us.idxmin(axis=1)), *near))
    title = "the fastest backend of ten in the main sweep, and where FlashAttention-3 is within 2% of it"
    return markdown([Grid(title, ("GPU", "cache", "fastest", "`tokenspeed-fa3`", "the fastest of three builds"), tuple(cells))])


def table(card: str) -> str:
    """Every shape at which another kernel is faster."""
    us = times(card)
    found = behind(us)
    shown_us = us.loc[found.index, sorted(us.columns)].dropna(axis=1, how="all")
    columns = found[["regret", "of_builds"]].set_axis([FA3, "the fastest of three builds"], axis=1).rename_axis(columns="")
    return "\n\n".join(
        (
            table_of(
                f"µs where another kernel than FlashAttention-3 is faster by more than {SAME:.0%}, main sweep, {card}", shown_us
            ),
            table_of(f"FlashAttention-3's time there over the fastest other's, {card}", columns, "{:.2f}"),
        )
    )

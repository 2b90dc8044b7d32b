"""What upgrades of FlashInfer changed in decode, beside what one version in two environments differs by."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import RESULTS, folder_of, rows, span, table_of
from benchmarks.findings.page import Finding, checked
from orchestrator.analysis.compare.comparison import Comparison, compare
from orchestrator.tables import Grid, markdown

DRAFTS, UPGRADE, TWICE = "flashinfer_0_6_16", "flashinfer_0_6", "environment_twice"
OLD, WITH_DRAFTS, NEW = "0.6.13", "0.6.16", "0.7.2.post1"
KEY = ["backend", "batch_size", "s_kv", "s_qo", "q_dtype", "kv_dtype"]
KIND = ["backend", "q_dtype", "kv_dtype", "batch_size", "s_qo"]  # its points differ in the length of the context alone
DTYPES = ["q_dtype", "kv_dtype"]
XQA = "trtllm-native"
LARGE = 64
SAME = 0.01  # the change up to which one version in two environments should be called the same


def finding() -> Finding:
    drafts, old, twice = (
        pairs(rows(name), env)
        for name, env in ((DRAFTS, "flashinfer_python_0_6_16"), (UPGRADE, "flashinfer_0_6"), (TWICE, "twice"))
    )
    parts = split(drafts)
    slow, tiles = parts["XQA, batch 1, 2 or 4 tokens, bf16 cache"], parts["fa2_tc, 4 or 8 tokens"]
    fp8 = parts["XQA, batch 1, 2 or 4 tokens, FP8 cache"]
    many = change(parts["XQA, all others"].drop(1, level="batch_size"))
    rest = of_kinds(drafts.drop(slow.index).drop(fp8.index).drop(tiles.index))
    noise, beyond = of_kinds(twice).abs().max(), of_kinds(drafts)
    beyond = beyond[beyond.abs() > noise]
    calm = of_kinds(twice.xs(LARGE, level="batch_size", drop_level=False)).abs().max()
    eight = parts["fa2, FP8 cache"].xs(LARGE, level="batch_size", drop_level=False)
    xqa, fa2 = old.loc[[XQA]], old.loc[["fa2_tc"]]
    more, worst = micros(xqa.xs(1, level="batch_size")).median(), change(xqa).max()
    judged = verdicts_of_twice()
    one = pd.concat([drafts, old], keys=(WITH_DRAFTS, OLD), names=["from"]).xs((1, "bf16"), level=("batch_size", "kv_dtype"))
    faster = (one.xs("fa2_tc", level="backend") < one.xs(XQA, level="backend")).all(axis=None)
    cells = (
        *(line(f"from {WITH_DRAFTS}: {name}", part) for name, part in parts.items()),
        line(f"from {OLD}: XQA, 1 token", xqa),
        line(f"from {OLD}: fa2_tc, 1 token", fa2),
        line("one version twice", twice),
    )
    return Finding(
        name="upgrade",
        question=f"What did upgrades of FlashInfer to {NEW} change in decode?",
        answer=checked(
            f"Since {WITH_DRAFTS}, XQA takes {micros(slow).median():.1f} µs more (median) for one request with 2 or 4 query tokens over a bf16 cache"
            f" ({span(micros(slow), '{:.1f}')} µs, {span(change(slow), '{:.1f}')}%)",
            micros(slow).min() > 1,
            change(slow).median() > 2 * noise,
            change(slow).idxmax()[2] == 8192,
        )
        + f"; over an FP8 cache the change is {span(micros(fp8), '{:+.1f}')} µs (up to {change(fp8).max():.1f}%).\n"
        + checked(
            f"With {many.idxmax()[1]} requests XQA takes up to {many.max():.1f}% longer, over {many.idxmax()[2]:,} tokens each.\n",
            many.idxmax()[1] > 1,
            many.max() > 2 * noise,
        )
        + checked(
            f"fa2 on tensor cores (`fa2_tc`) takes {change(tiles).median():.1f}% longer at the median with 4 or 8 query tokens", change(tiles).median() > noise
        )
        + f" ({span(change(tiles), '{:+.1f}')}%).\n"
        f"A kind of call is a backend, its dtypes, a batch and a number of query tokens. Of the other {len(rest)}, {(rest.abs() <= noise).sum()} changed by no more than noise,"
        f" and the rest by at most {rest.abs().max():.1f}% at the median.\n"
        f"From {OLD}, with one query token, XQA takes {more:.1f} µs more for one request and {worst:.1f}% more at most;"
        + checked(" `fa2_tc` did not change beyond noise", of_kinds(fa2).abs().max() <= noise)
        + f" ({change(fa2).median():+.2f}% at the median).",
        table=Grid(f"Change to {NEW}, over all pairs of points", ("pairs", "points", "median, µs", "median", "range"), cells),
        advice=checked("of FlashInfer's kernels take fa2 on tensor cores for one request over a bf16 cache. It is faster than XQA in all three versions.", faster)
        + f" For drafts use {WITH_DRAFTS} or later, because calls of earlier releases take one query token a request ([versions.md](versions.md)).",
        limits=f"each kind of call has {drafts.index.get_level_values('s_kv').nunique()} lengths of the context."
        f" Noise is the largest median of a kind for one version in two environments, {noise:.2f}%; it was measured in bf16 on another H200."
        f" At batch {LARGE} it is {calm:.2f}%, so smaller changes may be real there,"
        f" such as that of `fa2` over an FP8 cache ({of_kinds(eight).median():+.2f}%)."
        f" {judged_alike(judged)} {seconds_of_two()}"
        f" The pairs from {OLD} are bf16 alone, and have no drafts. Why a kernel takes longer was not examined.",
        command=f"python -m orchestrator mode=compare results.path=results/{folder_of(DRAFTS)} baseline=env:flashinfer_python_0_6_16 candidate=env:default",
        datasets=(DRAFTS, UPGRADE, TWICE),
        evidence=(
            markdown([by_batch(f"Change from {WITH_DRAFTS} to {NEW}, all query tokens and dtypes", drafts)]),
            markdown([by_batch(f"Change from {OLD} to {NEW}, one query token", old)]),
            markdown([by_batch(f"{NEW} in two environments", twice)]),
            markdown([not_alike(judged), seconds_by_part()]),
            table_of(f"Kinds that changed by more than noise since {WITH_DRAFTS}, median over contexts in %", beyond.unstack("s_qo"), "{:+.2f}"),
            table_of("µs of XQA for one request", named(one_request(drafts), WITH_DRAFTS)),
            table_of("µs", named(old.droplevel(DTYPES), OLD)),
        ),
    )  # fmt: skip


def verdicts_of_twice() -> Comparison:
    """What `mode=compare` makes of one version in two environments, with the limit of the aim."""
    return compare(["env:default"], ["env:twice"], str(RESULTS / folder_of(TWICE)), same=SAME)


def judged_alike(judged: Comparison) -> str:
    """Whether no pair of one version in two environments was called slower, which was the aim, and what the gate says."""
    counts, medians = judged.points["verdict"].value_counts(), judged.points["change"].abs() * 100
    return (
        checked("One version in two environments should have a median change below 0.3%", medians.median() < 0.3)
        + f" (it is {medians.median():.2f}%), and no pair that is `slower` at `same={SAME}`."
        + f" That second aim is missed: {counts['slower']} of {len(medians)} pairs are `slower`, {counts['same']} `same`"
        + f" and {counts['undecided']} `undecided`."
        + checked(
            " The gate makes suspects of them, and stays green.", len(judged.suspects) == counts["slower"], not judged.regressed
        )
    )


def not_alike(judged: Comparison) -> Grid:
    """The pairs of one version that were called slower."""
    cells = [
        (*(str(row[key]) for key in KEY[:4]), f"{row['change']:+.2%}", f"{row['change_low']:+.2%} to {row['change_high']:+.2%}")
        for _, row in judged.suspects.sort_values("change", ascending=False).iterrows()
    ]
    return Grid(
        f"One version in two environments: `slower` at same={SAME}, with the launch", (*KEY[:4], "change", "95%"), tuple(cells)
    )


def seconds_by_part() -> Grid:
    """Seconds of one version's points by environment, from one run of both."""
    both = rows(TWICE)
    parts = both.groupby(both["env"].fillna("default"))[["inputs_s", "check_s", "measure_s", "rest_s", "total_s"]].sum()
    cells = [
        (str(env), *(f"{seconds:.1f}" for seconds in values)) for env, values in zip(parts.index, parts.to_numpy(), strict=True)
    ]
    return Grid("Seconds of the points of each environment, in the run of both", ("env", *parts.columns), tuple(cells))


def seconds_of_two() -> str:
    """What the second environment adds, for points that both have."""
    ratios = []
    for name in (TWICE, DRAFTS):
        ok = rows(name)
        both = ok[ok.groupby(KEY)["total_s"].transform("size") == 2]
        seconds = both.groupby(both["env"].isna())["total_s"].sum()
        ratios.append(seconds.sum() / seconds[True])
    return (
        f"The points of two environments take {ratios[0]:.2f} times the seconds (`total_s`) of those of the default one in the same run,"
        f" and {ratios[1]:.2f} times with {WITH_DRAFTS}."
        " No run of one environment alone was made for it, and the starts of processes are not in it."
    )


def pairs(ok: pd.DataFrame, env: str) -> pd.DataFrame:
    """Times of points that have both, µs without the launch: `here` in the default environment, `there` in another."""
    side = ok["env"].eq(env).map({True: "there", False: "here"})
    return ok.assign(side=side).pivot_table(index=KEY, columns="side", values="own_us").dropna()


def named(times: pd.DataFrame, version: str) -> pd.DataFrame:
    """Columns that say which version of FlashInfer they are of, the older one first."""
    return times[["there", "here"]].set_axis([version, NEW], axis="columns")


def change(times: pd.DataFrame) -> pd.Series:
    """By how many percent `here` takes longer than `there`."""
    return (times["here"] / times["there"] - 1) * 100


def micros(times: pd.DataFrame) -> pd.Series:
    """By how many µs `here` takes longer than `there`."""
    return times["here"] - times["there"]


def of_kinds(times: pd.DataFrame) -> pd.Series:
    """Median change of each kind of call, over its contexts, in percent."""
    return change(times).groupby(level=KIND).median()


def split(times: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """All pairs of the upgrade that has drafts, each in one part."""
    at = times.reset_index()[KEY].set_axis(times.index)
    xqa, tiles, eight = at["backend"] == XQA, at["backend"] == "fa2_tc", at["kv_dtype"] != "bf16"
    slow = xqa & (at["batch_size"] == 1) & at["s_qo"].isin((2, 4))
    return {
        "XQA, batch 1, 2 or 4 tokens, bf16 cache": times[slow & ~eight],
        "XQA, batch 1, 2 or 4 tokens, FP8 cache": times[slow & eight],
        "XQA, all others": times[xqa & ~slow],
        "fa2_tc, 4 or 8 tokens": times[tiles & (at["s_qo"] >= 4)],
        "fa2_tc, 1 or 2 tokens": times[tiles & (at["s_qo"] < 4)],
        "fa2, bf16 cache": times[~xqa & ~tiles & ~eight],
        "fa2, FP8 cache": times[~xqa & ~tiles & eight],
    }


def line(name: str, times: pd.DataFrame) -> tuple[str, ...]:
    part = change(times)
    return (
        name,
        str(len(part)),
        f"{micros(times).median():+.1f}",
        f"{part.median():+.2f}%",
        f"{part.min():+.2f}% to {part.max():+.2f}%",
    )


def by_batch(title: str, times: pd.DataFrame) -> Grid:
    cells = [(str(backend), *line(f"{batch}", part)) for (backend, batch), part in times.groupby(level=["backend", "batch_size"])]
    return Grid(title, ("backend", "batch", "points", "median, µs", "median", "range"), tuple(cells))


def one_request(times: pd.DataFrame) -> pd.DataFrame:
    """XQA at batch 1 with drafts of 2 and 4 query tokens."""
    part = times.loc[XQA].loc[1]
    return part[part.index.get_level_values("s_qo").isin((2, 4))].droplevel("q_dtype")

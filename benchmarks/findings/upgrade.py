"""What an upgrade of FlashInfer changed in decode, beside what one version in two environments differs by."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import rows, table_of
from benchmarks.findings.page import Finding, checked
from orchestrator.tables import Grid

UPGRADE, TWICE = "flashinfer_0_6", "environment_twice"
OLD, NEW = "0.6.13", "0.7.2.post1"
KEY = ["backend", "batch_size", "s_kv", "s_qo"]


def finding() -> Finding:
    times, twice = pairs(rows(UPGRADE), "flashinfer_0_6"), pairs(rows(TWICE), "twice")
    xqa, fa2, noise = change(times.loc["trtllm-native"]), change(times.loc["fa2_tc"]), change(twice)
    worst = xqa.idxmax()
    more = (times["here"] - times["there"]).loc["trtllm-native"].loc[1].median()
    both = rows(TWICE)
    seconds = both["total_s"].groupby(both["env"].fillna("here")).sum()
    one = times.xs(1, level="batch_size").unstack("backend")
    faster = all((one[side]["fa2_tc"] < one[side]["trtllm-native"]).all() for side in ("here", "there"))
    parts = {
        **{key: part for key, part in change(times).groupby(level=["backend", "batch_size"])},
        **{("both, one version twice", batch): part for batch, part in noise.groupby(level="batch_size")},
    }
    cells = tuple(
        (name, str(batch), str(len(part)), f"{part.median():+.2f}%", f"{part.min():+.2f}% to {part.max():+.2f}%")
        for (name, batch), part in parts.items()
    )
    return Finding(
        name="upgrade",
        question=f"What did the upgrade from FlashInfer {OLD} to {NEW} change in decode?",
        answer=checked(
            f"XQA takes {more:.1f} µs more for one request, {xqa.max():.1f}% at the most", 1 < more < 2, worst[:2] == (1, 8192)
        )
        + f" (batch 1, {worst[1]:,} tokens: {times.loc[('trtllm-native', *worst), 'there']:.1f} to"
        f" {times.loc[('trtllm-native', *worst), 'here']:.1f} µs); fa2 did not change beyond noise ({fa2.median():+.2f}% at the median).\n"
        "Drafts were not compared: both calls need 0.6.16 for more than one query token a request ([versions.md](versions.md)).",
        table=Grid(
            f"Change from {OLD} to {NEW}, and of one version in two environments",
            ("backend", "batch", "points", "median", "range"),
            cells,
        ),
        advice=checked(
            "upgrade, since drafts need it. For one request take fa2, which is faster than XQA in both versions.", faster
        ),
        limits=f"bf16 alone. One version in two environments differs by {noise.abs().median():.2f}% at the median of"
        f" {len(noise)} pairs and by {noise.abs().max():.1f}% at most, and takes {seconds.sum() / seconds['here']:.2f} times the seconds"
        " of one environment. Why XQA takes longer was not examined.",
        command=f"python -m orchestrator mode=compare results.path=results/h200_{UPGRADE} baseline=env:flashinfer_0_6 candidate=env:default",
        datasets=(UPGRADE, TWICE),
        evidence=(
            table_of(f"µs, {OLD} (there) and {NEW} (here)", times),
            table_of(f"µs, {NEW} in two environments", twice),
        ),
    )


def pairs(ok: pd.DataFrame, env: str) -> pd.DataFrame:
    """Times of points that have both, µs without the launch: `here` in the default environment, `there` in another."""
    side = ok["env"].eq(env).map({True: "there", False: "here"})
    return ok.assign(side=side).pivot_table(index=KEY, columns="side", values="own_us").dropna()


def change(times: pd.DataFrame) -> pd.Series:
    """By how many percent `here` takes longer than `there`."""
    return (times["here"] / times["there"] - 1) * 100

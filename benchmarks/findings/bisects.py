"""In which releases FlashInfer's `auto` took fa3 in paged decode: two searches of `mode=bisect`."""

from __future__ import annotations

import pandas as pd
from packaging.version import Version

from benchmarks.findings.frames import folder_of, named, rows, span
from benchmarks.findings.page import Finding, checked
from orchestrator.tables import Grid

BEGINS, ENDS = "bisect_fa3_begins", "bisect_fa3_ends"
PLACE = ["batch_size", "s_kv"]
LONG = 8192  # tokens


def finding() -> Finding:
    ok = pd.concat([rows(BEGINS), rows(ENDS)])
    times = ok.pivot_table(index="flashinfer_version", columns=PLACE, values="own_us")
    times = times.loc[sorted(times.index, key=Version)]
    took = {version: sorted(set(part)) for version, part in ok.groupby("flashinfer_version")["resolved_backend"]}
    releases = list(times.index)
    slow = [version for version in releases if took[version] == ["fa3"]]
    fast = [version for version in releases if took[version] == ["fa2_tc"]]
    first, last = releases.index(slow[0]), releases.index(slow[-1])
    before, after = releases[first - 1], releases[last + 1]
    ratios = pd.concat([times.loc[slow[0]] / times.loc[before], times.loc[slow[-1]] / times.loc[after]])
    long = ratios[ratios.index.get_level_values("s_kv") >= LONG]
    short = ratios[ratios.index.get_level_values("s_kv") < LONG]
    points = f"{len(times.columns)} points"
    cells = tuple(
        (version, ", ".join(named(name) for name in took[version]), *(f"{value:,.1f}" for value in times.loc[version]))
        for version in releases
    )
    return Finding(
        name="bisects",
        question="In which releases did `auto` take fa3 in paged decode?",
        answer=checked(
            f"From {slow[0]} to {slow[-1]}: `auto` took FlashInfer's fa3 at all {points} in {', '.join(slow)}, and fa2 on tensor cores (`fa2_tc`)"
            f" in {before} and from {after} to {releases[-1]}",
            slow == releases[first : last + 1],
            fast == releases[:first] + releases[last + 1 :],
            first == 1,
        )
        + ".\n"
        + checked(f"fa3 took {span(long, '{:.1f}')} times as long as fa2 with contexts of {LONG:,} tokens or more", min(long) > 3)
        + f", and {span(short, '{:.1f}')} times with shorter ones.",
        table=Grid(
            "What `auto` resolved to, and µs of each point",
            ("release", "took", *(f"batch {batch}, {s_kv:,}" for batch, s_kv in times.columns)),
            cells,
        ),
        advice=f"with FlashInfer {slow[0]} to {slow[-1]}, name `fa2` with tensor cores instead of `auto` in paged decode.",
        limits="one query token, bf16, 64 query heads, 8 KV heads and head_dim 128."
        " A release that is not in the table was not measured: a search measures some of the releases between two.",
        command=f"python -m orchestrator +sweep=auto_routing mode=bisect predicate=resolved_backend good=flashinfer:{before} bad=flashinfer:{slow[-1]}"
        " 'where={backend: auto, routine: paged_decode, s_qo: 1, q_dtype: bf16, kv_dtype: bf16}'",
        datasets=(BEGINS, ENDS),
        evidence=(
            f"The searches printed these reports: [{BEGINS}](../../results/{folder_of(BEGINS)}.md) and [{ENDS}](../../results/{folder_of(ENDS)}.md).",
        ),
    )

"""What an upgrade of FlashInfer changed where `auto` routes a call: its choice, and the times of the kernels it chooses from."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import folder_of, rows, span
from benchmarks.findings.page import Finding, checked
from benchmarks.findings.upgrade import NEW, WITH_DRAFTS, change, micros
from orchestrator.tables import Grid, markdown

DECODE, PREFILL = "auto_routing_0_6_16", "h100_releases/auto_routing_0_6_16_prefill"
ENV = "flashinfer_0_6_16"
KEY = ["routine", "backend", "batch_size", "s_kv", "s_qo", "kv_dtype"]


def finding() -> Finding:
    both = pd.concat([rows(DECODE), rows(PREFILL)])
    both = both.assign(side=both["env"].eq(ENV).map({True: "there", False: "here"}))
    times = both.pivot_table(index=KEY, columns="side", values="own_us").dropna()
    kernels = both[both["backend"] == "auto"].pivot(index=KEY, columns="side", values="resolved_backend").dropna()
    moved = kernels[kernels["here"] != kernels["there"]]
    named = times.drop("auto", level="backend")
    decode, prefill = (named[named.index.get_level_values("routine").str.endswith(of)] for of in ("decode", "prefill"))
    return Finding(
        name="routing",
        question=f"Does `auto` choose another kernel than in FlashInfer {WITH_DRAFTS}?",
        answer=checked("No: ", moved.empty)
        + f"at all {len(kernels)} shapes of `auto_routing` that both versions serve, {NEW} takes the kernel that {WITH_DRAFTS} took.\n"
        f"In decode, the kernels that it could choose changed by {change(decode).median():+.1f}% at the median ({span(change(decode), '{:+.1f}')}%);"
        + checked(
            " `auto` took none of those that changed most, which are XQA's (`trtllm-native`).",
            (change(decode).nlargest(3).reset_index()["backend"] == "trtllm-native").all(),
            "xqa" not in set(kernels.stack()),
        )
        + f"\nIn prefill they changed by {change(prefill).median():+.1f}% at the median ({span(change(prefill), '{:+.1f}')}%)."
        + f"\n{faster(prefill)}",
        table=table(times),
        advice=f"if you use `auto`, nothing has to change with the upgrade from {WITH_DRAFTS}.",
        limits="bf16 queries. Decode ran on an H200, and prefill on an H100. MLA was not measured in both versions.\n"
        f"Over FP8 caches without pages {WITH_DRAFTS} is left out, because it ignores their scale ([versions.md](versions.md)).",
        command=f"python -m orchestrator mode=compare results.path=results/{folder_of(DECODE)} baseline=env:{ENV} candidate=env:default",
        datasets=(DECODE, PREFILL),
        evidence=(markdown([choices(kernels)]), markdown([pairs(prefill)])),
    )


def faster(prefill: pd.DataFrame) -> str:
    """Where the newer version of a kernel of prefill takes over 5% less, in words."""
    gains = prefill[change(prefill) < -5].reset_index()
    few = checked(
        "4 query tokens", set(gains["s_qo"]) == {4}, set(gains["routine"]) == {"paged_prefill"}, set(gains["backend"]) == {"fa2"}
    )
    return f"fa2 became faster over pages with {few} and batch {span(gains['batch_size'], '{:.0f}')}: it takes {span(-change(prefill)[change(prefill) < -5], '{:.0f}')}% less."


def table(times: pd.DataFrame) -> Grid:
    """By routine, backend and cache: how many pairs, and how much longer they take in the newer version."""
    cells = []
    for (routine, backend), part in times.groupby(["routine", "backend"]):
        figures = (f"{micros(part).median():+.1f}", f"{change(part).median():+.1f}%", f"{span(change(part), '{:+.1f}')}%")
        cells.append((str(routine), str(backend), str(len(part)), *figures))
    title = f"change from {WITH_DRAFTS} to {NEW}"
    return Grid(title, ("routine", "backend", "pairs", "median, µs", "median", "range"), tuple(cells))


def pairs(times: pd.DataFrame) -> Grid:
    """Both times of each kernel, by shape."""
    cells = [(*map(str, at), f"{row['there']:,.1f}", f"{row['here']:,.1f}") for at, row in times.iterrows()]  # type: ignore[misc]
    return Grid("kernels of prefill, µs without the launch", (*KEY, WITH_DRAFTS, NEW), tuple(cells))


def choices(kernels: pd.DataFrame) -> Grid:
    """What `auto` takes, by shape."""
    cells = [(*map(str, at), str(row["there"]), str(row["here"])) for at, row in kernels.droplevel("backend").iterrows()]
    header = (*(name for name in KEY if name != "backend"), WITH_DRAFTS, NEW)
    return Grid("the kernel that `auto` takes", header, tuple(cells))

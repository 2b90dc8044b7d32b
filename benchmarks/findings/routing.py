"""What an upgrade of FlashInfer changed where `auto` routes a call: its choice, and the times of the kernels it chooses from."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import rows, span
from benchmarks.findings.page import Finding, checked
from benchmarks.findings.upgrade import NEW, WITH_DRAFTS, change, micros
from orchestrator.tables import Grid, markdown

ROUTING = "auto_routing_0_6_16"
ENV = "flashinfer_0_6_16"
KEY = ["routine", "backend", "batch_size", "s_kv", "s_qo", "kv_dtype"]


def finding() -> Finding:
    ok = rows(ROUTING)
    both = ok.assign(side=ok["env"].eq(ENV).map({True: "there", False: "here"}))
    times = both.pivot_table(index=KEY, columns="side", values="own_us").dropna()
    kernels = both[both["backend"] == "auto"].pivot(index=KEY, columns="side", values="resolved_backend").dropna()
    moved = kernels[kernels["here"] != kernels["there"]]
    named = times.drop("auto", level="backend")
    return Finding(
        name="routing",
        question=f"Does `auto` choose another kernel than in FlashInfer {WITH_DRAFTS}?",
        answer=checked("No: ", moved.empty)
        + f"at all {len(kernels)} shapes of `auto_routing` that both versions serve, {NEW} takes the kernel that {WITH_DRAFTS} took.\n"
        f"The kernels that it could choose changed by {change(named).median():+.1f}% at the median ({span(change(named), '{:+.1f}')}%);"
        + checked(
            " `auto` took none of those that changed most, which are XQA's (`trtllm-native`).",
            (change(named).nlargest(3).reset_index()["backend"] == "trtllm-native").all(),
            "xqa" not in set(kernels.stack()),
        ),
        table=table(times),
        advice=f"if you use `auto`, nothing has to change with the upgrade from {WITH_DRAFTS}.",
        limits="paged decode with bf16 queries, on one H200. Prefill and MLA were not measured in both versions.",
        command=f"python -m orchestrator mode=compare results.path=results/h200_{ROUTING} baseline=env:{ENV} candidate=env:default",
        datasets=(ROUTING,),
        evidence=(markdown([choices(kernels)]),),
    )


def table(times: pd.DataFrame) -> Grid:
    """By backend and cache: how many pairs, and how much longer they take in the newer version."""
    cells = []
    for (backend, kv), part in times.groupby(["backend", "kv_dtype"]):
        figures = (f"{micros(part).median():+.1f}", f"{change(part).median():+.1f}%", f"{span(change(part), '{:+.1f}')}%")
        cells.append((str(backend), str(kv), str(len(part)), *figures))
    title = f"change from {WITH_DRAFTS} to {NEW}"
    return Grid(title, ("backend", "cache", "pairs", "median, µs", "median", "range"), tuple(cells))


def choices(kernels: pd.DataFrame) -> Grid:
    """What `auto` takes, by shape."""
    cells = [(*map(str, at), str(row["there"]), str(row["here"])) for at, row in kernels.droplevel("backend").iterrows()]
    header = (*(name for name in KEY if name != "backend"), WITH_DRAFTS, NEW)
    return Grid("the kernel that `auto` takes", header, tuple(cells))

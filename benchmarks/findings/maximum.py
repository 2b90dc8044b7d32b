"""A page table as wide as the engine's maximum, and programmatic dependent launch."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import folder_of, rows, span, table_of
from benchmarks.findings.page import Finding
from orchestrator.analysis.names import shown
from orchestrator.tables import Grid

SWEEP = "engine_maximum"
KEY = ["batch_size", "s_kv", "s_qo"]
OWN, WIDEST = 0, 131072  # 0: the batch's own longest request


def finding() -> Finding:
    ok = rows(SWEEP)
    ok = ok.assign(
        maximum=ok["max_seq_len"].astype(float).fillna(OWN).astype(int),
        pdl=ok["enable_pdl"].map({True: "on", False: "off"}).fillna("the library's choice"),
    )
    usual = ok[ok["pdl"] == "the library's choice"]
    wide = usual.pivot_table(index=["backend", *KEY], columns="maximum", values="own_us")
    more = (wide[WIDEST] / wide[OWN]).rename("ratio")
    launch = ok.pivot_table(index=["backend", *KEY], columns="pdl", values="own_us").dropna()
    gain = (launch["on"] / launch["off"]).groupby(level="backend").agg(["median", "min", "max"])
    cells = []
    for backend, part in more.groupby(level="backend"):
        pdl = (
            f"{gain.loc[backend, 'median']:.3f} ({gain.loc[backend, 'min']:.2f} to {gain.loc[backend, 'max']:.2f})"
            if backend in gain.index
            else "no choice"
        )
        cells.append((shown(backend), str(len(part)), f"{part.median():.3f}", span(part), pdl))
    return Finding(
        name="engine_maximum",
        question="What does it cost to pass the engine's maximum instead of the batch's longest request?",
        answer=f"Almost nothing on an H200: with a page table for 131,072 tokens the median call takes {more.median():.3f} times as long"
        f" ({span(more)} over {len(more)} shapes).\nProgrammatic dependent launch (PDL) changes as little in a call that is timed alone.",
        table=Grid(
            "by backend",
            (
                "backend",
                "shapes",
                "time with the maximum, divided by time without, median",
                "range",
                "time with PDL on, divided by off",
            ),
            tuple(cells),
        ),
        advice="pass the maximum, which CUDA graphs need.",
        limits="measured over 1,024 and 8,192 tokens of context in bf16, at batch 1 to 64. Alone in a graph, a kernel has no neighbour to overlap with,"
        " so dependent launch has nothing to gain there.",
        command=f"python -m orchestrator +sweep={SWEEP} mode=report results.path=results/{folder_of(SWEEP)}",
        datasets=(SWEEP,),
        evidence=(
            table_of("µs by the maximum (0: the batch's own)", wide),
            table_of("µs by dependent launch", pd.DataFrame(launch)),
        ),
    )

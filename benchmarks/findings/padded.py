"""Padded requests of a captured graph."""

from __future__ import annotations

from benchmarks.findings.frames import folder_of, rows
from benchmarks.findings.page import Finding
from orchestrator.analysis.names import shown
from orchestrator.analysis.questions import ask, padding, views_of
from orchestrator.tables import Grid, markdown

SWEEP = "padded_graphs"
MUCH = 1.1


def finding() -> Finding:
    data = views_of(rows(SWEEP))
    ratios = ask(data, "padding").df()
    cells = []
    for backend, part in ratios.groupby("backend"):
        worst = part.loc[part["ratio"].idxmax()]
        at = f"{worst['ratio']:.2f} ({worst['kv_dtype']} cache, batch {worst['batch_size']} in {worst['graph_batch']}, s_qo {worst['s_qo']})"
        cells.append((shown(backend), str(len(part)), f"{part['ratio'].median():.2f}", f"{(part['ratio'] > MUCH).mean():.0%}", at))
    fills = ratios.groupby("graph_fill")["ratio"].median()
    return Finding(
        name="padded_graphs",
        question="What do the padded requests of a captured graph cost?",
        answer=f"Little: the median call takes {ratios['ratio'].median():.2f} times as long as the batch alone, and {(ratios['ratio'] > MUCH).mean():.0%} of"
        f" {len(ratios)} calls take over {MUCH - 1:.0%} longer.\n"
        f"The median is {fills[0]:.2f} if padded requests have no token (as in vLLM), and {fills[1]:.2f} if they have one (as in SGLang).",
        table=Grid("time in the padded graph, divided by the batch alone", HEADER, tuple(cells)),
        advice="pad to the next captured size. Read the tables before you capture only a few sizes for fa2 or XQA over an FP8 cache.",
        limits="measured at batch 3, 5, 9 and 17 in graphs of the next power of two, over 8,192 tokens. The check covers the real requests, and the memory that padded ones must not touch.",
        command=f"python -m orchestrator mode=report question=padding results.path=results/{folder_of(SWEEP)}",
        datasets=(SWEEP,),
        evidence=(markdown(padding.grids(data)),),
    )


HEADER = ("backend", "calls", "median", f"over {MUCH - 1:.0%} longer", "most")

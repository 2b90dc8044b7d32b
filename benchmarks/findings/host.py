"""What planning a step and issuing calls cost on the host."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import rows
from benchmarks.findings.page import Finding
from orchestrator.analysis.names import shown
from orchestrator.analysis.questions import ask, step, views_of
from orchestrator.tables import Grid, markdown

SWEEP = "host_time"


def finding() -> Finding:
    data = views_of(rows(SWEEP))
    steps = ask(data, "step").df()
    cells = []
    for backend, part in steps.groupby("backend"):
        eager = (part["call_host_us"] > part["own_us"]).mean()
        asked = ", ".join(
            f"{part[name].median():.0f}" for name in ("plan_syncs", "plan_d2h_copies", "plan_h2d_copies", "plan_kernels")
        )
        row = (
            shown(backend),
            str(len(part)),
            f"{part['plan_host_us'].median():.0f}",
            f"{part['plan_host_p95_us'].median():.0f}",
            asked,
        )
        cells.append(
            (
                *row,
                f"{part['plan_share'].median():.1%} ({part['plan_share'].max():.0%})",
                f"{part['call_host_us'].median():.0f}",
                f"{eager:.0%}",
            )
        )
    moved = steps[steps["step_rank"] != steps["kernel_rank"]]
    layers = int(steps["layers"].max())
    return Finding(
        name="host_time",
        question="Does the plan on the host eat the gain?",
        answer=f"Seldom with {layers} layers: a plan takes up to {steps['plan_share'].max():.0%} of a step's attention,"
        f" {steps['plan_share'].median():.1%} at the median.\n"
        f"It changes the rank of a backend at {len(moved)} of {len(steps)} lines. No plan here waits for the GPU, because lengths are given on the host.",
        table=Grid("of a step; medians over all shapes", HEADER, tuple(cells)),
        advice="capture the layers in a CUDA graph. The last column says how often a call takes longer to issue than to run.",
        limits=f"one H200's host, an engine's own work not counted, plans one after another and the device idle. {limits(steps)}",
        command=f"python -m orchestrator mode=report question=step results.path=results/h200_{SWEEP}",
        datasets=(SWEEP,),
        evidence=(markdown(step.grids(data)),),
    )


HEADER = (
    "backend",
    "shapes",
    "plan, µs",
    "95th percentile",
    "waits, copies to the host, to the device, kernels",
    "share of the step (most)",
    "issue a call, µs",
    "issuing takes longer than running",
)


def limits(steps: pd.DataFrame) -> str:
    fa3 = steps.groupby("backend")["plan_host_us"].median()
    return f"FlashInfer's fa3 plans for {fa3['fa3']:.0f} µs, fa2 on tensor cores for {fa3['fa2_tc']:.0f}, FlashAttention-3 for {fa3['flash_attn_3']:.0f}."

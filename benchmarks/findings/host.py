"""What planning a step and issuing calls cost on the host."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import folder_of, rows
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
    first = steps[steps["kernel_rank"] == 1].groupby("problem")["over_least"].min()  # two kernels may be equally fast
    other = first[first > 1]
    layers = int(steps["layers"].max())
    return Finding(
        name="host_time",
        question="Does planning on the host change which backend is best?",
        answer=f"Seldom, with {layers} layers: a plan takes at most {steps['plan_share'].max():.0%} of the time of a step's attention,"
        f" {steps['plan_share'].median():.1%} at the median.\n"
        f"The best backend is another one at {len(other)} of {len(first)} shapes, and ahead of the fastest kernel's by {other.max() - 1:.1%} at most. No plan here waits for the GPU, because the lengths are known on the host.",
        table=Grid("host time in a step; medians over all shapes", HEADER, tuple(cells)),
        advice="capture the layers in a CUDA graph. The last column of the first table says how often a call takes longer to issue than to run.",
        limits=f"measured on the host of one H200, without the engine's own work. Plans ran one after another, on an idle device. {limits(steps)}",
        command=f"python -m orchestrator mode=report question=step results.path=results/{folder_of(SWEEP)}",
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
    return f"A plan of FlashInfer's fa3 takes {fa3['fa3']:.0f} µs, of fa2 on tensor cores {fa3['fa2_tc']:.0f}, of FlashAttention-3 {fa3['flash_attn_3']:.0f}."

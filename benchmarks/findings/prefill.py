"""The prompt itself."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import choices, rows, table_of, tally, winners
from benchmarks.findings.page import Finding
from orchestrator.tables import Grid

SWEEP = "ragged_prefill"
KEY = ["head_dims", "q_dtype", "mask", "batch_size", "s_kv", "s_qo"]


def finding() -> Finding:
    ok = rows(SWEEP)
    ok = ok.assign(
        prompt=ok["s_qo"].map("{:,}".format) + " of " + ok["s_kv"].map("{:,}".format),
        head_dims=ok["head_dim_qk"].astype(str) + "/" + ok["head_dim_vo"].astype(str),
    )
    first = winners(ok, KEY, "backend").reset_index()
    rate = ok.pivot_table(index=[*KEY, "prompt"], columns="backend", values="tflops").droplevel(["s_kv", "s_qo"])
    cells = []
    for (dims, q, mask), part in first.groupby(["head_dims", "q_dtype", "mask"]):
        best = choices(ok[(ok["head_dims"] == dims) & (ok["q_dtype"] == q) & (ok["mask"] == mask)])
        most = best.loc[best["tflops"].idxmax()]
        cells.append(
            (
                dims,
                q,
                mask,
                tally(part["backend"]),
                "no other" if part["ahead"].isna().all() else f"{part['ahead'].median():.1%}",
                f"{most['tflops']:,.0f} ({most['backend']})",
            )
        )
    return Finding(
        name="prefill",
        question="Which kernel is fastest for the prompt itself?",
        answer=f"Over {len(first)} prompts and chunks the fastest is {tally(first['backend'])}.",
        table=Grid(
            "by head_dim, dtype and mask",
            ("head_dim", "queries", "mask", "fastest, by shapes", "ahead by, median", "most TFLOP/s"),
            tuple(cells),
        ),
        advice=f"use the kernel that the first table has for your dtype and mask. {missing(ok)}",
        limits="long calls meet the power cap, so the last few percent may differ on another GPU. Without pages `trtllm-fmha-v2` serves only whole prompts:"
        " with a chunk its error is as large as the answer, and head_dim 192/128 leaves NaN. The check found both, and its rule forbids them.",
        command=f"python -m orchestrator +sweep={SWEEP} mode=report results.path=results/h200_{SWEEP}",
        datasets=(SWEEP,),
        evidence=(table_of("TFLOP/s", rate, "{:,.0f}"),),
    )


def missing(ok: pd.DataFrame) -> str:
    """A sentence on candidates that have no rows yet."""
    return "" if "flash_attn_3" in set(ok["backend"]) else "FlashAttention-3 has not been measured over prompts yet."

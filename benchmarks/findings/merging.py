"""What it costs to merge partial answers."""

from __future__ import annotations

from benchmarks.findings.frames import folder_of, rows
from benchmarks.findings.page import Finding
from orchestrator.tables import Grid

SWEEP = "merge_states"


def finding() -> Finding:
    ok = rows(SWEEP)
    wide = ok.pivot_table(index=["num_states", "s_qo"], columns="backend", values="median_us")
    ratio = wide["merge_state_chain"] / wide["merge_states"]
    two, eight = wide.loc[(2, 8)], wide.loc[(8, 8)]
    cells = tuple(
        (str(states), str(s_qo), *(f"{times[name]:,.1f}" for name in ("merge_states", "merge_state_chain", "torch_merge")))
        for (states, s_qo), times in wide.iterrows()
        if s_qo in (1, 8, 512)
    )
    return Finding(
        name="merge_states",
        question="What does a merge of partial answers cost?",
        answer=f"A few µs for drafts: FlashInfer merges 2 states of 8 requests with 8 query tokens in {two.min():.1f} µs, and 8"
        f" states in {eight.min():.1f} µs.\n"
        f"Of 2 states, one `merge_state` takes {ratio.loc[2].median():.2f} times as long as `merge_states`; of 8, one after"
        f" the other takes {ratio.loc[8].median():.1f} times as long.",
        table=Grid("µs", ("states", "s_qo", "merge_states", "merge_state, one after the other", "torch"), cells),
        advice="merge more than two states in one call, and count the merge when you split a short context or a shared prefix.",
        limits="64 heads of 128 in bf16, 8 requests. Times include the launch of the graph, which is most of the shortest ones.",
        command=f"python -m orchestrator +sweep={SWEEP} mode=report results.path=results/{folder_of(SWEEP)}",
        datasets=(SWEEP,),
    )

"""FlashInfer's `auto` against the backends it chooses from."""

from __future__ import annotations

from benchmarks.findings.frames import RESULTS, SAME, folder_of
from benchmarks.findings.page import MAX_ROWS, Finding, checked
from orchestrator.analysis.questions import ask, open_views, regret
from orchestrator.tables import Grid, markdown

SWEEP = "auto_routing"
PLACE = ["routine", "q_dtype", "kv_dtype"]


def finding() -> Finding:
    data = open_views(RESULTS / folder_of(SWEEP))
    summary, worst = regret.grids(data)
    answers = ask(data, "regret").df()
    near = (answers["regret"] <= 1 + SAME).groupby([answers[name] for name in PLACE]).mean()
    medians = answers.groupby(PLACE)["regret"].median()
    good = [at for at, value in medians.items() if value <= 1 + SAME]
    bad = medians.sort_values(ascending=False).index[0]
    keep = [summary.header.index(name) for name in (*("routine", "q", "kv", "points", "auto resolved to"), *summary.header[-3:])]
    cells = sorted((tuple(row[i] for i in keep) for row in summary.cells), key=lambda row: -float(row[-2]))
    return Finding(
        name="auto",
        question="Does FlashInfer's `auto` pick the fastest backend?",
        answer=f"In {len(good)} of {len(medians)} kinds of call it is within 2% of the best at the median.\n"
        f"It is worst in {bad[0]} with {bad[1]} queries over {bad[2]} keys, at {medians[bad]:.2f} times the best backend's time (median).",
        table=Grid(_title(len(cells)), tuple(summary.header[i] for i in keep), tuple(cells[:MAX_ROWS])),
        advice="name a backend for drafts. Keep `auto` for prompts and for MLA over a bf16 latent.",
        limits="the best is the best of FlashInfer's kernels, because `auto` chooses among these.",
        command=f"python -m orchestrator +sweep={SWEEP} mode=report question=regret results.path=results/{folder_of(SWEEP)}",
        datasets=(SWEEP,),
        in_readme=checked("For prompts yes.", near["ragged_prefill"].min() >= 0.8)
        + checked(" For drafts through paged prefill over a bf16 cache never", near["paged_prefill", "bf16", "bf16"] == 0)
        + f": there it takes {medians['paged_prefill', 'bf16', 'bf16']:.1f} times as long as the best (median).",
        evidence=(markdown([summary, worst]).replace(f"{RESULTS}/", f"{RESULTS.name}/"),),
    )


def _title(kinds: int) -> str:
    which = f", the {MAX_ROWS} worst of {kinds} kinds of call" if kinds > MAX_ROWS else ""
    return f"time of `auto`, divided by the best backend's{which}"

"""What the defaults of vLLM and SGLang cost."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import SAME, rows
from benchmarks.findings.page import Finding
from orchestrator.analysis.names import shown
from orchestrator.analysis.questions import ask, engine_default, views_of
from orchestrator.tables import Grid, markdown

SWEEPS = ("specdec_long_ctx", "target_verify")


def finding() -> Finding:
    answers = pd.concat([ask(views_of(rows(sweep)), "engine_default").df().assign(sweep=sweep) for sweep in SWEEPS])
    cells = []
    for (engine, sweep), part in answers.groupby(["engine", "sweep"], sort=False):
        worst = part.loc[part["regret"].idxmax()]
        near = (part["regret"] <= 1 + SAME).mean()
        taken = ", ".join(sorted(set(part["taken"])))
        cells.append(
            (
                engine,
                sweep,
                taken,
                str(len(part)),
                f"{near:.0%}",
                f"{part['regret'].median():.2f}",
                f"{worst['regret']:.2f} ({shown(worst['best'])})",
            )
        )
    header = ("engine", "sweep", "takes", "shapes", "within 2% of the best", "median regret", "worst (best there)")
    return Finding(
        name="engine_defaults",
        question="What do the defaults of vLLM and SGLang cost on Hopper?",
        answer="\n".join(
            f"{engine}'s default is within 2% of the best backend at {(part['regret'] <= 1 + SAME).mean():.0%} of {len(part):,} shapes;"
            f" at the median shape it takes {part['regret'].median():.2f} times the best backend's time."
            for engine, part in answers.groupby("engine", sort=False)
        ),
        table=Grid("time of an engine's default, divided by the best backend's", header, tuple(cells)),
        advice="keep FlashAttention-3. With drafts SGLang makes its plan in every layer, and that is most of its regret here.",
        limits="the defaults were read from vLLM 0.32.0 and SGLang 0.5.23. A default that cannot serve a shape (FlashAttention-3 with bf16 queries over an"
        " FP8 cache) is not counted there.",
        command="python -m orchestrator mode=report question=engine_default results.path=results/h200_specdec_long_ctx",
        datasets=SWEEPS,
        in_readme=" ".join(
            f"{engine}'s is within 2% of the best at {(part['regret'] <= 1 + SAME).mean():.0%} of {len(part):,} shapes."
            for engine, part in answers.groupby("engine", sort=False)
        ),
        evidence=tuple(f"## {sweep}\n\n{markdown(engine_default.grids(views_of(rows(sweep))))}" for sweep in SWEEPS),
    )

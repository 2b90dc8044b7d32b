"""Whether an FP8 cache pays, by query tokens and by the dtype of the queries."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings import builds
from benchmarks.findings.frames import RESULTS, SAME, folder_of, span
from benchmarks.findings.page import Finding, checked
from orchestrator.analysis.names import shown
from orchestrator.analysis.questions import ask, fp8, open_views
from orchestrator.tables import Grid, markdown

SWEEP = "specdec_long_ctx"
HEADER = ("queries", "s_qo", "shapes", "faster at", "slower at", "16-bit time over FP8 time", "fastest", "largest error of these")


def finding() -> Finding:
    data = open_views(RESULTS / folder_of(SWEEP))
    answers = ask(data, "fp8").df()
    either = answers[["fp8_kv_gain", "fp8_q_gain"]].max(axis=1)
    count, large = len(answers), either[answers["batch_size"] >= 8]
    slow = either[either < 1 / (1 + SAME)]
    where = answers.loc[slow.index]
    return Finding(
        name="fp8",
        question="Is an FP8 cache worth it?",
        answer=f"With bf16 or FP8 queries, whichever is faster at each shape, an FP8 cache is {either.median():.2f} times as fast at the median,"
        f" and faster by more than {SAME:.0%} at {(either > 1 + SAME).sum()} of {count} shapes.\n"
        + (
            f"It is slower at {len(slow)}: batch {_values(where['batch_size'])} over {_values(where['s_kv'])} tokens, {span(slow)} times as fast."
            if len(slow)
            else "It is slower at none."
        ),
        table=Grid("time of a 16-bit cache over that of FP8, each at its fastest backend", HEADER, cells(answers)),
        advice=_advice(answers, large),
        limits="the error is the kernel's own rounding, against an fp32 reference on the same FP8 inputs."
        " What storing keys and values in FP8 loses is not measured here: evaluate your model with such a cache."
        f" XQA's FP8 kernel is off by up to {_worst(answers, 'xqa_hopper_fp8'):.0%} of a row's size. {builds.of_other_builds()}",
        command=f"python -m orchestrator mode=report question=fp8 results.path=results/{folder_of(SWEEP)}",
        datasets=(SWEEP, builds.ON_H200),
        in_readme=f"From batch 8 on it is {span(large)} times as fast, if you choose the dtype of the queries for each shape: FP8 with drafts."
        " The kernels' own error grows too. What FP8 does to a model's answers is not measured here.",
        evidence=(markdown(fp8.grids(data)),),
    )


def _advice(answers: pd.DataFrame, large: pd.Series) -> str:
    """What to do. `large` are the gains from batch 8 on. Raises ValueError if the datasets no longer say so."""
    one, four = (answers[answers["s_qo"] == s_qo] for s_qo in (1, 4))
    drafts = answers[answers["s_qo"] > 1]
    middle = {kind: one[f"{kind}_gain"].median() for kind in ("fp8_kv", "fp8_q")}
    coarse = {kind: one[f"{kind}_rel_err"].max() for kind in ("fp8_kv", "fp8_q")}
    return " ".join(
        (
            f"from batch 8 on FP8 is {span(large)} times as fast, and half of these shapes gain {large.median():.2f} or more.",
            checked(
                "For drafts round the queries to FP8 too, as vLLM and SGLang do for FlashAttention-3: with bf16 queries a draft of"
                " three tokens (s_qo 4) is slower over FP8 than over 16 bits.",
                drafts["fp8_q_gain"].median() > drafts["fp8_kv_gain"].median(),
                four["fp8_kv_gain"].max() < 1,
                set(drafts["fp8_q_backend"].str.startswith("flash_attn_3")) == {True},
            ),
            f"For one query token bf16 queries gain more ({middle['fp8_kv']:.2f} against {middle['fp8_q']:.2f} at the median), at a"
            f" larger error ({coarse['fp8_kv']:.1%} against {coarse['fp8_q']:.1%} of a row's size).",
        )
    )


def cells(answers: pd.DataFrame) -> tuple[tuple[str, ...], ...]:
    found = []
    for kind, queries in (("fp8_kv", "bf16"), ("fp8_q", "fp8_e4m3")):
        for s_qo, part in answers.dropna(subset=[f"{kind}_gain"]).groupby("s_qo"):
            gain, kernels = part[f"{kind}_gain"], part[f"{kind}_kernel"].value_counts()
            fast = ", ".join(f"{shown(str(name))} at {times}" for name, times in kernels.items())
            faster, slower = (gain > 1 + SAME).sum(), (gain < 1 / (1 + SAME)).sum()
            ratio = f"{gain.median():.2f} ({span(gain)})"
            found.append(
                (queries, str(s_qo), str(len(part)), str(faster), str(slower), ratio, fast, f"{part[f'{kind}_rel_err'].max():.2g}")
            )
    return tuple(found)


def _worst(answers: pd.DataFrame, kernel: str) -> float:
    return float(answers.loc[answers["fp8_kv_kernel"] == kernel, "fp8_kv_rel_err"].max())


def _values(column: pd.Series) -> str:
    return " and ".join(f"{value:,}" for value in sorted(column.unique()))

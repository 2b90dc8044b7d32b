"""The prompt itself."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, choices, rows, span, table_of, tally, winners
from benchmarks.findings.page import Finding, checked
from orchestrator.tables import Grid

SWEEP, WHOLE, LONG, CAUSAL = "ragged_prefill", "h100_ragged_prefill", "ragged_prefill_long", "h200_engine_prefill"
KEY = ["head_dims", "q_dtype", "mask", "batch_size", "s_kv", "s_qo"]
GROUPED, DEEPSEEK = "128/128", "192/128"
SHORT = 512


def finding() -> Finding:
    ok, long = named(rows(WHOLE)), named(rows(LONG))
    causal = named(rows(CAUSAL).query("routine == 'ragged_prefill'"))
    first = winners(by_kernel(ok), KEY, "backend").reset_index()
    rate = ok.pivot_table(index=[*KEY, "prompt"], columns="backend", values="tflops").droplevel(["s_kv", "s_qo"])
    times = ok.pivot_table(index=KEY, columns="backend", values="own_us")
    header = (
        "head_dim",
        "queries",
        "mask",
        "fastest, by shapes",
        "ahead by, median",
        "FlashAttention-3 over `fa3`",
        "most TFLOP/s",
    )
    return Finding(
        name="prefill",
        question="Which kernel is fastest for the prompt itself?",
        answer=f"Over {len(first)} prompts and chunks the fastest kernel is {tally(first['backend'])}.\n" + beside_fa3(times),
        table=Grid("by head_dim, dtype and mask, on an H100", header, tuple(cells(ok, first, times))),
        advice="take FlashInfer's `fa3` for DeepSeek's heads and for short prompts, and FlashAttention-3 for long causal prompts of grouped heads.",
        limits=f"{capped(ok)} {on_h200((causal, long), times)} Without pages `trtllm-fmha-v2` serves only whole prompts:"
        " with a chunk its error is as large as the answer, and head_dim 192/128 leaves NaN. The check found both, and its rule forbids them.",
        command=f"python -m orchestrator +sweep={SWEEP} mode=report results.path=results/{WHOLE}",
        datasets=(WHOLE, LONG, CAUSAL),
        evidence=(
            table_of("TFLOP/s on an H100", rate, "{:,.0f}"),
            table_of("µs on an H100", times),
            table_of("µs of the longest prompts and chunks on an H200", long.pivot_table(index=KEY, columns="backend", values="own_us")),
            table_of("µs of causal prompts of grouped heads on another H200", causal.pivot_table(index=KEY, columns="backend", values="own_us")),
        ),
    )  # fmt: skip


def cells(ok: pd.DataFrame, first: pd.DataFrame, times: pd.DataFrame) -> list[tuple[str, ...]]:
    """A line for each kind of head, query dtype and mask."""
    over, lines = over_fa3(times), []
    for (dims, q, mask), part in first.groupby(["head_dims", "q_dtype", "mask"]):
        best = choices(by_kernel(ok)[(ok["head_dims"] == dims) & (ok["q_dtype"] == q) & (ok["mask"] == mask)])
        most = best.loc[best["tflops"].idxmax()]
        figures = (f"{part['ahead'].median():.1%}", span(over.loc[dims, q, mask], "{:+.0%}"))
        lines.append((dims, q, mask, tally(part["backend"]), *figures, f"{most['tflops']:,.0f} ({most['backend']})"))
    return lines


def named(ok: pd.DataFrame) -> pd.DataFrame:
    """With `prompt` and `head_dims` in words."""
    return ok.assign(
        prompt=ok["s_qo"].map("{:,}".format) + " of " + ok["s_kv"].map("{:,}".format),
        head_dims=ok["head_dim_qk"].astype(str) + "/" + ok["head_dim_vo"].astype(str),
    )


def by_kernel(ok: pd.DataFrame) -> pd.DataFrame:
    """Rows of `auto` under the kernel that it took, which is another run of it."""
    return ok.assign(backend=ok["backend"].where(ok["backend"] != "auto", ok["resolved_backend"]))


def over_fa3(times: pd.DataFrame) -> pd.Series:
    """By which part FlashAttention-3 takes longer than FlashInfer's `fa3`."""
    return times[FA3] / times["fa3"] - 1


def beside_fa3(times: pd.DataFrame) -> str:
    """What FlashAttention-3 takes beside FlashInfer's `fa3`: for DeepSeek's heads, and for grouped ones by mask and length."""
    over = over_fa3(times)
    deepseek, grouped = over.loc[[DEEPSEEK]], over.loc[[GROUPED]]
    causal = grouped.xs("causal", level="mask")
    long, short = (
        causal[at] for at in (causal.index.get_level_values("s_kv") >= 8192, causal.index.get_level_values("s_kv") == SHORT)
    )
    full = grouped.xs("full", level="mask").xs("bf16", level="q_dtype")
    return checked(
        f"For DeepSeek's heads (192/128) FlashInfer's `fa3` always is: FlashAttention-3 takes {span(deepseek, '{:.0%}')} longer.\n"
        f"For grouped heads of 128 with a causal mask, FlashAttention-3 takes {span(-long, '{:.0%}')} less from 8,192 tokens on,"
        f" and {span(short, '{:.0%}')} more at {SHORT} tokens. With a full mask in bf16 it takes {span(full, '{:.0%}')} more.",
        deepseek.min() > 0,
        long.max() < 0,
        short.min() > 0,
        full.min() > 0,
        (times.min(axis=1) == times[[FA3, "fa3"]].min(axis=1)).all(),
    )  # fmt: skip


def on_h200(runs: tuple[pd.DataFrame, ...], times: pd.DataFrame) -> str:
    """At how many prompts an H200 chooses between the same two as an H100. Of a prompt that two runs have, the first one's counts."""
    first, *others = (over_fa3(ok.pivot_table(index=KEY, columns="backend", values="own_us")) for ok in runs)
    there = pd.concat([first, *(other.drop(first.index, errors="ignore") for other in others)])
    here = over_fa3(times).reindex(there.index)
    return checked(
        f"On H200s {len(there)} of these prompts and chunks were measured, and at all of them the same one of the two is faster.",
        bool((there * here > 0).all()),
    )


def capped(ok: pd.DataFrame) -> str:
    """How many rows met the power cap."""
    count = ok["throttle_reasons"].fillna("none").str.contains("SwPowerCap").sum()
    return f"One H100, of whose {len(ok)} rows {count} met the power cap."

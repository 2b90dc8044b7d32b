"""A prefix that all requests share: one call over it, or two calls and a merge."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import choices, folder_of, rows, span, table_of, tally
from benchmarks.findings.page import Finding, checked
from orchestrator.tables import Grid

SWEEP = "cascade"
KEY = ["shared_prefix", "s_kv", "batch_size", "s_qo"]
TWO = ("two_calls_fa2", "two_calls_fa3_fa2", "two_calls_fa3", "multi_level")
SLOW = 3.0


def finding() -> Finding:
    ok = rows(SWEEP)
    usual = ok[(ok["kv_dtype"] == "bf16") & ~ok["return_lse"].fillna(False).astype(bool) & (ok["seq_lens"] == "fixed")]
    times = choices(usual).assign(two=usual["backend"].isin(TWO))
    least = times.groupby([*KEY, "two"])["own_us"].min().unstack()
    which = times.loc[times.groupby([*KEY, "two"])["own_us"].idxmin()].set_index([*KEY, "two"])["backend"].unstack()
    gain = (least[False] / least[True]).rename("gain")
    cells = []
    for (prefix, s_qo), part in gain.groupby(level=["shared_prefix", "s_qo"]):
        at = which.loc[part.index]
        row = (f"{prefix:,}", str(s_qo), tally(at[False]), tally(at[True]), f"{int((part > 1).sum())} of {len(part)}")
        cells.append((*row, f"{part.median():.2f} ({span(part)})"))
    wide = usual.pivot_table(index=KEY, columns="backend", values="own_us")
    slow = [name for name in wide if (wide[name] / wide.min(axis=1)).median() > SLOW]
    large = gain[(gain.index.get_level_values("shared_prefix") >= 8192) & (gain.index.get_level_values("batch_size") >= 16)]
    few, many = (gain[gain.index.get_level_values("batch_size") == batch] for batch in (8, 64))
    return Finding(
        name="cascade",
        question="When does a shared prefix pay for a second call?",
        answer=f"Two calls and a merge are faster at {int((gain > 1).sum())} of {len(gain)} shapes: {span(few)} times as fast as the best single call"
        f" with 8 requests, {span(many)} times with 64.\n" + from_l2(usual),
        table=Grid("time of the best single call, divided by the best of two calls", HEADER, tuple(cells)),
        advice="use two calls for a prefix of 8,192 tokens or more and 16 requests or more:"
        f" they are faster at {int((large > 1).sum())} of these {len(large)} shapes, and never slower by more than {1 / large.min() - 1:.0%}. With one query token use fa2 for both calls, and FlashInfer's fa3 for"
        " the prefix with drafts.",
        limits="measured in bf16, with Llama-3.1-70B's heads and the same prefix for every request. "
        + ", ".join(f"`{name}`" for name in slow)
        + f" take over {SLOW:g} times the best's time at the median.",
        command=f"python -m orchestrator +sweep={SWEEP} mode=report results.path=results/{folder_of(SWEEP)}",
        datasets=(SWEEP,),
        evidence=(table_of("µs, fixed lengths, bf16", wide), log_sum_exp(ok), other_batches(ok)),
    )


HEADER = ("prefix", "s_qo", "best single call, by shapes", "best of two calls", "two are faster", "times as fast, median (range)")


def from_l2(usual: pd.DataFrame) -> str:
    """Why a single call loses less than its bytes suggest: it cannot have read them all from memory."""
    row = usual[(usual["backend"] == "fa2_tc") & (usual["s_kv"] == 8452) & (usual["batch_size"] == 64) & (usual["s_qo"] == 1)].iloc[
        0
    ]
    read = row["batch_size"] * row["s_kv"] * row["num_kv_heads"] * (row["head_dim_qk"] + row["head_dim_vo"]) * 2
    rate, peak = read / row["own_us"] / 1e6, row["peak_tb_per_sec"]
    sentence = (
        f"The L2 helps a single call: `fa2_tc` reads 64 times 8,452 tokens at {rate:.1f} TB/s, but the memory delivers only {peak:.1f},"
        " so most of the prefix came from the L2."
    )
    return checked(sentence, rate > 1.5 * peak)


def log_sum_exp(ok: pd.DataFrame) -> str:
    """What it costs to write the log-sum-exp."""
    half = ok[ok["kv_dtype"] == "bf16"]
    by = (
        half.assign(lse=half["return_lse"].fillna(False).astype(bool))
        .pivot_table(index=[*KEY, "backend"], columns="lse", values="own_us")
        .dropna()
    )
    more = (by[True] / by[False]).rename("ratio")
    table = more.groupby(level="backend").agg(["count", "median", "min", "max"])
    return table_of("time with the log-sum-exp written over the time without", table.rename_axis(columns=None), "{:.3f}")


def other_batches(ok: pd.DataFrame) -> str:
    rest = ok[(ok["kv_dtype"] != "bf16") | (ok["seq_lens"] != "fixed")]
    return table_of("µs over an FP8 cache, and with contexts of different lengths", rest.pivot_table(
        index=["kv_dtype", "seq_lens", *KEY], columns="backend", values="own_us"
    ))  # fmt: skip

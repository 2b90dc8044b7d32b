"""The prompt itself."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, choices, rows, span, table_of, tally, winners
from benchmarks.findings.page import Finding, checked
from orchestrator.tables import Grid

SWEEP, LONG = "ragged_prefill", "ragged_prefill_long"
KEY = ["head_dims", "q_dtype", "mask", "batch_size", "s_kv", "s_qo"]


def finding() -> Finding:
    ok, long = named(rows(SWEEP)), named(rows(LONG))
    first = winners(by_kernel(ok), KEY, "backend").reset_index()
    rate = ok.pivot_table(index=[*KEY, "prompt"], columns="backend", values="tflops").droplevel(["s_kv", "s_qo"])
    cells = []
    for (dims, q, mask), part in first.groupby(["head_dims", "q_dtype", "mask"]):
        best = choices(by_kernel(ok)[(ok["head_dims"] == dims) & (ok["q_dtype"] == q) & (ok["mask"] == mask)])
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
        answer=f"Over {len(first)} prompts and chunks the fastest of the kernels without FlashAttention-3 is {tally(first['backend'])}.\n"
        + beside_fa3(long),
        table=Grid(
            "by head_dim, dtype and mask",
            ("head_dim", "queries", "mask", "fastest, by shapes", "ahead by, median", "most TFLOP/s"),
            tuple(cells),
        ),
        advice="for DeepSeek's heads take FlashInfer's `fa3`. For grouped heads measure it beside FlashAttention-3.",
        limits=f"FlashAttention-3 was measured at the {long.groupby(KEY).ngroups} longest prompts and chunks alone, because that run was stopped."
        f" {again(first, long)} {capped(ok)} Without pages `trtllm-fmha-v2` serves only whole prompts:"
        " with a chunk its error is as large as the answer, and head_dim 192/128 leaves NaN. The check found both, and its rule forbids them.",
        command=f"python -m orchestrator +sweep={SWEEP} mode=report results.path=results/h200_{SWEEP}",
        datasets=(SWEEP, LONG),
        evidence=(
            table_of("TFLOP/s", rate, "{:,.0f}"),
            table_of(
                "µs of the longest prompts and chunks, over clean lines",
                long.pivot_table(index=KEY, columns="backend", values="own_us"),
            ),
        ),
    )


def named(ok: pd.DataFrame) -> pd.DataFrame:
    """With `prompt` and `head_dims` in words."""
    return ok.assign(
        prompt=ok["s_qo"].map("{:,}".format) + " of " + ok["s_kv"].map("{:,}".format),
        head_dims=ok["head_dim_qk"].astype(str) + "/" + ok["head_dim_vo"].astype(str),
    )


def by_kernel(ok: pd.DataFrame) -> pd.DataFrame:
    """Rows of `auto` under the kernel that it took, which is another run of it."""
    return ok.assign(backend=ok["backend"].where(ok["backend"] != "auto", ok["resolved_backend"]))


def beside_fa3(long: pd.DataFrame) -> str:
    """What FlashAttention-3 takes beside FlashInfer's `fa3` at the longest prompts, if that is more than both intervals."""
    times, parts = (long.pivot_table(index=KEY, columns="backend", values=column) for column in ("own_us", "ci95_rel"))
    over = times[FA3] / times["fa3"] - 1
    certain = over.abs() > (parts[FA3] ** 2 + parts["fa3"] ** 2) ** 0.5
    deepseek, grouped = (over.index.get_level_values("head_dims") == dims for dims in ("192/128", "128/128"))
    told = over[certain & grouped]
    by_mask = [
        f"{abs(at):.0%} {'less' if at < 0 else 'more'} with a {mask} mask"
        for mask, at in told.groupby(level="mask").first().items()
    ]
    return checked(
        f"At the longest ones FlashAttention-3 takes {span(over[certain & deepseek], '{:.0%}')} longer than FlashInfer's `fa3` for DeepSeek's heads (192/128),"
        f" at the {(certain & deepseek).sum()} of {deepseek.sum()} points where the difference is certain."
        f" For grouped heads of 128 it is certain at {len(told)} of {grouped.sum()}: it takes {' and '.join(by_mask)}.",
        over[certain & deepseek].min() > 0,
        len(told) == len(by_mask) == 2,
        (times.min(axis=1) == times[[FA3, "fa3"]].min(axis=1)).all(),
    )


def capped(ok: pd.DataFrame) -> str:
    """How many rows met the power cap, and how far two runs of one kernel are apart."""
    count = ok["throttle_reasons"].fillna("none").str.contains("SwPowerCap").sum()
    times = ok.pivot_table(index=KEY, columns="backend", values="own_us")
    apart = (times["auto"] / times["fa3"] - 1).abs().max()
    return f"Of {len(ok)} rows {count} met the power cap, and two runs of one kernel differ by up to {apart:.0%}."


def again(first: pd.DataFrame, long: pd.DataFrame) -> str:
    """Whether the kernels that were measured before rank alike there."""
    before = first.set_index(KEY)["backend"]
    now = winners(long[long["backend"] != FA3], KEY, "backend")["backend"]
    return checked(
        "The other kernels were measured again with it, over clean lines, and the fastest of them is the same at all of these.",
        (before.reindex(now.index) == now).all(),
    )

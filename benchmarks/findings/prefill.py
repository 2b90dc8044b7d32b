"""The prompt itself."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, choices, rows, span, steady, table_of, tally, winners
from benchmarks.findings.page import Finding, checked
from orchestrator.tables import Grid

SWEEP, ON_H100, ON_H200, CAUSAL = (
    "ragged_prefill",
    "h100_prefill/ragged_prefill",
    "h200_prefill/ragged_prefill",
    "h200_prefill/engine_prefill",
)
KEY = ["head_dims", "q_dtype", "mask", "batch_size", "s_kv", "s_qo"]
GROUPED, DEEPSEEK = "128/128", "192/128"
SHORT, MIDDLE, LONG, LONGEST = 512, 2048, 8192, 16384  # tokens


def finding() -> Finding:
    ok, there = named(rows(ON_H100)), named(rows(ON_H200))
    causal = named(rows(CAUSAL).query("routine == 'ragged_prefill'"))
    first = winners(by_kernel(ok), KEY, "backend").reset_index()
    rate = ok.pivot_table(index=[*KEY, "prompt"], columns="backend", values="tflops").droplevel(["s_kv", "s_qo"])
    times, on_h200 = times_of(ok), times_of(there)
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
        answer=f"On an H100 the fastest kernel over {len(first)} prompts and chunks is {tally(first['backend'])}.\n"
        f"{beside_fa3(times_of(steady(ok, KEY)), times_of(steady(there, KEY)))}\n{both_cards(times, on_h200)}",
        table=Grid("by head_dim, dtype and mask, on an H100", header, tuple(cells(ok, first, times))),
        advice="take FlashInfer's `fa3` for DeepSeek's heads and for short prompts, and FlashAttention-3 for long causal prompts of grouped heads.",
        limits=f"{capped(ok, there)} {third_card(steady(causal, KEY), there)} Without pages `trtllm-fmha-v2` serves only whole prompts:"
        " with a chunk its error is as large as the answer, and head_dim 192/128 leaves NaN. The check found both, and its rule forbids them.",
        command=f"python -m orchestrator +sweep={SWEEP} mode=report results.path=results/{ON_H100}",
        datasets=(ON_H100, ON_H200, CAUSAL),
        evidence=(
            table_of("TFLOP/s on an H100", rate, "{:,.0f}"),
            table_of("µs on an H100", times),
            table_of("µs on H200s", on_h200),
            table_of("µs of causal prompts of grouped heads on another H200", times_of(causal)),
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


def times_of(ok: pd.DataFrame) -> pd.DataFrame:
    """µs of a call by problem; a column for each backend."""
    return ok.pivot_table(index=KEY, columns="backend", values="own_us")


def beside_fa3(h100: pd.DataFrame, h200: pd.DataFrame) -> str:
    """What FlashAttention-3 takes beside FlashInfer's `fa3`: for DeepSeek's heads, and for grouped ones by mask and length.

    Takes only prompts at which the power cap held no clock down until the end, because there the clocks of the two differ.
    """
    kinds = [kinds_of(times) for times in (h100, h200)]
    halfway = [causal_of(times, MIDDLE) for times in (h100, h200)]
    middle = pd.concat(halfway).abs().max()
    deepseek, long, short, full = (" (H100) and ".join(span(kind[i], "{:.0%}") for kind in kinds) + " (H200)" for i in range(4))
    return checked(
        f"For DeepSeek's heads (192/128) FlashInfer's `fa3` is always the fastest: FlashAttention-3 takes {deepseek} longer.\n"
        f"For grouped heads of 128 with a causal mask, FlashAttention-3 takes {long} less from {LONG:,} tokens on.\n"
        f"At {SHORT} tokens of such prompts it takes {short} more. At {MIDDLE:,} tokens either is ahead, by at most {middle:.0%}.\nWith a full mask in bf16 it takes {full} more.",
        *(kind.min() > 0 for found in kinds for kind in found),
        all(of.min() < 0 < of.max() for of in halfway) and middle < 0.06,
    )


def kinds_of(times: pd.DataFrame) -> tuple[pd.Series, ...]:
    """`over_fa3` with DeepSeek's heads, of long causal prompts with the sign turned, of short ones, and of full masks in bf16."""
    over = over_fa3(times)
    grouped = over.loc[[GROUPED]]
    full = grouped.xs("full", level="mask").xs("bf16", level="q_dtype")
    return over.loc[[DEEPSEEK]], -causal_of(times, LONG, LONGEST), causal_of(times, SHORT), full


def causal_of(times: pd.DataFrame, least: int, most: int | None = None) -> pd.Series:
    """`over_fa3` of causal prompts of grouped heads with `least` tokens, or with `least` to `most`."""
    over = over_fa3(times).loc[[GROUPED]].xs("causal", level="mask")
    s_kv = over.index.get_level_values("s_kv")
    return over[(s_kv >= least) & (s_kv <= (most or least))]


def both_cards(h100: pd.DataFrame, h200: pd.DataFrame) -> str:
    """At how many prompts an H200 chooses between the same two as an H100."""
    here, there = over_fa3(h100), over_fa3(h200)
    other = there[here * there < 0]
    apart = pd.concat([here[other.index], other]).abs().max()
    return checked(
        f"On H200s the faster of the two is the same at {len(there) - len(other)} of {len(there)}.\n"
        f"At the other {len(other)}, FP8 prompts with a full mask, the two are within {apart:.1%} on both cards.",
        set(here.index) == set(there.index),
        all((over.loc[[DEEPSEEK]] > 0).all() for over in (here, there)),
        *((times.min(axis=1) == times[[FA3, "fa3"]].min(axis=1)).all() for times in (h100, h200)),
        set(zip(other.index.get_level_values("q_dtype"), other.index.get_level_values("mask"), strict=True))
        == {("fp8_e4m3", "full")},
        apart < 0.025,
    )


def third_card(causal: pd.DataFrame, h200: pd.DataFrame) -> str:
    """Whether another H200 chooses the same. Takes rows."""
    here, there = over_fa3(times_of(h200)), over_fa3(times_of(causal))
    return checked(
        f"At {len(there)} of the prompts one more H200 was measured, and the same one of the two is faster there.",
        bool((there * here.reindex(there.index) > 0).all()),
        set(causal["device_uuid"]).isdisjoint(h200["device_uuid"]),
    )


def capped(h100: pd.DataFrame, h200: pd.DataFrame) -> str:
    """How many rows met the power cap."""
    count, there = (int(ok["throttle_reasons"].fillna("none").str.contains("SwPowerCap").sum()) for ok in (h100, h200))
    cards = h200["device_uuid"].nunique()
    return (
        f"One H100, of whose {len(h100)} rows {count} met the power cap, and {cards} H200s, of whose {len(h200)} rows {there} did."
        + checked(" All backends of a prompt ran on one card.", bool((h200.groupby(KEY)["device_uuid"].nunique() == 1).all()))
        + f"\n{held_down(h100, h200)}"
    )


def held_down(h100: pd.DataFrame, h200: pd.DataFrame) -> str:
    """The prompts that `steady` leaves out, and how far the clocks of the two kernels are apart at them."""
    left_out, apart = [], []
    for ok in (h100, h200):
        mhz = ok.pivot_table(index=KEY, columns="backend", values="sm_clock_mhz")
        held = mhz.index.difference(times_of(steady(ok, KEY)).index)
        left_out.append(len(held))
        apart.append((mhz[FA3] - mhz["fa3"])[held].abs().max())
    return (
        f"At {left_out[0]} prompts (H100) and {left_out[1]} (H200) the cap held a kernel's clock down until its sampling ended."
        f" There the clocks of the two differ by up to {max(apart):.0f} MHz, so the ranges above leave these prompts out; the tables and the counts have them."
    )

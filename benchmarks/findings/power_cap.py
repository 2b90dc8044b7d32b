"""Whether the kernel that is fastest in short bursts is fastest under sustained load too, when the GPU is at its power cap."""

from __future__ import annotations

import pandas as pd

from benchmarks import sustained
from benchmarks.findings.frames import FA3, RESULTS, rows, span
from benchmarks.findings.page import Finding, checked
from benchmarks.sustained import ALL, BACK_TO_BACK, COPY, IN_BURSTS, ONE, STEP
from orchestrator.tables import Grid, markdown

FILE = RESULTS.parent / "benchmarks" / "data" / "h200_sustained.parquet"
STEPS, ALONE = "study_all_in_step", "specdec_all_candidates"
SHAPE = ["batch_size", "s_kv", "s_qo"]
LONG_US = 100.0


def finding() -> Finding:
    cost, one = costs(), costs().xs(1, level="s_qo", drop_level=False)
    first = one[BACK_TO_BACK].unstack("backend")
    behind = (first[FA3] / first.drop(columns=FA3).min(axis=1)).rename("times")
    return Finding(
        name="power_cap",
        question="Does the power cap change which kernel is fastest?",
        answer="\n".join((of_bursts(one), of_load(one), of_drafts(cost), of_clock(), of_steps())),
        table=Grid("cost of attention in a step of 4 layers on an H200, bf16, µs a layer", HEADER, tuple(cells(cost))),
        advice="if your GPU works without pause, over a bf16 cache and one query token, compare FlashAttention-3 with `fa2_tc` and cuDNN under that load."
        f"\nThe ranks of short bursts can turn there: FlashAttention-3 took {span(behind)} times the fastest one's time.",
        limits="one H200, Llama-3.1-70B's layers on one GPU, bf16, five shapes; FlashAttention-3 is `tokenspeed-fa3`'s build."
        f"\n{of_cards()}"
        "\nNo H100 was measured under sustained load; there FlashAttention-3 keeps its clock in bursts, and costs in a step what it takes alone."
        "\nAll other times of this page are of short bursts.",
        command="python benchmarks/sustained.py table benchmarks/data/h200_sustained.parquet",
        datasets=(STEPS, ALONE),
        evidence=(
            "Attention of one layer, of all four layers in a row, and in a step, each in bursts of 6 ms after rests of 50 ms, and back to back for a second (`benchmarks/data/h200_sustained.parquet`):",
            markdown([sustained.table(FILE)]).partition("\n\n")[2],
        ),
        in_readme=f"On an H200 it can: in bf16 with one query token FlashAttention-3 takes {span(behind)} times the fastest one's time under sustained load.",
    )


HEADER = ("backend", "batch x s_kv", "s_qo", "in bursts", "back to back", "more", "MHz, all layers in a row")


def measured(column: str) -> pd.DataFrame:
    """A column of the file by backend and shape; its columns are load and pace."""
    return pd.read_parquet(FILE).pivot_table(index=["backend", *SHAPE], columns=["load", "pace"], values=column, sort=False)


def costs() -> pd.DataFrame:
    """µs a layer in a step, by pace: the step minus the one with the copy."""
    us = measured("us")
    return pd.DataFrame({pace: us[STEP, pace] - us[COPY, pace] for pace in (IN_BURSTS, BACK_TO_BACK)})


def cells(cost: pd.DataFrame) -> list[tuple[str, ...]]:
    """A line for each shape of FlashAttention-3 and `fa2_tc`."""
    mhz = measured("mhz")[ALL]
    kept = cost[cost.index.get_level_values("backend") != "cudnn"]
    return [
        (
            backend,
            f"{batch} x {s_kv:,}",
            str(s_qo),
            f"{us[IN_BURSTS]:,.0f}",
            f"{us[BACK_TO_BACK]:,.0f}",
            f"{us[BACK_TO_BACK] / us[IN_BURSTS] - 1:+.0%}",
            f"{mhz.loc[at, IN_BURSTS]:,.0f} to {mhz.loc[at, BACK_TO_BACK]:,.0f}",
        )
        for at, us in kept.iterrows()
        for backend, batch, s_kv, s_qo in (at,)
    ]


def of_bursts(one: pd.DataFrame) -> str:
    """The ranks in bursts, as all rows are measured."""
    us = one[IN_BURSTS].unstack("backend")
    return f"On an H200 it can. In short bursts, as rows are measured, it takes {span(us[FA3] / us.drop(columns=FA3).min(axis=1))} times the fastest one's time with FlashAttention-3, over a bf16 cache with one query token."


def of_load(one: pd.DataFrame) -> str:
    """What a second of steps without pause makes of them."""
    more = (one[BACK_TO_BACK] / one[IN_BURSTS] - 1).unstack("backend")
    rest = more.drop(columns=FA3)
    return checked(
        f"In steps without pause FlashAttention-3's cost grows by {more[FA3].min():.0%} to {more[FA3].max():.0%}, and that of `fa2_tc` and cuDNN by {rest.max().max():.1%} at most.",
        more[FA3].min() > 2 * rest.max().max(),
    )


def of_drafts(cost: pd.DataFrame) -> str:
    drafts = cost.xs(4, level="s_qo")
    more = drafts[BACK_TO_BACK] / drafts[IN_BURSTS] - 1
    return checked(
        f"With 4 query tokens both grow, FlashAttention-3 by {more[FA3].item():.0%} and `fa2_tc` by {more['fa2_tc'].item():.0%}.",
        more.min() > 0.1,
    )


def of_clock() -> str:
    """The clock under which that happens."""
    mhz = measured("mhz")[ALL].xs(1, level="s_qo", drop_level=False).unstack("backend")
    low, other = mhz[BACK_TO_BACK][FA3], mhz[BACK_TO_BACK].drop(columns=FA3)
    watts = measured("watts")[ALL, BACK_TO_BACK]
    return checked(
        f"Attention without pause takes {watts.min():,.0f} to {watts.max():,.0f} W, and the card's cap is 700 W."
        f" With one query token FlashAttention-3's clock falls to {low.min():,.0f} to {low.max():,.0f} MHz, and the others' to {other.min().min():,.0f} to {other.max().max():,.0f}."
        " The others wait for memory at any of these clocks, and FlashAttention-3 does not: probably because its tensor instructions take 64 rows, of which 8 heads of one token fill 8.",
        low.max() < other.min().min(),
    )


def of_cards() -> str:
    """How this card differs from that of the main sweep before any load does."""
    here = pd.DataFrame({"us": measured("us")[ONE, IN_BURSTS], "mhz": measured("mhz")[ONE, IN_BURSTS]}).loc[FA3]
    there = rows(ALONE).query("backend == @FA3 and kv_dtype == 'bf16'").set_index(SHAPE)[["own_us", "sm_clock_mhz"]]
    both = here.join(there, how="inner").xs(1, level="s_qo")
    return checked(
        f"Cards differ before the load does: alone and in bursts FlashAttention-3 took {span(both['us'] / both['own_us'])} times what it takes on the card of `h200_{ALONE}`, at {both['mhz'].min():,.0f} to {both['mhz'].max():,.0f} MHz instead of {both['sm_clock_mhz'].min():,.0f} to {both['sm_clock_mhz'].max():,.0f}.",
        len(both) == 4,
        (both["mhz"] < both["sm_clock_mhz"]).all(),
    )


def of_steps() -> str:
    """The same in the study, whose steps last some milliseconds."""
    ran = rows(STEPS)
    ran = ran[(ran["in_step_us"] > LONG_US) & (ran["kv_dtype"] == "bf16") & (ran["step_stop_reason"] != "throttled")]
    dearer = ran["in_step_us"] / ran["own_us"] - 1
    ours, others = dearer[ran["backend"] == FA3], dearer[ran["backend"] != FA3]
    return checked(
        f"Steps of some milliseconds show its beginning: in the study FlashAttention-3 costs {ours.median():.1%} more in a step than alone at the median of {len(ours)} long bf16 calls on two H200s, and the other kernels {abs(others.median()):.1%}.",
        ours.min() > 0.01,
        abs(others.median()) < 0.002,
    )

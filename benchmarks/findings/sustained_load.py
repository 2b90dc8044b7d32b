"""What attention costs in steps without pause, when the clock of the GPU falls, beside what it costs in short bursts."""

from __future__ import annotations

import pandas as pd

from benchmarks import sustained
from benchmarks.findings.frames import FA3, RESULTS, rows, span
from benchmarks.findings.page import Finding, checked
from benchmarks.sustained import ALL, BACK_TO_BACK, COPY, IN_BURSTS, ONE, STEP
from orchestrator.tables import Grid, markdown

FILE = RESULTS.parent / "benchmarks" / "data" / "h200_sustained.parquet"
STEPS, ALONE, ON_H100 = "study_all_in_step", "specdec_all_candidates", "h100_study_all_in_step"
ENGINES = [f"{FA3}_sglang", f"{FA3}_vllm"]
SHAPE = ["batch_size", "s_kv", "s_qo"]
LONG_US, CLOCK_US = 100.0, 200.0  # from here on: a long call; one whose clock is compared


def finding() -> Finding:
    cost, one = costs(), costs().xs(1, level="s_qo", drop_level=False)
    behind = {pace: behind_first(one[pace]) for pace in (IN_BURSTS, BACK_TO_BACK)}
    return Finding(
        name="sustained_load",
        question="Does attention cost more under sustained load?",
        answer="\n".join((of_load(one), of_ranks(cost, behind), of_drafts(cost), of_clock(), of_builds(), of_steps())),
        table=Grid("cost of attention in a step of 4 layers on an H200, bf16, µs a layer", HEADER, tuple(cells(cost))),
        advice="if your GPU works without pause, over a bf16 cache, compare FlashAttention-3 in your engine's build with `fa2_tc` and cuDNN under that load.",
        limits="one H200, Llama-3.1-70B's layers on one GPU, bf16, five shapes, one order of kernels, and `tokenspeed-fa3`'s build."
        " Engines' builds and XQA were not measured under sustained load."
        f"\n{of_rows()}"
        "\nA load lasts a second or 1,000 calls, which is 0.25 seconds at the shortest."
        "\nThe file names neither its card nor why the clock fell: it is the card of run `20261126T054739-9426` in `h200_rule_edges`, and its power cap is 700 W."
        f"\n{of_h100s()}",
        command="python benchmarks/sustained.py table benchmarks/data/h200_sustained.parquet",
        datasets=(STEPS, ALONE, ON_H100),
        evidence=(
            "Attention of one layer, of all four layers in a row, and in a step: in bursts of two calls or more after rests of 50 ms, and back to back (`benchmarks/data/h200_sustained.parquet`)."
            "\nThe cost in a step is the step minus the same step with a copy in the place of attention.",
            markdown([sustained.table(FILE)]).partition("\n\n")[2],
        ),
        in_readme=f"On an H200, in bf16 with one query token, `tokenspeed-fa3`'s build takes {span(behind[BACK_TO_BACK])} times the fastest one's time without pause, and {span(behind[IN_BURSTS])} times in bursts.",
    )


HEADER = ("backend", "batch x s_kv", "s_qo", "in bursts", "back to back", "more", "MHz, all layers in a row")


def measured(column: str) -> pd.DataFrame:
    """A column of the file by backend and shape; its columns are load and pace."""
    return pd.read_parquet(FILE).pivot_table(index=["backend", *SHAPE], columns=["load", "pace"], values=column, sort=False)


def costs() -> pd.DataFrame:
    """µs a layer in a step, by pace: the step minus the one with the copy."""
    us = measured("us")
    return pd.DataFrame({pace: us[STEP, pace] - us[COPY, pace] for pace in (IN_BURSTS, BACK_TO_BACK)})


def behind_first(us: pd.Series) -> pd.Series:
    """By shape: FlashAttention-3's time over that of the fastest other kernel."""
    wide = us.unstack("backend")
    return wide[FA3] / wide.drop(columns=FA3).min(axis=1)


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


def of_load(one: pd.DataFrame) -> str:
    """What steps without pause cost more."""
    more = (one[BACK_TO_BACK] / one[IN_BURSTS] - 1).unstack("backend")
    rest = more.drop(columns=FA3)
    return checked(
        f"On an H200, over a bf16 cache with one query token, FlashAttention-3 in `tokenspeed-fa3`'s build costs {more[FA3].min():.0%} to {more[FA3].max():.0%} more in steps without pause than in short bursts."
        f" `fa2_tc` and cuDNN cost at most {rest.max().max():.1%} more.",
        more[FA3].min() > 2 * rest.max().max(),
    )


def of_ranks(cost: pd.DataFrame, behind: dict[str, pd.Series]) -> str:
    """Whether the order of the kernels changes."""
    order = [cost[pace].groupby(SHAPE).rank() for pace in (IN_BURSTS, BACK_TO_BACK)]
    return checked(
        f"No rank of the five shapes turns, but the gap grows: it takes {span(behind[IN_BURSTS])} times the fastest one's time in bursts, and {span(behind[BACK_TO_BACK])} times without pause.",
        bool((order[0] == order[1]).all()),
    )


def of_drafts(cost: pd.DataFrame) -> str:
    drafts = cost.xs(4, level="s_qo")
    more, copy = drafts[BACK_TO_BACK] / drafts[IN_BURSTS] - 1, measured("us")[COPY].xs(4, level="s_qo")
    return checked(
        f"With 4 query tokens both grow, FlashAttention-3 by {more[FA3].item():.0%} and `fa2_tc` by {more['fa2_tc'].item():.0%}."
        f" There the rest of the step grows too, by {(copy[BACK_TO_BACK] / copy[IN_BURSTS] - 1).mean():.0%}.",
        more.min() > 0.1,
    )


def of_clock() -> str:
    """The clock under which that happens."""
    mhz = measured("mhz")[ALL].xs(1, level="s_qo", drop_level=False).unstack("backend")
    low, other = mhz[BACK_TO_BACK][FA3], mhz[BACK_TO_BACK].drop(columns=FA3)
    return checked(
        f"The reason is probably the clock: with one query token it falls to {low.min():,.0f} to {low.max():,.0f} MHz in that build, and to {other.min().min():,.0f} to {other.max().max():,.0f} in the others."
        " The others take the same time at any of these clocks, so they wait for memory; that build does not.",
        low.max() < other.min().min(),
    )


def of_builds() -> str:
    """The clocks of engines' builds in the rows of the main sweep."""
    ok = rows(ALONE).query("kv_dtype == 'bf16' and own_us >= @CLOCK_US")
    mhz = ok.groupby("backend")["sm_clock_mhz"]
    low, high = mhz.min()[ENGINES].min(), mhz.max()[ENGINES].max()
    return checked(
        f"Engines' builds are probably less affected: in the blocks of rows, which are short, they run at {low:,.0f} to {high:,.0f} MHz in calls of {CLOCK_US:.0f} µs or more, and this one at {mhz.median()[FA3]:,.0f} at the median.",
        low > mhz.median()[FA3] + 50,
    )


def of_steps() -> str:
    """The same in the study, whose steps last some milliseconds."""
    ran = rows(STEPS)
    ran = ran[(ran["in_step_us"] > LONG_US) & (ran["kv_dtype"] == "bf16")]
    dearer = ran["in_step_us"] / ran["own_us"] - 1
    ours, others = dearer[ran["backend"] == FA3], dearer[ran["backend"] != FA3]
    return checked(
        f"Steps of some milliseconds show its beginning: in the study this build costs {ours.median():.1%} more in a step than alone at the median of {len(ours)} long bf16 calls on two H200s, and the other kernels {abs(others.median()):.1%}."
        " There ranks do turn, at five shapes with 2 or 4 query tokens ([timing.md](timing.md#the-study-which-isolated-time-says-what-an-engine-pays)).",
        ours.min() > 0.01,
        abs(others.median()) < 0.002,
    )


def of_rows() -> str:
    """How the bursts here differ from the blocks of a row, and that the steps agree."""
    us = measured("us")[ONE, IN_BURSTS].loc[FA3]
    alone = rows(ALONE).query("backend == @FA3 and kv_dtype == 'bf16'").set_index(SHAPE)["own_us"]
    steps = rows(STEPS).query("backend == @FA3 and kv_dtype == 'bf16'").set_index(SHAPE)["in_step_us"]
    burst = costs()[IN_BURSTS].loc[FA3].xs(1, level="s_qo", drop_level=False)
    apart = ((burst / steps).dropna() - 1).abs().max()
    return checked(
        f"Rows have shorter times than these bursts: alone this build took {span((us / alone).dropna())} times what rows of another H200 say, which wait for the clock and set slow samples aside."
        f" In a step the bursts agree with the study within {apart:.1%}.",
        apart < 0.02,
    )


def of_h100s() -> str:
    """FlashAttention-3 in the steps of H100s."""
    ran = rows(ON_H100).query(
        "backend == @FA3 and kv_dtype == 'bf16' and in_step_us > @LONG_US and step_stop_reason != 'throttled'"
    )
    dearer, mhz = ran["in_step_us"] / ran["own_us"] - 1, ran["sm_clock_mhz"]
    return checked(
        f"No H100 was measured under sustained load. In its rows the build keeps {mhz.min():,.0f} MHz or more, and a step that did not end for the clock costs {dearer.min():+.1%} to {dearer.max():+.1%} more than the call alone.",
        abs(dearer.median()) < 0.002,
    )

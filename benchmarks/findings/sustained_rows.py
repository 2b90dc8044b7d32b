"""What rows, which are of short blocks, say of FlashAttention-3 beside what it costs under sustained load."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, folder_of, rows, span
from benchmarks.findings.page import checked
from benchmarks.findings.sustained_frames import FIRST, FP8, KEY, SECOND, SHAPE, at, costs, growth, loads, measured
from benchmarks.sustained import BACK_TO_BACK, IN_BURSTS, ONE

STEPS, ALONE, ON_H100, ROWS = "study_all_in_step", "specdec_all_candidates", "h100_studies/study_all_in_step", "sustained_rows"
DATASETS = (STEPS, ALONE, ON_H100, ROWS)
FA4 = "flash_attn_4"
ENGINES = [f"{FA3}_sglang", f"{FA3}_vllm"]
LONG_US, CLOCK_US = 100.0, 200.0  # from here on: a long call; one whose clock is compared


def of_builds() -> str:
    """The clocks of engines' builds in the rows of the main sweep, and why they do not say what a load costs."""
    ok = rows(ALONE).query("kv_dtype == 'bf16' and own_us >= @CLOCK_US")
    mhz = ok.groupby("backend")["sm_clock_mhz"]
    low, high = mhz.min()[ENGINES].min(), mhz.max()[ENGINES].max()
    fp8 = at(measured("mhz")[ONE, IN_BURSTS], kv_dtype=FP8, backend=FA3)
    more = growth(at(costs(), kv_dtype=FP8, backend=FA3))
    return checked(
        f"Engines' builds may differ: in the blocks of rows, which are short, they run at {low:,.0f} to {high:,.0f} MHz in bf16 calls of {CLOCK_US:.0f} µs or more, and this one at {mhz.median()[FA3]:,.0f} at the median."
        f"\nBut a high clock in short blocks does not say what a load costs: with FP8 queries this build runs at {span(fp8, '{:,.0f}')} MHz in bursts, and still costs {more.min():.0%} to {more.max():.0%} more without pause.",
        low > mhz.median()[FA3] + 50,
        fp8.min() > mhz.median()[FA3] + 50,
        more.min() > 0.1,
    )


def of_steps() -> str:
    """The same in the study, whose steps last some milliseconds."""
    ran = rows(STEPS)
    ran = ran[(ran["in_step_us"] > LONG_US) & (ran["kv_dtype"] == "bf16")]
    dearer = ran["in_step_us"] / ran["own_us"] - 1
    ours, others = dearer[ran["backend"] == FA3], dearer[ran["backend"] != FA3]
    return checked(
        f"The growth begins within some milliseconds: in the study this build costs {ours.median():.1%} more in a step than alone at the median of {len(ours)} long bf16 calls on two H200s, and the other kernels {abs(others.median()):.1%}."
        " There ranks do turn, at five shapes with 2 or 4 query tokens ([timing.md](timing.md#the-study-which-isolated-time-says-what-an-engine-pays)).",
        ours.min() > 0.01,
        abs(others.median()) < 0.002,
    )


def beside_rows() -> pd.DataFrame:
    """On the second card, by backend and shape, bf16: what its rows say, the call in bursts and back to back; MHz of both."""
    alone = rows(ROWS).set_index(["backend", *SHAPE])
    us, mhz = (
        measured(column)[ONE].xs((SECOND, "bf16"), level=KEY[:2]).reorder_levels(["backend", *SHAPE]) for column in ("us", "mhz")
    )
    found = alone.loc[us.index, ["own_us", "sm_clock_mhz"]]
    return found.assign(bursts=us[IN_BURSTS], back=us[BACK_TO_BACK], bursts_mhz=mhz[IN_BURSTS])


def of_same_card() -> str:
    """Rows of the card that was then measured under load."""
    found = beside_rows()
    ratio, ours = found["bursts"] / found["own_us"], found.loc[FA3]
    rest = ratio.drop(index=FA3, level="backend")
    cards = set(loads().query("card == @SECOND")["device_uuid"])
    return checked(
        f"Rows have shorter times than these bursts, also on the same card, whose rows were measured directly before (`{folder_of(ROWS)}`)."
        f" Bursts of one layer take {span(ratio[FA3])} times the rows of FlashAttention-3, and {span(rest)} times those of `fa2_tc` and XQA."
        f"\nA worker waits for the clock and sets slow samples aside: FlashAttention-3's rows are of {span(ours['sm_clock_mhz'], '{:,.0f}')} MHz, and these bursts of {span(ours['bursts_mhz'], '{:,.0f}')}."
        f" Back to back one layer takes {span(ours['back'] / ours['own_us'])} times its rows.",
        ratio[FA3].min() > rest.max(),
        set(rest.index.unique("backend")) == {"fa2_tc", "trtllm-native"},
        (rest - 1).abs().max() < 0.02,
        ours["sm_clock_mhz"].min() > ours["bursts_mhz"].max(),
        len(cards) == 1 and set(rows(ROWS)["device_uuid"]) == cards,
    )


def of_flash_attn_4() -> str:
    """The clock of FlashAttention-4 in rows of the main sweep, beside this build's."""
    ok = rows(ALONE).query("kv_dtype == 'bf16' and own_us >= @CLOCK_US")
    mhz = ok.groupby("backend")["sm_clock_mhz"].median()
    return checked(
        f"In rows FlashAttention-4 has a lower clock than this build, {mhz[FA4]:,.0f} against {mhz[FA3]:,.0f} MHz at the median.",
        mhz[FA4] < mhz[FA3] - 20,
    )


def of_study() -> str:
    """Whether steps in bursts agree with those of the study."""
    steps = rows(STEPS).query("backend == @FA3 and kv_dtype == 'bf16'").set_index(SHAPE)["in_step_us"]
    burst = costs()[IN_BURSTS].xs((FIRST, "bf16", FA3), level=["card", "kv_dtype", "backend"]).xs(1, level="s_qo", drop_level=False)
    apart = ((burst / steps).dropna() - 1).abs().max()
    return checked(f"In a step the first card's bursts agree with the study within {apart:.1%}.", apart < 0.02)


def of_h100s() -> str:
    """FlashAttention-3 in the steps of H100s."""
    ran = rows(ON_H100).query("backend == @FA3 and kv_dtype == 'bf16' and in_step_us > @LONG_US")
    dearer, mhz = ran["in_step_us"] / ran["own_us"] - 1, ran["sm_clock_mhz"]
    return checked(
        f"No H100 was measured under sustained load. In rows of H100s the build runs at {mhz.min():,.0f} MHz or more, and all {len(ran)} long bf16 calls cost {dearer.min():+.1%} to {dearer.max():+.1%} more in a step than alone.",
        dearer.abs().max() < 0.02,
    )

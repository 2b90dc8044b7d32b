"""Why attention costs more under sustained load: the clock and what held it down, and how two cards agree."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, span
from benchmarks.findings.page import checked
from benchmarks.findings.sustained_frames import (
    CUDNN,
    FA2_TC,
    FIRST,
    FP8,
    SECOND,
    XQA,
    at,
    compared,
    costs,
    growth,
    measured,
)
from benchmarks.sustained import ALL, BACK_TO_BACK, COPY, IN_BURSTS, ONE, THROTTLED
from orchestrator.analysis.names import shown
from orchestrator.tables import Grid

CAP = "SwPowerCap"


def clocks() -> pd.DataFrame:
    """All layers in a row, by `KEY` and backend: `grew`, `clock` and `left`.

    `clock` is the time's growth if it were inverse to the clock, and `left` the growth of time multiplied by clock.
    """
    us, mhz = measured("us")[ALL], measured("mhz")[ALL]
    clock, grew = mhz[IN_BURSTS] / mhz[BACK_TO_BACK] - 1, growth(us)
    return pd.DataFrame({"mhz": mhz[BACK_TO_BACK], "grew": grew, "clock": clock, "left": (1 + grew) / (1 + clock) - 1})


def grid() -> Grid:
    """How the time of all layers in a row grows, beside what its clock alone would make of it."""
    cells = [
        (
            f"{card}",
            kv,
            f"{batch} x {s_kv:,}",
            str(s_qo),
            shown(backend),
            f"{one.mhz:,.0f}",
            *(f"{x:+.1%}" for x in (one.clock, one.grew, one.left)),
        )
        for (card, kv, batch, s_kv, s_qo, backend), one in clocks().iterrows()
    ]
    header = (
        "card",
        "cache",
        "batch x s_kv",
        "s_qo",
        "backend",
        "MHz, back to back",
        "growth if inverse to the clock",
        "growth of the time",
        "of time x clock",
    )
    return Grid("all layers in a row, back to back beside in bursts", header, tuple(cells))


def of_clock() -> str:
    """Whether times grow as the clock falls."""
    found = clocks()
    fp8 = at(found, kv_dtype=FP8)
    return checked(
        f"The reason is probably the clock, though nobody set it: with all layers in a row, time multiplied by clock grows nowhere by more than {found['left'].max():.1%}."
        f" Over an FP8 cache it is the same in both paces within {fp8['left'].abs().max():.1%}, for all three kernels.",
        found["left"].max() < 0.01,
        fp8["left"].abs().max() < 0.01,
    )


def of_bf16() -> str:
    """The same over a bf16 cache, kernel by kernel."""
    found, one = at(clocks(), kv_dtype="bf16"), at(clocks(), kv_dtype="bf16", s_qo=1)
    fa3 = at(found, backend=FA3)
    steady = one[one.index.get_level_values("backend").isin([FA2_TC, CUDNN, XQA])]
    drafts = at(found, s_qo=4, backend=XQA).iloc[0]
    return checked(
        f"Over a bf16 cache FlashAttention-3's clock falls to {span(fa3['mhz'], '{:,.0f}')} MHz, and its time grows by {span(fa3['grew'] / fa3['clock'], '{:.0%}')} of what that alone would make."
        f"\nWith one query token `fa2_tc`, cuDNN and XQA take at most {steady['grew'].max():.1%} more at {span(steady['mhz'], '{:,.0f}')} MHz, so they probably wait for memory."
        f"\nWith 4 query tokens XQA's clock falls to {drafts['mhz']:,.0f} MHz, and its time grows by {drafts['grew']:.0%}.",
        (fa3["grew"] / fa3["clock"]).min() > 0.75,
        fa3["mhz"].max() < steady["mhz"].min(),
        steady["grew"].max() < 0.02,
        steady["clock"].max() > 0.2,
        drafts["grew"] < drafts["clock"] / 2,
    )


def of_cap() -> str:
    """What NVML says held the clock down, on the card whose file has it."""
    said = compared().dropna(subset=[THROTTLED])
    held, back, bursts = said[THROTTLED] == CAP, said["pace"] == BACK_TO_BACK, said["pace"] == IN_BURSTS
    free, copies = said[back & ~held], said[held & (said["load"] == COPY) & (said["s_qo"] == 1)]
    return checked(
        f"On the second card NVML names no reason but the power cap: at the end of {(held & back).sum()} of {back.sum()} compared loads back to back, and of {(held & bursts).sum()} of {bursts.sum()} in bursts."
        " The exceptions back to back are XQA's calls alone over an FP8 cache."
        f"\nThe cap alone does not say that times grow: NVML names it after copies at {span(copies['mhz'], '{:,.0f}')} MHz too.",
        set(said["card"]) == {SECOND},
        set(said[THROTTLED]) == {"", CAP},
        set(free["backend"]) == {XQA},
        set(free["kv_dtype"]) == {FP8},
        copies["mhz"].min() > 1750,
    )


def of_loads() -> str:
    """Whether the clock settles within a load: one layer runs first, then all layers in a row."""
    mhz = measured("mhz")
    one, every = (at(mhz[load][BACK_TO_BACK], card=FIRST, backend=CUDNN, batch_size=64, s_kv=32768) for load in (ONE, ALL))
    return checked(
        "Loads ran in one order too, and a second is perhaps too short."
        f" One cuDNN call ran at {one.item():,.0f} MHz in its first load without pause, and at {every.item():,.0f} in the next, so longer loads may cost more.",
        one.item() > every.item() + 200,
    )


def of_watts() -> str:
    """How rough the watts are: the power cap is 700 W."""
    watts = compared().query("load == @ALL and pace == @BACK_TO_BACK and throttled_by == @CAP")["watts"]
    return checked(
        f"Watts are rough: where the power cap of 700 W held the clock down, they are {span(watts, '{:.0f}')}.",
        watts.min() < 700 < watts.max(),
    )


def of_cards() -> str:
    """How far the second card repeats the first, where both have a kernel at a shape."""
    us, mhz = costs(), measured("mhz")[ALL][BACK_TO_BACK].rename("mhz")
    both = pd.concat([us, growth(us).rename("grew"), mhz], axis=1)
    first, second = (both.xs(card, level="card") for card in (FIRST, SECOND))
    there = first.index.intersection(second.index)
    first, second = first.loc[there], second.loc[there]
    ratio = second / first
    more = (second["grew"] - first["grew"]).xs(FA3, level="backend")
    clock = ratio["mhz"].xs(FA3, level="backend")
    return checked(
        f"The second card repeats the first where both have a kernel: at three shapes costs of FlashAttention-3 and `fa2_tc` in bursts agree within {(ratio[IN_BURSTS] - 1).abs().max():.1%}."
        f"\nWithout pause they take {span(ratio[BACK_TO_BACK] - 1, '{:.1%}')} longer there, and FlashAttention-3's increase is {span(100 * more, '{:.0f}')} percentage points larger, at a clock that is {span(1 - clock, '{:.1%}')} lower.",
        len(there) == 6 and set(there.get_level_values("backend")) == {FA3, FA2_TC},
        (ratio[BACK_TO_BACK] > 1).all(),
        more.min() > 0,
        clock.max() < 1,
    )

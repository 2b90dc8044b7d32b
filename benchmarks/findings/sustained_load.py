"""What attention costs in steps without pause, when the clock of the GPU falls, beside what it costs in short bursts."""

from __future__ import annotations

import pandas as pd

from benchmarks import sustained
from benchmarks.findings import sustained_clock, sustained_rows
from benchmarks.findings.frames import FA3, RESULTS, rows, span
from benchmarks.findings.page import Finding, checked, lines
from benchmarks.findings.sustained_frames import (
    CUDNN,
    FA2_TC,
    FIRST,
    FP8,
    KEY,
    PATHS,
    SECOND,
    SHAPE,
    XQA,
    at,
    behind,
    compared,
    costs,
    growth,
    measured,
    uncompared,
)
from benchmarks.sustained import ALL, BACK_TO_BACK, COPY, IN_BURSTS, STEP
from orchestrator.analysis.names import shown
from orchestrator.tables import Grid, markdown

PACES = (IN_BURSTS, BACK_TO_BACK)


def finding() -> Finding:
    return Finding(
        name="sustained_load",
        question="Does attention cost more under sustained load?",
        answer="\n".join((of_load(), of_ranks(), of_alone(), of_fp8(), sustained_clock.of_clock(), sustained_rows.of_steps())),
        table=of_card(SECOND, "cost of attention in a step of 4 layers on the second H200, in bursts to back to back, µs a layer"),
        advice="if your GPU works without pause, measure under that load before you choose FlashAttention-3 in your engine's build."
        " Compare it with `fa2_tc`, cuDNN and XQA over a bf16 cache, and with XQA over an FP8 cache.",
        limits=limits(),
        command=f"python benchmarks/sustained.py table {' '.join(PATHS)}",
        datasets=sustained_rows.DATASETS,
        evidence=evidence(),
        in_readme=in_readme(),
    )


def in_readme() -> str:
    cost = at(costs(), s_qo=1)
    one = {pace: span(behind(at(cost[pace], kv_dtype="bf16"), FA3)) for pace in PACES}
    return (
        f"On two H200s, in bf16 with one query token, `tokenspeed-fa3`'s build takes {one[BACK_TO_BACK]} times the fastest one's time without pause, and {one[IN_BURSTS]} times in bursts."
        f" XQA's cost over an FP8 cache grows by at most {growth(at(cost, kv_dtype=FP8, backend=XQA)).max():.1%}."
    )


def evidence() -> tuple[str, ...]:
    """What stands behind the first table, which is of the second card."""
    loads = (
        "Attention of one layer, of all four layers in a row, and in a step: in bursts of two calls or more after rests of 50 ms, and back to back."
        "\nThe cost in a step is the step minus the same step with a copy in the place of attention."
        "\nEach burst begins with one replay that does not count."
        f"\n{sustained_clock.of_watts()}"
        f"\nThe column of reasons is of `{PATHS[1]}` alone, because the other file is older."
    )
    return (
        f"Over an FP8 cache `flash_attn_3` takes FP8 queries, and the other two take 16-bit queries.\n{of_copies()}",
        markdown([of_card(FIRST, "the same on the first H200, where XQA and FP8 were not measured")]),
        markdown([sustained_clock.grid()]),
        sustained_clock.of_bf16(),
        lines(f"{of_drafts()}\n{of_fp8_drafts()}"),
        lines(f"{sustained_clock.of_cap()}\n{sustained_rows.of_builds()}"),
        lines(
            f"{sustained_clock.of_cards()}\n{sustained_rows.of_same_card()}\n{sustained_rows.of_study()}\n{sustained_rows.of_h100s()}"
        ),
        loads,
        markdown([sustained.table(RESULTS.parent / path) for path in PATHS]),
    )


def limits() -> str:
    ((shape, kernel),) = uncompared()
    return (
        "two H200s, Llama-3.1-70B's layers on one GPU, five shapes on the first and three on the second, and `tokenspeed-fa3`'s build."
        f"\n{of_order()}"
        " XQA and FP8 were measured on the second card alone, and cuDNN on the first."
        f" Engines' builds, FlashAttention-4 and H100s were not measured under sustained load.\n{sustained_rows.of_flash_attn_4()}"
        "\nWith 4 query tokens only 64 x 32,768 was measured."
        f"\nThe second file also has `{kernel}` at {shape} over a bf16 cache, and no other kernel there, because the machine's time ended: no comparison has it."
        "\nA load lasts about a second; only loads of one layer end sooner, after 1,000 calls (0.25 seconds at the shortest)."
        f"\n{sustained_clock.of_loads()}"
        "\nThe first file names neither its card nor why the clock fell: it is the card of run `20261126T054739-9426` in `h200_rules/rule_edges`."
        "\nThe power cap of an H200 is 700 W."
    )


def of_order() -> str:
    """Which kernel came first at each shape."""
    place = compared().drop_duplicates([*KEY, "backend"]).assign(place=lambda rows: rows.groupby(KEY).cumcount())
    ours = place[place["backend"] == FA3].groupby("kv_dtype")["place"]
    return checked(
        "Kernels ran in one order: FlashAttention-3 first over a bf16 cache, and last over an FP8 cache.",
        set(ours.get_group("bf16")) == {0},
        set(ours.get_group(FP8)) == {2},
    )


def of_card(card: int, title: str) -> Grid:
    """A line for each shape of a card, with the cost of each kernel in both paces."""
    cost = at(costs(), card=card)
    cells = []
    for _, kv, batch, s_kv, s_qo in cost.index.droplevel("backend").unique():
        here = cost.loc[card, kv, batch, s_kv, s_qo]
        cells.append((kv, f"{batch} x {s_kv:,}", str(s_qo), *(_paces(here, name) for name in _kernels(cost))))
    return Grid(title, ("cache", "batch x s_kv", "s_qo", *map(shown, _kernels(cost))), tuple(cells))


def _kernels(cost: pd.DataFrame) -> list[str]:
    return list(cost.index.unique("backend"))


def _paces(here: pd.DataFrame, backend: str) -> str:
    """`2,027 to 2,445 (+21%)`; a dash if the kernel was not measured."""
    if backend not in here.index:
        return "–"
    us = here.loc[backend]
    return f"{us[IN_BURSTS]:,.0f} to {us[BACK_TO_BACK]:,.0f} ({us[BACK_TO_BACK] / us[IN_BURSTS] - 1:+.0%})"


def of_load() -> str:
    """What steps without pause cost more over a bf16 cache with one query token."""
    more = growth(at(costs(), kv_dtype="bf16", s_qo=1)).unstack("backend")
    rest = more.drop(columns=FA3)
    return checked(
        f"On two H200s, over a bf16 cache with one query token, FlashAttention-3 in `tokenspeed-fa3`'s build costs {more[FA3].min():.0%} to {more[FA3].max():.0%} more in steps without pause than in short bursts."
        f" `fa2_tc`, cuDNN and XQA (`trtllm-native`) cost at most {rest.max().max():.1%} more.",
        set(rest) == {FA2_TC, CUDNN, XQA},
        more[FA3].min() > 2 * rest.max().max(),
    )


def of_copies() -> str:
    """Why the cost in a step is rough with four query tokens."""
    us, mhz = (measured(column).xs(4, level="s_qo", drop_level=False) for column in ("us", "mhz"))
    copies, steps = mhz[COPY][BACK_TO_BACK], mhz[STEP][BACK_TO_BACK]
    faster = at(steps - copies, kv_dtype=FP8).drop(index=FA3, level="backend")
    one, one_mhz = (at(measured(column)[STEP], kv_dtype="bf16", s_qo=1, backend=FA2_TC) for column in ("us", "mhz"))
    one_mhz = one_mhz[BACK_TO_BACK]
    return checked(
        f"With 4 query tokens steps with the copy grow by {span(growth(us[COPY]), '{:.0%}')} too, and run at {span(copies, '{:,.0f}')} MHz where steps with attention run at {span(steps, '{:,.0f}')}."
        "\nThere the difference is rough, and the growth of whole steps says more."
        f"\nOver an FP8 cache it is probably too small without pause for XQA and `fa2_tc`, whose steps run {span(faster, '{:.0f}')} MHz faster than those with the copy."
        f"\nWith one query token the rest hardly depends on the clock: whole steps with `fa2_tc` over a bf16 cache grow by at most {growth(one).max():.1%}, at {span(one_mhz, '{:,.0f}')} MHz.",
        faster.min() > 300,
        growth(one).max() < 0.02,
        one_mhz.min() < 1500,
    )


def same_ranks(cost: pd.DataFrame) -> bool:
    """Whether each kernel has the same place at its shape in both paces."""
    order = cost[list(PACES)].groupby(KEY).rank()
    return bool((order[IN_BURSTS] == order[BACK_TO_BACK]).all())


def of_ranks() -> str:
    """Whether the order of the kernels changes over a bf16 cache."""
    cost = at(costs(), kv_dtype="bf16")
    one, shapes = at(cost, s_qo=1), cost.index.droplevel("backend").unique()
    return checked(
        "In steps over a bf16 cache no rank turns between the two paces, at five shapes of the first card and three of the second, but the gap grows."
        f" With one query token FlashAttention-3 takes {span(behind(one[IN_BURSTS], FA3))} times the fastest one's time in bursts, and {span(behind(one[BACK_TO_BACK], FA3))} times without pause.",
        [list(shapes.get_level_values("card")).count(card) for card in (FIRST, SECOND)] == [5, 3],
        same_ranks(cost) and same_ranks(at(measured("us")[STEP], kv_dtype="bf16")),
    )


def of_alone() -> str:
    """Whether the order of the kernels in steps is that of their rows, over a bf16 cache on the second card."""
    alone = sustained_rows.beside_rows()["own_us"].unstack("backend")
    step = at(measured("us")[STEP], card=SECOND, kv_dtype="bf16").droplevel(["card", "kv_dtype"])
    behind_xqa = {pace: (step[pace].unstack("backend")[FA3] / step[pace].unstack("backend")[XQA] - 1) for pace in PACES}
    ahead = alone[FA3] / alone[XQA] - 1
    alone_drafts, lasting = (of.xs(4, level="s_qo").item() for of in (-ahead, behind_xqa[BACK_TO_BACK]))
    return checked(
        f"Against times alone ranks do turn: in rows of the second card FlashAttention-3 is ahead of XQA at all three shapes, and in steps behind it."
        f" With 4 query tokens it is {alone_drafts:.0%} ahead alone, and its step takes {lasting:.0%} longer without pause.",
        (ahead < 0).all() and len(ahead) == 3,
        all((of > 0).all() for of in behind_xqa.values()),
    )


def pointer() -> str:
    """What findings about short blocks say of this one."""
    step = at(measured("us")[STEP], card=SECOND, kv_dtype="bf16", s_qo=4)[BACK_TO_BACK].unstack("backend")
    ((batch, s_kv),) = zip(*(step.index.get_level_values(name) for name in SHAPE[:2]), strict=True)
    return (
        "These are times in short blocks. Under [sustained load](#does-attention-cost-more-under-sustained-load)"
        f" a step with FlashAttention-3 took {(step[FA3] / step[XQA] - 1).item():.0%} longer than with XQA."
        f" That was over a bf16 cache on an H200, at the only shape with drafts ({batch} x {s_kv:,}, 4 query tokens)."
    )


def of_drafts() -> str:
    """Four query tokens over a bf16 cache, where the rows of the card name another kernel than its steps."""
    drafts, of_copy = (at(measured("us")[load], kv_dtype="bf16", s_qo=4) for load in (STEP, COPY))
    more, copy = growth(drafts).unstack("backend"), growth(of_copy)
    step = drafts.xs((SECOND, 64, 32768), level=["card", *SHAPE[:2]]).droplevel(["kv_dtype", "s_qo"])
    alone = rows(sustained_rows.ROWS).query("batch_size == 64 and s_kv == 32768 and s_qo == 4").set_index("backend")["own_us"]
    ahead = step.loc[FA3] / step.loc[XQA] - 1
    return checked(
        f"With 4 query tokens the rest of the step grows too, by {span(copy, '{:.0%}')} beside the copy, so we compare whole steps."
        f" They grow by {span(more[FA3], '{:.0%}')} with FlashAttention-3, by {span(more[FA2_TC], '{:.0%}')} with `fa2_tc`, and by {more[XQA].max():.0%} with XQA."
        f"\nAlone, in rows of the second card, XQA takes {alone[XQA] / alone[FA3] - 1:.1%} longer than FlashAttention-3 there."
        f" But steps with FlashAttention-3 take longer than those with XQA, by {ahead[IN_BURSTS]:.1%} in bursts and {ahead[BACK_TO_BACK]:.1%} without pause.",
        more.min().min() > 0.1,
        alone.idxmin() == FA3,
        (step.idxmin() == XQA).all(),
    )


def of_fp8() -> str:
    """One query token over an FP8 cache."""
    cost = at(costs(), kv_dtype=FP8, s_qo=1)
    more = growth(cost).unstack("backend")
    wide = {pace: cost[pace].unstack("backend") for pace in PACES}
    burst, back = wide[IN_BURSTS], wide[BACK_TO_BACK]
    alone = growth(at(measured("us")[ALL], kv_dtype=FP8, backend=XQA))
    return checked(
        f"Over an FP8 cache with one query token XQA costs at most {more[XQA].max():.1%} more, FlashAttention-3 with FP8 queries {more[FA3].min():.0%} to {more[FA3].max():.0%}, and `fa2_tc` {more[FA2_TC].min():.0%} to {more[FA2_TC].max():.0%}."
        f"\nFlashAttention-3 falls behind `fa2_tc`, the only rank that turns in steps: `fa2_tc` takes {span(burst[FA2_TC] / burst[FA3])} times its time in bursts, and {span(back[FA2_TC] / back[FA3])} times without pause."
        f"\nXQA stays first: FlashAttention-3 takes {span(burst[FA3] / burst[XQA])} times its time in bursts, and {span(back[FA3] / back[XQA])} times without pause."
        f"\nXQA's calls in a row, with 1 or 4 query tokens, take the same time in both paces within {alone.abs().max():.1%}.",
        (burst[XQA] < burst[FA3]).all() and (burst[FA3] < burst[FA2_TC]).all(),
        (back[XQA] < back[FA2_TC]).all() and (back[FA2_TC] < back[FA3]).all(),
        alone.abs().max() < 0.005,
    )


def of_fp8_drafts() -> str:
    """Four query tokens over an FP8 cache, in whole steps."""
    step = at(measured("us")[STEP], kv_dtype=FP8, s_qo=4)
    more = growth(step).unstack("backend").iloc[0]
    burst, back = (step[pace].unstack("backend").iloc[0] for pace in PACES)
    return checked(
        f"With 4 query tokens over an FP8 cache whole steps grow by {more[FA3]:.0%} with FlashAttention-3, {more[XQA]:.0%} with XQA and {more[FA2_TC]:.0%} with `fa2_tc`."
        f" FlashAttention-3 stays first, but XQA's step takes {burst[XQA] / burst[FA3]:.2f} times as long in bursts, and {back[XQA] / back[FA3]:.2f} times without pause.",
        same_ranks(step) and same_ranks(at(costs(), kv_dtype=FP8, s_qo=4)),
        burst.idxmin() == FA3,
    )

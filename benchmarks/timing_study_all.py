"""The study of benchmarks/timing_study.py over all shapes of the main sweep, once its datasets are there.

Every table is empty without `results/CARD_study_all_in_step`. The others, `..._dirty`, `..._cold_code` and `..._cupti`, may be
missing or have a part of the points: each is compared with the steps at the points that both have.
On H200s all but the clean times of the steps' own runs are of other cards than the steps, so their errors include what differs
between cards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pandas as pd

from benchmarks import timing_study
from benchmarks.rows import frame_of
from benchmarks.timing_study import (
    AHEAD,
    ALL,
    DEFAULT_OF_ALL,
    OF_ALL,
    ON_CARD,
    POINT,
    RESULTS,
    SHORT_US,
    ok_rows,
    own_us,
    settings_of,
    times,
    wrong_choices,
)
from orchestrator.tables import Grid

CARD = "h100"
SHOWN = 30  # lines of a table that has one for each point
NONE = Grid("", (), ())
PAIRS = (  # settings of H200s: what the card changes, what it and cold code change, and what dirty lines change on one card
    (DEFAULT_OF_ALL, "clean, on another card"),
    ("clean, on another card", "clean, cold code, on another card"),
    ("clean, cold code, on another card", "dirty, on another card"),
)
WARM = "h200_target_verify_fp8_queries"  # clean lines and warm code of the card of the last of `PAIRS`, of one kernel
ON_THAT_CARD = "clean, on that card, one kernel"


def is_there(card: str = CARD) -> bool:
    return timing_study.is_there(f"{card}_{OF_ALL[card][DEFAULT_OF_ALL]}")


def settings(card: str = CARD) -> Grid:
    """`timing_study.settings`."""
    if not is_there(card):
        return NONE
    found = timing_study.settings(card + ALL)
    measured = [name for name in ON_CARD if any(cells[0] == name for cells in found.cells)]
    restricted = "; dirty lines and cold code at the points of the step's own card" if measured else ""
    return replace(found, title=f"Five backends at the shapes of the main sweep{restricted}")


def one_card(card: str = CARD) -> Grid:
    """The same at the points that one card measured in all settings of `ON_CARD`, and in the step."""
    if not is_there(card):
        return NONE
    shared = times(card + ALL).dropna(subset=[name for name in ON_CARD if name in times(card + ALL)])
    names = (*ON_CARD, DEFAULT_OF_ALL)
    cells = tuple(cell for cell in timing_study.settings_at(shared) if cell[0] in names)
    return Grid("At the points that one card measured in each of these", timing_study.SETTINGS_HEADER, cells)


def shared(card: str = CARD) -> Grid:
    """The same at the points that have every setting."""
    if not is_there(card):
        return NONE
    cells = timing_study.settings_at(times(card + ALL).dropna())
    return Grid("At the points that have all of these", timing_study.SETTINGS_HEADER, tuple(cells))


def cards_apart() -> Grid:
    """How far settings of H200s are apart at the points that have them, in µs and as a part of the first: `PAIRS`, and `WARM`."""
    if not is_there("h200"):
        return NONE
    us = times("h200" + ALL)
    card = {name: ok_rows(f"h200_{of}")["device_uuid"].reindex(us.index) for name, of in OF_ALL["h200"].items()}
    full, cells = us.dropna(), []
    for first, second in PAIRS:
        shares = card[first].eq(card[second])[full.index].mean()  # of the points, those of one card
        is_one = {1.0: "yes", 0.0: "no"}.get(shares, f"{shares:.0%}")
        cells += _apart(f"{second} − {first}", is_one, full[first], full[second], full["step"])
    warm = warm_us()
    for name in PAIRS[-1]:
        cells += _apart(f"{name} − {ON_THAT_CARD}", "yes", warm, us[name][warm.index], us["step"][warm.index])
    header = (
        "isolated settings",
        "one card",
        "cost in the step",
        "points",
        "median, µs",
        "median",
        "median size",
        "90% of the points",
    )
    return Grid("How far isolated times are apart", header, tuple(cells))


def warm_us() -> pd.Series:
    """Times of `WARM` by point, at the points of the main sweep."""
    ok = frame_of(RESULTS / WARM).query("status == 'ok' and kv_layout == 'HND' and page_order == 'random' and page_size == 64")
    found = own_us(ok.set_index(POINT, verify_integrity=True))
    return found[found.index.isin(ok_rows("h200_study_all_dirty").index)]


def _apart(name: str, is_one: str, first: pd.Series, second: pd.Series, step: pd.Series) -> list[tuple[str, ...]]:
    """A line for short calls, and one for the others."""
    lines = []
    for says, part in ((f"below {SHORT_US:g} µs", step < SHORT_US), (f"{SHORT_US:g} µs and more", step >= SHORT_US)):
        difference = (second - first)[part]
        rel = difference / first[part]
        low, high = rel.quantile([0.05, 0.95])
        median, size = (f"{of.median():+.2%}" for of in (rel, rel.abs()))
        lines.append(
            (name, is_one, says, str(len(rel)), f"{difference.median():+.2f}", median, size[1:], f"{low:+.1%} to {high:+.1%}")
        )
    return lines


def by_kernel(card: str = CARD) -> Grid:
    """`timing_study.by_kernel`."""
    title = "Five backends, over clean lines, by kernel"
    return replace(timing_study.by_kernel(card=card + ALL), title=title) if is_there(card) else NONE


def other_choices(card: str = CARD, setting: str | None = None) -> Grid:
    """`timing_study.other_choices`."""
    return _first("Shapes where another backend is best in the step", partial(timing_study.other_choices, setting), card)


def misses(card: str = CARD) -> Grid:
    """`timing_study.misses`."""
    return _first("Points that are far off", timing_study.misses, card)


def _first(title: str, table: Callable[..., Grid], card: str) -> Grid:
    if not is_there(card):
        return NONE
    every = table(card=card + ALL)
    shown = f"the worst {SHOWN} of {len(every.cells)}" if len(every.cells) > SHOWN else "all"
    return replace(every, title=f"{title}, {shown}", cells=every.cells[:SHOWN])


def by_shape(card: str = CARD) -> Grid:
    """By batch and context: the median size of each setting's error, and at how many shapes its choice is another one."""
    if not is_there(card):
        return NONE
    us = times(card + ALL)
    names, cells = settings_of(us), []
    for (batch, s_kv), part in us.groupby(["batch_size", "s_kv"]):
        errors = (_error(part, name) for name in names)
        others = (_others(part, name) for name in names)
        capped = f"{part['capped'].mean():.0%}"
        cells.append((f"{batch} x {s_kv:,}", str(len(part)), f"{part['step'].median():.0f}", *errors, *others, capped))
    title = (
        f"By batch and context: the median size of the error, and shapes where the choice costs over {AHEAD:.0%} more in the step"
    )
    header = (*(f"error, {name}" for name in names), *(f"other choice, {name}" for name in names))
    return Grid(title, ("batch x s_kv", "points", "median cost, µs", *header, "at the power cap"), tuple(cells))


def _error(part: pd.DataFrame, setting: str) -> str:
    """The median size of the error in µs, and as a part of the cost."""
    size = (part[setting] - part["step"]).abs().dropna()
    return f"{size.median():.1f} µs ({(size / part['step']).median():.1%})" if len(size) else "–"


def _others(part: pd.DataFrame, setting: str) -> str:
    """At how many shapes of those with two candidates or more the choice is another one, and what the worst costs."""
    loss = wrong_choices(part.dropna(subset=[setting]), setting)
    if not len(loss):
        return "–"
    worst = f", {loss.max():.0%}" if (loss > AHEAD).any() else ""
    return f"{int((loss > AHEAD).sum())} of {len(loss)}{worst}"

"""Rows of a committed dataset as frames, and frames as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import pandas as pd

from benchmarks.rows import RESULTS, path_of
from orchestrator.analysis.dataset import open_dataset
from orchestrator.analysis.names import of_references, shown
from orchestrator.tables import Grid, markdown

FA3 = "flash_attn_3"  # with this prefix: ways to call one kernel
SAME = 0.02  # times closer than this are called the same


def folder_of(dataset: str) -> str:
    """A dataset by its path in results/: of an H200, if the name has no card."""
    card = "" if dataset.startswith(("h100_", "h200_")) else "h200_"
    return str(path_of(f"{card}{dataset}").relative_to(RESULTS).with_suffix(""))


@cache
def states(dataset: str) -> tuple[str, ...]:
    """The states of the L2 that a dataset was measured over."""
    return tuple(sorted(rows(dataset)["l2"].dropna().unique()))


@cache
def rows(dataset: str) -> pd.DataFrame:
    """The `ok` rows of a committed dataset, with `kernel` (routine and backend), `group` (query heads a KV head) and `own_us`.

    `own_us` is the median without the launch of the graph, of which an engine pays one for a whole step.
    """
    return _timed(open_dataset(RESULTS / folder_of(dataset)).current())


@cache
def every_row(dataset: str) -> pd.DataFrame:
    """The same with the older rows of points that a later run measured again, such as with another torch."""
    return _timed(open_dataset(RESULTS / folder_of(dataset)).every_row())


def _timed(table: pd.DataFrame) -> pd.DataFrame:
    ok = table[table["status"] == "ok"]
    launch = ok["launch_us"].where(ok["timer"] == "cuda_graph_events", 0.0).fillna(0.0)
    short = ok["routine"].str.removeprefix("paged_")
    return ok.assign(
        kernel=short + " " + ok["backend"],
        group=ok["num_qo_heads"] // ok["num_kv_heads"],
        own_us=ok["median_us"] - launch,
        family=ok["backend"].where(~ok["backend"].str.startswith(FA3), FA3),
    )


def choices(ok: pd.DataFrame) -> pd.DataFrame:
    """Without references, and without `auto`, which runs a kernel that a named backend runs too."""
    return ok[~ok["backend"].str.contains(of_references()) & (ok["backend"] != "auto")]


def of_best(ok: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Rows of backends that an engine can take, with `ratio`: time over the fastest one's of the same `key`."""
    able = ok[~ok["backend"].str.contains(of_references())]
    return able.assign(ratio=able["own_us"] / able.groupby(key, dropna=False)["own_us"].transform("min"))


def winners(ok: pd.DataFrame, key: list[str], who: str = "family") -> pd.DataFrame:
    """By `key`: the fastest of `who`, its `own_us` and `rel_err`, and `ahead`, how much longer the next of another `who` takes.

    Of equal times the first name counts, so that the answer does not depend on how a machine sorts.
    """
    order = ["own_us", who, "kernel"]
    best = choices(ok).sort_values(order).groupby([*key, who], dropna=False, observed=True).first().reset_index()
    ranked = best.sort_values(order).groupby(key, dropna=False, observed=True)
    first, second = ranked.nth(0).set_index(key), ranked.nth(1).set_index(key)
    return first.assign(ahead=second["own_us"] / first["own_us"] - 1)


def keeping(there: pd.DataFrame, here: pd.DataFrame) -> pd.Series:
    """By shape: the time here of the column that is the fastest there, in times of the fastest here. Shapes are in the index."""
    taken = there.idxmin(axis=1)
    return pd.Series([here.loc[at, name] for at, name in taken.items()], index=taken.index) / here.min(axis=1)


def steady(ok: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Without the problems at which the power cap held a kernel's clocks down until its sampling ended: all kernels of these go."""
    return ok[~(ok["stop_reason"] == "throttled").groupby([ok[name] for name in key]).transform("any")]


def one_card(ok: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Without the problems whose kernels ran on two cards: all kernels of these go, because ratios are taken within one run."""
    return ok[ok["device_uuid"].groupby([ok[name] for name in key]).transform("nunique") == 1]


def tally(names: pd.Series) -> str:
    """`flash_attn_3 at 12, fa2_tc at 4`, most first."""
    counts = sorted(names.value_counts().items(), key=lambda pair: (-pair[1], str(pair[0])))
    return ", ".join(f"{shown(str(name))} at {count}" for name, count in counts)


def span(values: Iterable[float], form: str = "{:.2f}") -> str:
    """`1.30 to 3.80`; one figure if both ends read alike."""
    found = [value for value in values if not pd.isna(value)]
    least, most = form.format(min(found)), form.format(max(found))
    return least if least == most else f"{least} to {most}"


def named(text: object) -> str:
    """A cell, with the library if it ends in a name that could be another library's."""
    rest, _, last = str(text).rpartition(" ")
    return f"{rest} {shown(last)}".strip()


def grid_of(title: str, frame: pd.DataFrame, form: str = "{:,.1f}") -> Grid:
    """A pivoted frame; a dash for what was not measured."""
    header = (
        *map(str, frame.index.names),
        *(f"{frame.columns.name} {c:,}" if isinstance(c, int) else named(c) for c in frame.columns),
    )
    cells = [
        (*map(named, at if isinstance(at, tuple) else (at,)), *("–" if pd.isna(v) else form.format(v) for v in values))
        for at, values in zip(frame.index, frame.to_numpy(), strict=True)
    ]
    return Grid(title, header, tuple(cells))


def table_of(title: str, frame: pd.DataFrame, form: str = "{:,.1f}") -> str:
    return markdown([grid_of(title, frame, form)])


def ratio_grid(title: str, ok: pd.DataFrame, by: list[str]) -> Grid:
    """`ratio` by `by`: how many points, median, least, most."""
    cells = [
        (*map(named, keys), str(len(r)), f"{r.median():.2f}", f"{r.min():.2f}", f"{r.max():.2f}")
        for keys, r in ok.groupby(by, sort=True)["ratio"]
    ]
    return Grid(title, (*by, "points", "median", "least", "most"), tuple(cells))

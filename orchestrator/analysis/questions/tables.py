"""Answers as tables for a person: how they are split and titled, and how much of them is shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from math import isnan
from typing import Any, get_args

from kernels.timing.caches import L2State
from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.keys import GRID_AXES, PROBLEM_KEYS
from orchestrator.analysis.names import shown
from orchestrator.analysis.rough import mark
from orchestrator.grouped import grouped
from orchestrator.tables import Grid

TITLE_KEYS = ("device_name", "model", "q_dtype", "kv_dtype", "l2")  # each combination gets a table; so do other keys that vary
# Kinds of workloads in words, for a key that not all of them have.
KINDS: dict[str, dict[Any, str]] = {"min_s_qo": {None: "one query length", 1: "drawn query lengths"}, "window": {None: "no window"}}
TWICE = 2  # from this many times the time on, nobody reads percents
MAX_SHOWN = 5_000  # fetched for a terminal: nobody reads more, and DuckDB has them all


def fetch(
    data: Dataset, view: str, names: Sequence[str] = TITLE_KEYS, axes: Sequence[str] = GRID_AXES, where: str = "true"
) -> list[Record]:
    """The first `MAX_SHOWN` rows of an answer, in the order in which the tables show them."""
    order = ", ".join(dict.fromkeys((*names, *axes)))
    return data.records(f"SELECT * FROM {view} WHERE {where} ORDER BY {order} LIMIT {MAX_SHOWN}")


def varying_keys(records: Sequence[Record], shown: Sequence[str]) -> list[str]:
    """The keys of a problem that vary, without those that the other keys determine, as `q_dtype` does `out_dtype`."""
    if not records:
        return []
    found = [k for k in PROBLEM_KEYS if k in records[0] and k not in shown and len({r[k] for r in records}) > 1]
    for key in reversed(found):
        others = [*shown, *(k for k in found if k != key)]
        values: dict[tuple[Any, ...], set[Any]] = defaultdict(set)
        for record in records:
            values[tuple(record[k] for k in others)].add(record[key])
        if max(map(len, values.values())) == 1:
            found.remove(key)
    return found


def group_by(records: Sequence[Record], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Record]]:
    """Records by the values of some keys, sorted by these; None comes last."""
    parts = grouped((tuple(record[k] for k in keys), record) for record in records)
    return dict(sorted(parts.items(), key=lambda part: [(v is None, v) for v in part[0]]))


def split_by_title(
    records: Sequence[Record], down: Sequence[str], names: Sequence[str] = TITLE_KEYS
) -> Iterator[tuple[str, list[Record]]]:
    """The parts of an answer that become a table each, by title: `llama_3_1_70b · q bf16, kv bf16 · clean L2 · NVIDIA H200`."""
    extra = varying_keys(records, (*names, *down))
    for values, part in group_by(records, [*names, *extra]).items():
        key = dict(zip(names, values, strict=False))
        dtypes = ", ".join(f"{name} {of}" for name in ("q", "kv") if (of := key.get(f"{name}_dtype")))
        others = (KINDS.get(k, {None: ""}).get(v, f"{k} {v}") for k, v in zip(extra, values[len(names) :], strict=True))
        state = None if part[0].get("context") == "step" else l2_words(key.get("l2"))  # a step leaves the L2 as it does
        pace = "without pause" if part[0].get("pace") == "sustained" and "pace" not in extra else None
        share = f"tp {key['tp']}" if key.get("tp") else None
        yield " · ".join(filter(None, (key["model"], share, dtypes, *others, state, pace, key["device_name"]))), part


def l2_words(l2: str | None) -> str | None:
    """The state of the L2 before each sample, for a title; None if there was no choice, as on a CPU."""
    return f"{l2} L2" if l2 in get_args(L2State) else None


def across_contexts(
    title: str,
    records: Sequence[Record],
    cell: Callable[[Record], str],
    down: Sequence[str] = ("s_qo", "batch_size"),
    last: tuple[str, Callable[[list[Record]], str]] | None = None,
) -> Grid:
    """A table of `cell`s: a line for each value of `down`, a column for each context, and `last`, a header and its text."""
    itself = "s_qo" in down and all(r["s_kv"] == r["s_qo"] for r in records)  # there is no cache before the queries
    contexts = {s_kv: "s_kv = s_qo" if itself else f"s_kv {s_kv:,}" for s_kv in sorted({r["s_kv"] for r in records})}
    heads, cells = dict.fromkeys(contexts.values()), []
    for values, row in group_by(records, down).items():
        by_context = {contexts[r["s_kv"]]: cell(r) for r in reversed(row)}
        cells.append((*map(str, values), *(by_context.get(head, "–") for head in heads), *([last[1](row)] if last else ())))
    header = (*(key.removesuffix("_size") for key in down), *heads, *((last[0],) if last else ()))
    return Grid(title, header, tuple(cells))


def spread(count: int, most: int) -> list[int]:
    """At most so many of `count` numbers from 0 on, the first and the last among them."""
    return list(range(count)) if count <= most else [round(i * (count - 1) / (most - 1)) for i in range(most)]


def formatted(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], form: str = "") -> Grid:
    """The table of a query: a column such as `gain|.2f` has the form of Python behind the bar, `form` that of other fractions."""
    named = [column.partition("|") for column in columns]
    cells = (
        tuple(in_form(v, own or (form if isinstance(v, float) else "")) for v, (_, _, own) in zip(row, named, strict=True))
        for row in rows
    )
    return Grid(title, tuple(name for name, *_ in named), tuple(cells))


def in_form(value: Any, form: str = "") -> str:
    """A value for people; a number in the form that was asked for, else with three digits or more."""
    value = float(value) if isinstance(value, Decimal) else value
    if value is None or (isinstance(value, float) and isnan(value)):
        return "–"
    if isinstance(value, str):
        return value if " " in value or form else shown(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and (form or isinstance(value, int)):
        return format(value, form or ",")
    return str(value) if not isinstance(value, float) else f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def describe_point(record: Record) -> str:
    """A single point in few words: routine, lengths, dtypes and window."""
    dtypes = record["q_dtype"] if record["q_dtype"] == record["kv_dtype"] else f"{record['q_dtype']} over {record['kv_dtype']}"
    lengths = f"batch {record['batch_size']}, s_kv {record['s_kv']:,}, s_qo {record['s_qo']}"
    return f"{record['routine']} {lengths}, {dtypes}" + (f", window {window:,}" if (window := record.get("window")) else "")


def times(*ratios: float, than: str = "", form: str = ".1%") -> str:
    """How much time of another's: `5.0% less time`, `25.0% to 70.0% more time`, from twice on `3.1 times as long`."""
    ends, large = (min(ratios), max(ratios)), max(ratios) >= TWICE
    told = " to ".join(dict.fromkeys(f"{one:.3g}" if large else f"{abs(one - 1):{form}}" for one in ends))
    kind, link = ("times as long", "as") if large else (f"{'more' if ends[1] > 1 else 'less'} time", "than")
    return f"{told} {kind}{f' {link} {than}' * bool(than)}"


def span(parts: Sequence[float], told: Callable[[float], str] = "{:.0%}".format) -> str:
    """`8% to 12%`, or the only value."""
    return " to ".join(dict.fromkeys(map(told, (min(parts), max(parts)))))


def percent(part: float) -> str:
    """A share as `0.4%` or `12%`."""
    return f"{part:.1%}" if abs(part) < 0.1 else f"{part:.0%}"


def lead(part: float, sign: str, *rough: bool | None) -> str:
    """How much longer another takes: `+~3.1%`, or `~5.9×` as long from twice on. `rough`: of the times behind it."""
    longer = f"{1 + part:,.{1 if part < 9 else 0}f}×" if part >= TWICE - 1 else percent(part)
    return f"{sign * (part < TWICE - 1)}{mark(*rough)}{longer}"

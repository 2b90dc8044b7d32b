"""The tables of question=odd: which points are missing or odd."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset, again
from orchestrator.analysis.keys import PROBLEM_KEYS
from orchestrator.analysis.names import shown
from orchestrator.analysis.questions import SPIKE
from orchestrator.analysis.questions.tables import describe_point
from orchestrator.analysis.sql import query
from orchestrator.point import Point
from orchestrator.tables import Grid

NEEDS = "a row"

POINT_KEYS = 'routine, model, tp, q_dtype, kv_dtype, "window"'  # that a list shows beside the workload
OF_POINTS = {*PROBLEM_KEYS, "model", "tp", "backend", "num_splits", "sweep"}  # a `where` of others hides rows of points that ran
# By the view of each kind: what it is, and in few words.
KINDS = {
    "bad": ("mismatch, failed, timeout or oom", "bad"),
    "holes": ("never run: no row at a point of the grid of batch, s_qo and s_kv of its family and backend", "never run"),
    "over_limit": ("rate above this device's measured ceiling or its datasheet", "above the physical limit"),
    "spikes": (f"more than {SPIKE - 1:.0%} off the line between its neighbours on every axis", "spikes"),
    "pad_up": ("more query tokens cost less, beyond noise: pad the draft", "cheaper with more query tokens"),
}


def grids(data: Dataset) -> list[Grid]:
    """The number of points of each kind, then lists: bad points, points that never ran, impossible rates, spikes."""
    names, counts = {view: words for view, (words, _) in KINDS.items()}, count_by_kind(data)
    if data.points is not None:
        names["holes"] = "never run: points of the sweep without a row"
    elif "holes" not in counts:
        hides = ", ".join(sorted(data.where.keys() - OF_POINTS))
        names["holes"] = f"never run: not known, as where={{{hides}}} may hide their rows; leave it out"
    cells = tuple((words, f"{counts[view]:,}" if view in counts else "–") for view, words in names.items())
    over = data.records("FROM over_limit ORDER BY frac DESC, row")
    timed = [_timed(data, "above the physical limit", "of the limit", "frac", over)]
    timed += [_timed(data, "spikes", "times the line", "times", data.records(query("spikes", keys=POINT_KEYS)))]
    lists = [_bad(data), *[_never(data, data.points)] * ("holes" in counts), *timed]
    return [Grid("missing or odd", ("what", "points"), cells), *(grid for grid in lists if grid.cells)]


def count_by_kind(data: Dataset) -> dict[str, int]:
    """The number of points of each kind that is known, by its view."""
    known = [view for view in KINDS if view != "holes" or data.where.keys() <= OF_POINTS]
    counts = {view: int(data.scalar(f"SELECT count(*) FROM {view}")) for view in known}
    return counts if data.points is None else {**counts, "holes": len(never_run(data, data.points))}


def never_run(data: Dataset, points: Sequence[Point]) -> list[Point]:
    """Points of a sweep that have no row on any device."""
    ran = {point_id for (point_id,) in data.execute("SELECT DISTINCT point_id FROM current")}
    return [point for point in points if point.point_id not in ran]


def _bad(data: Dataset) -> Grid:
    records = data.records("FROM bad ORDER BY status, row")
    cells = [(r["status"], shown(r["backend"], r["kernel"]), describe_point(r), r["reason"] or "", again(data, r)) for r in records]
    return Grid("wrong, failed, hung, out of memory", ("status", "backend", "point", "reason", "again"), tuple(cells))


def _timed(data: Dataset, title: str, what: str, column: str, records: Sequence[Record]) -> Grid:
    cells = [
        (f"{r[column]:.2f}", shown(r["backend"], r["kernel"]), f"{r['median_us']:,.1f}", describe_point(r), again(data, r))
        for r in records
    ]
    return Grid(title, (what, "backend", "µs", "point", "again"), tuple(cells))


def _never(data: Dataset, points: Sequence[Point] | None) -> Grid:
    if points is not None:
        missing = never_run(data, points)
        cells = [(shown(p.backend), describe_point(p.problem.model_dump()), p.point_id) for p in missing]
        return Grid("never run", ("backend", "point", "point_id"), tuple(cells))
    family_keys = ", ".join(f"any_value({key}) AS {key}" for key in POINT_KEYS.split(", "))
    records = data.records(query("holes_of_families", keys=POINT_KEYS, family_keys=family_keys))
    lines = ((shown(r["backend"]), r["model"] or "–", str(r["tp"] or "–"), describe_point(r)) for r in records)
    return Grid("never run", ("backend", "model", "tp", "point"), tuple(lines))


def summary(data: Dataset) -> str | None:
    counts = count_by_kind(data)
    return ", ".join(f"{counts[view]:,} {words}" for view, (_, words) in KINDS.items() if counts.get(view)) or None

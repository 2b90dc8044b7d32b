"""Question 7 on a terminal: what is missing or odd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.dataset import Dataset, Record
from orchestrator.grid import Grid
from orchestrator.questions import SPIKE
from orchestrator.questions.tables import at

if TYPE_CHECKING:
    from orchestrator.sweep import Point

LISTED = 10
KEYS = "routine, model, q_dtype, kv_dtype"


def grids(data: Dataset, points: Sequence[Point] | None = None) -> list[Grid]:
    """Bad points with their commands, points that never ran, rates above the limit, spikes; what there is none of says so."""
    data.con.execute("CREATE OR REPLACE TEMP TABLE found_spikes AS FROM spikes")  # the dearest query of all, counted and listed
    counts = count(data, points, spikes="found_spikes")
    names = {
        "bad": "mismatch, failed, timeout or oom",
        "never": "never run: points of the sweep without a row"
        if points is not None
        else "never run: no row at a point of the grid of batch, s_qo and s_kv of its family and backend",
        "over_limit": "rate above this device's measured ceiling or its datasheet",
        "spikes": f"more than {SPIKE - 1:.0%} off the line between its neighbours on every axis",
    }
    summary = Grid("missing or odd", ("what", "points"), tuple((words, f"{counts[k]:,}") for k, words in names.items()))
    lists = [_bad(data), _never(data, points), _over_limit(data), _spikes(data)]
    return [summary, *(grid for grid in lists if grid.cells)]


def count(data: Dataset, points: Sequence[Point] | None = None, spikes: str = "spikes") -> dict[str, int]:
    """How many points of each kind."""
    found = {"bad": "bad", "never": "holes", "over_limit": "over_limit", "spikes": spikes}
    counts = {kind: int(data.one(f"SELECT count(*) FROM {view}")) for kind, view in found.items()}
    return counts if points is None else {**counts, "never": len(never_run(data, points))}


def never_run(data: Dataset, points: Sequence[Point]) -> list[Point]:
    """Points of a sweep that have no row, on no device."""
    ran = {point_id for (point_id,) in data.con.execute("SELECT DISTINCT point_id FROM current").fetchall()}
    return [point for point in points if point.point_id not in ran]


def _bad(data: Dataset) -> Grid:
    records = data.records(f"FROM bad ORDER BY status, row LIMIT {LISTED}")
    cells = [(r["status"], r["backend"], at(r), r["reason"] or "", r["command"] or "–") for r in records]
    return Grid("wrong, failed, hung, out of memory", ("status", "backend", "point", "reason", "again"), tuple(cells))


def _never(data: Dataset, points: Sequence[Point] | None) -> Grid:
    if points is not None:
        missing = never_run(data, points)[:LISTED]
        cells = [(p.backend, at(p.problem.model_dump()), p.point_id) for p in missing]
        return Grid("never run", ("backend", "point", "point_id"), tuple(cells))
    any_of_family = ", ".join(f"any_value({key}) AS {key}" for key in KEYS.split(", "))
    records = data.records(f"""
        SELECT backend, {KEYS}, holes.batch_size, holes.s_qo, holes.s_kv
        FROM (FROM holes ORDER BY ALL LIMIT {LISTED}) AS holes
        JOIN (SELECT family, {any_of_family} FROM problems GROUP BY family) USING (family)
        ORDER BY ALL""")
    return Grid("never run", ("backend", "model", "point"), tuple((r["backend"], r["model"] or "–", at(r)) for r in records))


def _over_limit(data: Dataset) -> Grid:
    records = data.records(f"FROM over_limit ORDER BY frac DESC, row LIMIT {LISTED}")
    cells = [(f"{r['frac']:.2f}", r["backend"], f"{r['median_us']:,.1f}", at(r), r["command"] or "–") for r in records]
    return Grid("above the physical limit", ("of the limit", "backend", "µs", "point", "again"), tuple(cells))


def _spikes(data: Dataset) -> Grid:
    records = data.records(f"""
        SELECT spikes.*, {KEYS}, command
        FROM (FROM found_spikes ORDER BY abs(ln(times)) DESC, row LIMIT {LISTED}) AS spikes
        JOIN (SELECT row, {KEYS}, command FROM rows) USING (row) ORDER BY abs(ln(times)) DESC, row""")
    return Grid("spikes", ("times the line", "backend", "µs", "point", "again"), tuple(map(_spike, records)))


def _spike(r: Record) -> tuple[str, ...]:
    return (f"{r['times']:.2f}", r["backend"], f"{r['median_us']:,.1f}", at(r), r["command"] or "–")


def short(data: Dataset) -> str | None:
    """Counts of each kind, where there is any."""
    found = count(data)
    words = {"bad": "bad", "never": "never run", "over_limit": "above the physical limit", "spikes": "spikes"}
    return ", ".join(f"{found[k]:,} {word}" for k, word in words.items() if found[k]) or None

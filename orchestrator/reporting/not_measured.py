"""Values that a sweep asks for and no row of a dataset has: then the answers are about other points than those that were typed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from orchestrator.analysis.dataset import Dataset
from orchestrator.point import Point
from orchestrator.tables import Grid

AXES = ("tp", "batch_size", "s_kv", "s_qo", "page_size")  # fields of a problem that are a column of the same name
MAX_SHOWN = 8


def grids(data: Dataset, points: Sequence[Point]) -> list[Grid]:
    """A table with a line for each axis of which the rows have no value that the sweep's points have; no table if there is none."""
    asked: dict[str, set[object]] = {axis: {getattr(point.problem, axis) for point in points} for axis in AXES}
    asked["backend"] = {point.backend for point in points}
    cells = []
    for axis, values in asked.items():
        there = [record["value"] for record in data.records(f"SELECT DISTINCT {axis} AS value FROM rows ORDER BY 1")]
        if values and values.isdisjoint(there):
            cells.append((f"sweep.{axis}", _listed(sorted(values, key=str)), _listed(there)))
    title = "not measured: no row has what the sweep asks for, so the tables are about others; to measure, leave out mode=report"
    return [Grid(title, ("axis", "asked for", "the rows have"), tuple(cells))] if cells else []


def _listed(values: Collection[object]) -> str:
    rest = f" and {len(values) - MAX_SHOWN} more" if len(values) > MAX_SHOWN else ""
    return ", ".join(str(value) for value in list(values)[:MAX_SHOWN]) + rest

"""How the times of a dataset were taken: the timer, the state of the caches, and what the launch of a graph takes of each."""

from __future__ import annotations

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.sql import query
from orchestrator.tables import Grid


def records(data: Dataset) -> list[Record]:
    """One record for each device and way of timing, with its number of `ok` points. `share_us`: what is taken off, or null."""
    return data.records(query("how_timed"))


def grids(data: Dataset) -> list[Grid]:
    """One table; none if no point is ok."""
    found = records(data)
    header = ("device", "timer", "L2 before each sample", "instruction caches", "points", "launch of a graph, µs")
    keys = ("device_name", "timer", "l2", "icache")
    cells = [(*(str(r[key] or "–") for key in keys), f"{r['points']:,}", r["share_us"] or "–") for r in found]
    title = "how times were taken; ratios of times are without the launch, fractions of a ceiling with it (docs/timing.md)"
    return [Grid(title, header, tuple(cells))] if found else []


def sentences(data: Dataset) -> list[str]:
    return [
        f"{r['points']:,} points on {r['device_name']}: timer {r['timer'] or 'unknown'}, L2 {r['l2'] or 'unknown'}, "
        f"instruction caches {r['icache'] or 'unknown'}"
        + ("" if r["share_us"] is None else f"; ratios are of times without the launch of a graph, {r['share_us']} µs")
        for r in records(data)
    ]

"""How the times of a dataset were taken: the timer, the state of the caches, and what the launch of a graph takes of each."""

from __future__ import annotations

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.tables import Grid


def records(data: Dataset) -> list[Record]:
    """One record for each device and way of timing, with its number of `ok` points. `share_us`: what is taken off, or null."""
    return data.records("""
        SELECT device_name, coalesce(context, 'isolated') AS context,
               timer || if(pace = 'sustained', ', without pause', '') AS timer, icache, count(*) AS points,
               CASE WHEN context = 'step' THEN 'as the step leaves it' ELSE l2 END AS l2,
               nullif(array_to_string(list_sort(list(DISTINCT format('{:.1f}', median_us - own_us))
                      FILTER (coalesce(context, 'isolated') = 'isolated' AND own_us < median_us)), ' and '), '') AS share_us
        FROM timed
        WHERE status = 'ok'
        GROUP BY ALL
        ORDER BY ALL""")


def grids(data: Dataset) -> list[Grid]:
    """One table; none if no point is ok."""
    found = records(data)
    header = ("device", "timer", "L2 before each sample", "instruction caches", "points", "launch of a graph, µs")
    keys = ("device_name", "timer", "l2", "icache")
    cells = [(*(str(r[key] or "–") for key in keys), f"{r['points']:,}", r["share_us"] or "–") for r in found]
    title = "how times were taken; ratios are of times without the launch (docs/timing.md)"
    return [Grid(title, header, tuple(cells))] if found else []


def sentences(data: Dataset) -> list[str]:
    return [
        f"{r['points']:,} points on {r['device_name']}: timer {r['timer'] or 'unknown'}, L2 {r['l2'] or 'unknown'}, "
        f"instruction caches {r['icache'] or 'unknown'}"
        + ("" if r["share_us"] is None else f"; ratios are of times without the launch of a graph, {r['share_us']} µs")
        for r in records(data)
    ]

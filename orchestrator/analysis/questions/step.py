"""The tables of question=step, the attention of one model step: its plan and its layers, in a graph and without one, ranked."""

from __future__ import annotations

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.keys import GRID_AXES
from orchestrator.analysis.questions.tables import fetch, percent, split_by_title
from orchestrator.analysis.sql import query
from orchestrator.tables import Grid

NEEDS = "points that were measured with timing.host=true on a GPU, and are not reference implementations"
EACH = "lines"

AXES = ("s_qo", "batch_size", "s_kv")
HEADER = (
    *("s_qo", "batch", "s_kv", "rank", "backend", "graph, µs (over the least)", "eager, µs", "plan, µs (share)"),
    *("plan: waits, to host, to device, kernels", "issue a call, µs", "a layer, µs (rank)"),
)


def grids(data: Dataset) -> list[Grid]:
    """A line for each backend of each problem, the cheapest step first; one table for each combination of the other axes."""
    found = []
    records = fetch(data, "step", axes=(*GRID_AXES, "step_rank", "backend"))
    for name, part in split_by_title(records, AXES):
        count = part[0]["layers"]  # of the one model in the title
        in_order = sorted(part, key=lambda r: (*(r[axis] for axis in AXES), r["step_rank"], r["backend"]))
        title = f"attention of a step: a plan and {count} layer{'s' * (count > 1)} · {name}"
        found.append(Grid(title, HEADER, tuple(map(_line, in_order))))
    return found


def _line(r: Record) -> tuple[str, ...]:
    problem = (str(r["s_qo"]), str(r["batch_size"]), f"{r['s_kv']:,}")
    graph = "–" if r["graph_step_us"] is None else f"{r['graph_step_us']:,.0f} ({r['over_least']:.2f}×)"
    eager, plan = f"{r['eager_step_us']:,.0f}", f"{r['plan_host_us']:,.1f} ({percent(r['plan_share'])})"
    counts = (r[f"plan_{what}"] for what in ("syncs", "d2h_copies", "h2d_copies", "kernels"))
    work = ", ".join("–" if count is None else str(count) for count in counts)
    layer = f"{r['own_us']:,.1f} ({r['kernel_rank']})"
    return (*problem, str(r["step_rank"]), r["backend"], graph, eager, plan, work, f"{r['call_host_us']:,.1f}", layer)


def summary(data: Dataset) -> str | None:
    """At how many problems the plan changes which backend is best, the largest share of a plan, and what a graph saves at most."""
    problems, same, share, saved = data.single_row(query("plans_and_steps"))
    if not problems:
        return None
    best = f"the backend with the fastest kernel has the cheapest step at {same:,} of {problems:,} problems"
    without = "" if saved is None else f"; without a graph it takes up to {saved:.2f} times as long"
    return f"{best}; planning is up to {percent(share)} of the cheapest step{without}"

"""The tables of question=energy: the backend that takes the least for each shape, beside its time."""

from __future__ import annotations

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.tables import across_contexts, fetch, percent, split_by_title
from orchestrator.tables import Grid


def grids(data: Dataset) -> list[Grid]:
    """The least energy of each shape; one table for each combination of the other axes."""
    title = "least energy of a call, mJ ± its 95% interval (mJ a query token; median µs)"
    return [
        across_contexts(f"{title} · {name}", part, _cell)
        for name, part in split_by_title(fetch(data, "energy"), ("s_qo", "batch_size", "s_kv"))
    ]


def _cell(record: Record) -> str:
    joules, token = record["energy_j"] * 1e3, record["energy_token_j"] * 1e3
    return f"{record['backend']} {joules:,.4g} ±{percent(record['energy_rel'])} ({token:,.3g}; {record['median_us']:,.1f})"


def summary(data: Dataset) -> str | None:
    """How often the fastest backend is the one that takes the least energy, and what it takes at worst."""
    count, same, worst = data.single_row("SELECT count(*), count_if(backend = fastest), max(fastest_over_least) FROM energy")
    if not count:
        return None
    return (
        f"the fastest backend takes the least energy at {same:,} of {count:,} shapes; at most it takes {worst:.2f} times the least"
    )

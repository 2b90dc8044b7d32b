"""Question 1 on a terminal: the best backend of each shape, and whether it is ahead by more than noise."""

from __future__ import annotations

from orchestrator.dataset import Dataset, Record
from orchestrator.grid import Grid
from orchestrator.questions.tables import across_contexts, fetch, named, percent


def grids(data: Dataset) -> list[Grid]:
    """Draft length and batch down, context across, winner in the cell; a table for every other combination of axes there is."""
    title = "fastest backend, median µs (ahead of the next by; ≈ no more than noise)"
    return [
        across_contexts(f"{title} · {name}", part, _cell)
        for name, part in named(fetch(data, "best"), ("s_qo", "batch_size", "s_kv"))
    ]


def _cell(record: Record) -> str:
    winner, margin = f"{record['backend']} {record['median_us']:,.1f}", record["margin"]
    if margin is None:
        return winner
    return f"{winner} ({'+' if record['above_noise'] else '≈'}{percent(margin)})"


def short(data: Dataset, shown: int) -> str | None:
    """How many winners are ahead by more than noise, and of how many shapes `shown` are shown."""
    shapes, contested, clear, floor = data.one("SELECT count(*), count(margin), count_if(above_noise), max(noise_floor) FROM best")
    if not contested:
        return None
    measured = data.one("SELECT count(*) FROM noise")
    source = "measured" if measured else "a default: no noise dataset lies beside this one"
    more = f"; {shown:,} of {shapes:,} shapes are above" if shapes > shown else ""
    return f"{clear:,} of {contested:,} winners are ahead by more than noise (up to {percent(floor)}, {source}){more}"

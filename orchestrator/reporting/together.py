"""The sweeps of a dataset, if there are several: each table then is about all of them at once."""

from __future__ import annotations

from orchestrator.analysis.dataset import Dataset
from orchestrator.tables import Grid


def grids(data: Dataset) -> list[Grid]:
    """A table with the number of rows of each sweep; no table if all rows are of one."""
    found = data.records(
        "SELECT coalesce(sweep, '') AS sweep, count(*) AS rows FROM current GROUP BY ALL ORDER BY rows DESC, sweep"
    )
    cells = tuple((str(record["sweep"]) or "no name", f"{record['rows']:,}") for record in found)
    title = "rows of several sweeps are together in these tables; for one alone, type where={sweep: NAME}"
    return [Grid(title, ("sweep", "rows"), cells)] if len(cells) > 1 else []

"""Which columns a dataset lacks, and which are null in all of its rows: for a person who reads its files with other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.analysis.dataset import Dataset, open_dataset
from orchestrator.analysis.sources import columns_of
from orchestrator.analysis.sql import file_literal, quoted
from orchestrator.storage.row import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

LACKS = "not in this dataset"


def columns_there(path: str | Path) -> dict[str, str]:
    """What to know of each column of the dataset under `path`, by name; empty for one with values in some row.

    A column that the files lack is read with its default by this project, and by pandas not at all. Raises UserError as
    `open_dataset` does.
    """
    data = open_dataset(path)
    held = [_names(data, source) for source in data.sources]
    names = list(COLUMNS)
    rows, *counts = data.single_row(f"SELECT count(*), {', '.join(f'count({quoted(name)})' for name in names)} FROM rows")
    empty = {name for name, count in zip(names, counts, strict=True) if not count}
    return {name: _words(name, held, f"null in all {rows:,} rows" if name in empty else "") for name in names}


def _words(name: str, held: list[set[str]], empty: str) -> str:
    having = sum(name in columns for columns in held)
    if not having:
        return LACKS
    return "; ".join(filter(None, (empty, f"in {having} of {len(held)} files" if having < len(held) else "")))


def _names(data: Dataset, source: str | pa.Table) -> set[str]:
    """The columns of one source. Rows that a journal holds, or an object store, have all columns."""
    if not isinstance(source, str):
        return set(source.column_names)
    return set(columns_of(data.con, f"read_parquet({file_literal(source)})", source))

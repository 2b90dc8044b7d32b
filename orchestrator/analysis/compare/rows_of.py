"""Reads the rows of one or several datasets by a folder or a pattern, and keeps those with given values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.analysis.sources import SIGNS, local_datasets
from orchestrator.analysis.sql import LISTS, Where, no_column
from orchestrator.analysis.value_text import text_of
from orchestrator.errors import UserError
from orchestrator.storage import access
from orchestrator.storage.columns import COLUMNS

if TYPE_CHECKING:
    import pandas as pd


def exists(path: str) -> bool:
    """Whether a path, or one that a pattern matches, is a dataset, or a folder of them."""
    return any(map(access.exists, _places(path)))


def read(path: str) -> pd.DataFrame:
    """The rows of a dataset, or of all that a pattern matches."""
    import pandas as pd

    frames = [access.read(place).to_pandas() for place in _places(path)]
    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


def _places(path: str) -> list[str]:
    alone = "," in path and not any(sign in path for sign in SIGNS)
    return [path] if alone or access.in_objects(path) else [str(place) for place in local_datasets(path)]


def chosen(rows: pd.DataFrame, where: Where) -> pd.DataFrame:
    """The rows that have these values, compared as text, as `mode=report` does. Raises UserError for an unknown column."""
    single = [name for name, column in COLUMNS.items() if column.type not in LISTS]
    for name, wanted in where.items():
        if name not in single:
            raise UserError(no_column(name, single))
        values = {text_of(value) for value in (wanted if isinstance(wanted, tuple) else (wanted,))}
        rows = rows[rows[name].map(text_of).isin({COLUMNS[name].renamed.get(value, value) for value in values})]
    return rows

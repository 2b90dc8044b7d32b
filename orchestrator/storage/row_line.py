"""One line of a journal as a row: JSON whose keys are columns and whose values have the columns' types."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

from orchestrator.storage.columns import COLUMNS, Column, ColumnType, Row
from orchestrator.storage.row import STATUSES
from orchestrator.storage.row_key import KEY, LATER

NEEDED = frozenset({*KEY, "run_id", "status", "finished_at"}) - LATER  # a file without these is not ours
RENAMED = frozenset(name for name, column in COLUMNS.items() if column.renamed)
CALLED: dict[ColumnType, str] = {
    "string": "text",
    "bool": "true or false",
    "int64": "whole number",
    "double": "number",
    "timestamp": "time with its zone",
    "list<double>": "list of numbers",
    "list<int32>": "list of whole numbers",
}
INT64, INT32 = 1 << 63, 1 << 31


def parse_line(line: bytes) -> Row | None:
    """A row with today's names of values; None for a line that is no row. It may lack columns that came later."""
    row = _json(line)
    if row is None or _damage(row):
        return None
    for name in RENAMED & row.keys():
        row[name] = COLUMNS[name].renamed.get(row[name], row[name])
    return cast(Row, row)


def damage_in(line: bytes) -> str:
    """Why a line is no row, as far as one column can be named; else empty."""
    row = _json(line)
    return "" if row is None else _damage(row)


def _json(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or brackets without end
        return None
    return row if isinstance(row, dict) else None


def _damage(row: dict[str, Any]) -> str:
    if missing := sorted(set(KEY) - LATER - row.keys()):
        return f"it lacks {missing[0]}"
    if foreign := sorted(row.keys() - COLUMNS.keys()):
        return f"{foreign[0][:50]!r} is no column"
    for name, value in row.items():
        if not _fits(value, COLUMNS[name]):
            return f"{name}={_short(value)} is no {CALLED[COLUMNS[name].type]}"
    for name in ("point_id", "status", "finished_at"):
        if row.get(name) is None:
            return f"{name} is null"
    return "" if row["status"] in STATUSES else f"status={_short(row['status'])}; allowed: {', '.join(STATUSES)}"


def _fits(value: Any, column: Column) -> bool:
    """Whether a value, as JSON holds it, is one of a column. Null may stand anywhere: a row that did not run has few values."""
    if value is None:
        return True
    if column.type.startswith("list<"):
        part_fits = _is_number if column.type == "list<double>" else _is_int32
        return isinstance(value, list) and all(part is None or part_fits(part) for part in value)
    return FITS[column.type](value)


def _is_int32(value: Any) -> bool:
    return _is_whole(value, INT32)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which Parquet cannot hold
        return False
    return True


def _is_whole(value: Any, limit: int) -> bool:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return whole and not isinstance(value, bool) and -limit <= value < limit


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (_is_whole(value, INT64) and abs(value) <= 1 << 53)


def _is_time(value: Any) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}…"


FITS: dict[ColumnType, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str) and _is_text(value),
    "bool": lambda value: isinstance(value, bool),
    "int64": lambda value: _is_whole(value, INT64),
    "double": _is_number,
    "timestamp": _is_time,
}

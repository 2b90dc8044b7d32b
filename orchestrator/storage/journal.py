"""A row as a line of a journal, checked by writer and readers: a value that no column holds costs its own row alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any, cast

from kernels.contract.runner import said
from orchestrator.notes import note_once
from orchestrator.storage.columns import CALLED, COLUMNS, Column, ColumnType, Row
from orchestrator.storage.row import KEY, LATER, STATUSES, finish
from orchestrator.untrusted.door import from_json

TIMES = TIME, TIME_IN_ENGINE = "median_us", "attention_us"  # of a call of this project, and of a point inside an engine
SIZES = ("batch_size", "s_qo", "s_kv", "num_qo_heads", "num_kv_heads", "tp", "page_size", "head_dim_qk", "head_dim_vo")
MAX_SIZE = 2**31 - 1
DATES = tuple(name for name, column in COLUMNS.items() if column.type == "timestamp")
LAST_DATE = datetime.fromisoformat("2262-01-01T00:00:00+00:00").timestamp()  # pandas holds dates as nanoseconds in 64 bits
CHECKED = (*TIMES, *SIZES, *DATES)
NEVER_NULL = ("point_id", "status", "finished_at")
MAX_TEXT = 100_000  # characters
RENAMED = frozenset(name for name, column in COLUMNS.items() if column.renamed)
INT64, INT32 = 1 << 63, 1 << 31


def storable(row: Row) -> Row:
    """The row as every reader takes it: text in UTF-8, and if a value is none of its column's, `failed` without it, in words."""
    try:
        return _storable(row)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of a value of a plugin's own class
        plain = {name: value for name, value in row.items() if type(value) in (str, int, float, bool)}
        return finish(_storable(cast(Row, plain)), "failed", f"its row cannot be stored: {said(error)}")


def _storable(row: Row) -> Row:
    whole = {name: _text(value) if isinstance(value, str) else value for name, value in row.items()}
    if not (wrong := damage(whole)):
        return cast(Row, whole)
    kept = {name: value for name, value in whole.items() if name in COLUMNS and not _wrong_with(name, value)}
    said = f"; it was {whole.get('status')}: {whole.get('reason')}" if whole.get("reason") else ""
    return finish(cast(Row, kept), "failed", f"its row cannot be stored, since {wrong}{said}")


def _text(value: str) -> str:
    """Half of a surrogate pair, which no file holds, in Python's escaped form."""
    whole = str.__str__(value)[:MAX_TEXT]  # plain text also of a plugin's own class
    return whole if whole.isascii() else whole.encode(errors="backslashreplace").decode()


def rows_in(lines: Iterable[bytes], journal: object) -> tuple[list[Row], list[bytes]]:
    """The rows of a journal's lines, and the lines that are none. A note names the first of these."""
    rows, wrong, note = [], [], ""
    for number, line in enumerate(lines, start=1):
        found = parse_row(line)
        if isinstance(found, str):
            wrong.append(line)
            note = note or f"line {number} of {journal} is no row of this project ({found}) and is left out"
        else:
            rows.append(found)
    if wrong:
        note_once(note + (f", as {len(wrong) - 1} more" if wrong[1:] else "") + "; a run into this dataset sets it aside")
    return rows, wrong


def parse_row(line: bytes) -> Row | str:
    """The row of a line, with today's columns of the key and names of values; for a line that is no row, why."""
    try:
        row = from_json(line)
    except ValueError as error:
        return str(error)
    if wrong := damage(row):
        return wrong
    for name in RENAMED & row.keys():
        row[name] = COLUMNS[name].renamed.get(row[name], row[name])
    for name in LATER - row.keys():
        row[name] = COLUMNS[name].default_in(row)
    return cast(Row, row)


def damage(row: dict[str, Any]) -> str:
    """Why a row, as JSON holds it, is none that a reader takes; else empty."""
    if missing := sorted(set(KEY) - LATER - row.keys()):
        return f"it lacks {missing[0]}"
    if foreign := sorted(row.keys() - COLUMNS.keys()):
        return f"{foreign[0][:50]!r} is no column"
    for name, value in row.items():
        if value is not None and (wrong := _wrong_with(name, value)):
            return wrong
    for name in NEVER_NULL:
        if row.get(name) is None:
            return f"{name} is null"
    time = TIME if row.get("engine") is None else TIME_IN_ENGINE
    if (row.get(time) is None) is (row["status"] == "ok"):
        return f"{time}={row.get(time)}, and the status is {row['status']}"
    return ""


def _wrong_with(name: str, value: Any) -> str:
    """Why a value is none of its column's; else empty. Null may stand anywhere: a row that did not run has few values."""
    if value is None:
        return ""
    column = COLUMNS[name]
    if not _fits(value, column):
        return f"{name}={_short(value)} is no {CALLED[column.type][1]}"
    if name == "status" and value not in STATUSES:
        return f"status={_short(value)}; allowed: {', '.join(STATUSES)}"
    if (name == TIME and not 0 < value < math.inf) or (name in SIZES and not 1 <= value <= MAX_SIZE):
        return f"{name}={_short(value)} is no {'time' if name == TIME else f'size from 1 to {MAX_SIZE:,}'}"
    return ""


def _fits(value: Any, column: Column) -> bool:
    if column.type == "list<double>":
        return isinstance(value, list) and all(type(part) is float or part is None or _is_number(part) for part in value)
    if column.type == "list<int32>":
        return isinstance(value, list) and all(part is None or _is_whole(part, INT32) for part in value)
    return FITS[column.type](value)


def _is_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and (value.isascii() or value.encode() is not None)
    except UnicodeEncodeError:  # half of a surrogate pair, which Parquet cannot hold
        return False


def _is_whole(value: Any, limit: int) -> bool:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return whole and not isinstance(value, bool) and -limit <= value < limit


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (_is_whole(value, INT64) and abs(value) <= 1 << 53)


def _is_time(value: Any) -> bool:
    try:
        found = datetime.fromisoformat(value)
        return found.tzinfo is not None and 0 <= found.timestamp() < LAST_DATE
    except (TypeError, ValueError, OverflowError):
        return False


def _short(value: Any) -> str:
    try:
        shown = repr(value)
    except Exception as error:  # an object of a plugin, or a number of too many digits
        shown = f"{type(value).__name__} ({type(error).__name__})"
    return shown if len(shown) <= 40 else f"{shown[:40]}…"


FITS: dict[ColumnType, Callable[[Any], bool]] = {
    "string": _is_text, "bool": lambda value: isinstance(value, bool), "int64": partial(_is_whole, limit=INT64),
    "double": _is_number, "timestamp": _is_time,
}  # fmt: skip

"""Reads a dataset's files as one table: the Parquet file in today's columns, and the journal's newer rows.

A dataset with columns of a newer version may be read, without them, but not written, since they would be lost.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from orchestrator.errors import DamagedDataset, UserError
from orchestrator.storage import checksum
from orchestrator.storage.columns import COLUMNS, Column, ColumnType, FromColumn, Row
from orchestrator.storage.row import ANY_OF, KEY, LATER, STATUSES, Key, key_of, schema, to_table
from orchestrator.untrusted.files import open_to_read, require_plain

if TYPE_CHECKING:
    import pyarrow as pa

DATA, JOURNAL = "rows.parquet", "_journal.jsonl"
DEVICE, LIBRARIES = KEY.index("device_name"), KEY.index("libraries")
SEAL_SECONDS = 10.0  # at most between two merges of the journal, while the dataset is small
SMALL_ROWS = 10_000  # which are written again in a moment
TIME = "median_us"
SIZES = ("batch_size", "s_qo", "s_kv", "num_qo_heads", "num_kv_heads", "tp", "page_size", "head_dim_qk", "head_dim_vo")
MAX_SIZE = 2**31 - 1
NEVER_NULL = ("point_id", "status", "finished_at")
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
SHOWN = 3  # names of columns, in an error


def foreign_names(names: Iterable[str]) -> list[str]:
    """Names that are not a dataset's own, and that Parquet readers do not ignore."""
    return sorted(name for name in names if name != DATA and not name.startswith(("_", ".")))


def data_file(path: str | Path) -> Path:
    """The Parquet file of a dataset: that of its folder, or the file that `path` names with or without `.parquet`.

    For a dataset that is not there yet, that of its folder.
    """
    place = Path(path)
    try:
        files = [] if place.is_dir() else [place, Path(f"{place}.parquet")]
        return next((file for file in files if file.exists() and not file.is_dir()), place / DATA)
    except (OSError, ValueError):  # reading it says what is wrong
        return place / DATA


def read(path: str | Path) -> pa.Table:
    """The dataset under `path`, including rows that are still only in the journal.

    Raises DamagedDataset for a file that is damaged or not this project's, UserError for one that may not be read.
    """
    data = data_file(path)
    try:
        table = read_sealed(data if require_plain(data, follow=True) else None, path, data)
        leftover = list(_journal_rows(data.parent / JOURNAL)) if data.name == DATA else []
    except OSError as error:
        words = f"{error.filename or data} cannot be read ({error.strerror})"
        raise UserError(f"results.path={str(path)!r}: {words}; make it readable, or type another results.path=...") from None
    return merge(table, leftover) if leftover else table


def read_sealed(file: Path | IO[bytes] | None, path: str | Path, data: str | Path) -> pa.Table:
    """The rows of a Parquet file in today's columns, none without a file. `path` and `data` name dataset and file in errors.

    Raises DamagedDataset for a file that is damaged, or is no dataset of this project, OSError for one that cannot be opened.
    """
    if file is None:
        return to_table([])
    if isinstance(file, Path):
        with open_to_read(file) as opened:
            return read_sealed(opened, path, data)
    try:
        if not checksum.require_whole(file, data):
            checksum.note_unsealed([str(data)])
        return _todays_table(file, data)
    except DamagedDataset as error:
        raise DamagedDataset(f"results.path={str(path)!r}: {error}") from None


def _todays_table(file: IO[bytes], data: str | Path) -> pa.Table:
    """The table of an open file, in today's columns. Raises DamagedDataset."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:  # `read_table` would import all of pyarrow.dataset first
        table = pq.ParquetFile(file, page_checksum_verification=True).read()
    except Exception:
        raise DamagedDataset(f"{data} is no readable Parquet file, or is damaged; move it away") from None
    require_columns(table.column_names, data)
    try:
        today = _with_every_column(table)
        today.validate(full=True)
    except (pa.ArrowException, ValueError):
        raise DamagedDataset(f"{data} has columns of other types, or is damaged; it is not ours, move it away") from None
    for name in NEVER_NULL:
        if today.column(name).null_count:
            raise DamagedDataset(f"{data} has rows without {name}; it is not ours, move it away")
    counts = {one["values"]: one["counts"] for one in today.column("status").value_counts().to_pylist()}
    for status in counts:
        require_status(status, data)
    require_values({name: _span_of(today.column(name)) for name in (TIME, *SIZES)}, counts.get("ok", 0), data)
    return today


def _span_of(column: pa.ChunkedArray) -> Span:
    import pyarrow.compute as pc

    found = pc.min_max(column).as_py()
    finite = pc.all(pc.is_finite(column)).as_py()  # the least and the most leave NaN out
    return Span(len(column) - column.null_count, found["min"], found["max"] if finite is not False else math.inf)


class Span(NamedTuple):
    """How many rows have a value in a column, the least and the most of them; None if no row has one."""

    rows: int
    least: float | None
    most: float | None


def require_values(spans: Mapping[str, Span], num_ok: int, data: object) -> None:
    """Raises DamagedDataset for a time or a size that no row of this project has, because every reader computes with them.

    `spans` are of `TIME` and `SIZES`. Rows that are `ok` have a time, and no others.
    """
    time = spans[TIME]
    if time.rows != num_ok or (time.least is not None and not 0 < time.least <= (time.most or 0) < math.inf):
        raise DamagedDataset(f"{data} has {TIME} that is no time, or none in a row that is ok; it is not ours, move it away")
    for name in SIZES:
        size = spans[name]
        if size.least is not None and not 1 <= size.least <= (size.most or 0) <= MAX_SIZE:
            raise DamagedDataset(f"{data} has {name} that is no size from 1 to {MAX_SIZE:,}; it is not ours, move it away")


def require_columns(names: Iterable[str], data: object) -> None:
    """Raises DamagedDataset if a file lacks columns that every dataset has, or has one twice: SQL does not tell cases apart."""
    given = list(names)
    if missing := NEEDED - set(given):
        raise DamagedDataset(f"{data} lacks the columns {', '.join(sorted(missing))}; it is not ours, move it away")
    seen = Counter(name.casefold() for name in given)
    if twice := sorted(name for name in COLUMNS if seen[name.casefold()] > 1):
        raise DamagedDataset(f"{data} has the column {twice[0]} twice; it is not ours, move it away")


def require_status(status: object, data: object) -> None:
    """Raises DamagedDataset for a status that no row has."""
    if status not in STATUSES:
        raise DamagedDataset(f"{data} has the status {status!r}; allowed: {', '.join(STATUSES)}; it is not ours, move it away")


def _with_every_column(table: pa.Table) -> pa.Table:
    """The table in today's schema. A column that is not in the file has its default."""
    import pyarrow as pa

    known = set(table.column_names)
    columns = [
        _todays_values(_cast(table.column(field.name), field.type), COLUMNS[field.name])
        if field.name in known
        else pa.array(_defaults(table, COLUMNS[field.name]), type=field.type)
        for field in schema()
    ]
    return pa.Table.from_arrays(columns, schema=schema())


def _defaults(table: pa.Table, column: Column) -> list[Any]:
    """What the rows of an older table hold in a column that came later. `analysis/sql.py` says the same in SQL."""
    if not isinstance(of := column.default, FromColumn) or of.column not in table.column_names:
        return [_default(of, {})] * len(table)
    return [_default(of, {of.column: value}) for value in table.column(of.column).to_pylist()]


def _default(default: object, row: Mapping[str, Any]) -> Any:
    """What one row of an older version holds in a column that came later."""
    if not isinstance(default, FromColumn):
        return default
    value = row.get(default.column)
    return value and default.values.get(value, default.prefix + value)


def _cast(column: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == to else column.cast(to)  # a cast copies every sample, even to the same type


def _todays_values(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """A column of a file, whose values may have the names of an older version. `analysis/sql.py` says the same in SQL."""
    import pyarrow.compute as pc

    for former, today in column.renamed.items():
        values = pc.if_else(pc.fill_null(pc.equal(values, former), False), today, values)
    return values


def _journal_rows(journal: Path) -> Iterator[Row]:
    """Rows of a journal. What follows the last line end was cut off when its writer died, and was never reported as stored.

    Raises DamagedDataset for any other line that is no row: the rows after it were reported as stored.
    """
    if not require_plain(journal):
        return
    with open_to_read(journal, follow=False) as file:
        *lines, _torn = file.read().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if (row := parse_row(line)) is None:
            why = f" ({words})" if (words := damage_in(line)) else ""
            raise DamagedDataset(
                f"results.path={str(journal.parent)!r}: line {number} of {journal} is not a row of this project{why}; repair it or "
                "move the file away; rows after it are lost with it"
            )
        yield row


def parse_row(line: bytes) -> Row | None:
    """A row of a journal, with today's columns of the key and names of values; None for a line that is no row."""
    row = _json(line)
    if row is None or _damage(row):
        return None
    for name in RENAMED & row.keys():
        row[name] = COLUMNS[name].renamed.get(row[name], row[name])
    for name in LATER - row.keys():
        row[name] = _default(COLUMNS[name].default, row)
    return cast(Row, row)


def should_seal(journaled: int, rows: int, sealed_at: float) -> bool:
    """Whether a journal of so many rows is merged into the file of so many now; `sealed_at` (`time.monotonic`) is the last time.

    Merging rewrites the whole file, so a large dataset waits until it has grown by half.
    """
    return time.monotonic() - sealed_at > SEAL_SECONDS and journaled * 2 > rows - SMALL_ROWS


def merge(table: pa.Table, rows: list[Row]) -> pa.Table:
    """The table with newer rows. Each replaces the row of its key, and the row of a point that was not started on any device."""
    import pyarrow as pa

    latest = {key_of(row): row for row in rows}
    anywhere = {_of_point(key) for key in latest}
    keys = zip(*(table.column(name).to_pylist() for name in KEY), strict=True)
    stale = [key in latest or (ANY_OF in (key[DEVICE] or "") and _of_point(key) in anywhere) for key in keys]
    kept = table.filter(pa.array([not is_stale for is_stale in stale], type=pa.bool_())) if table.num_rows else table
    return pa.concat_tables([kept.select(list(COLUMNS)), to_table(latest.values())])


def _of_point(key: Key) -> Key:
    """A key without what the row of a point that was not started does not know: the device, and the libraries there."""
    return tuple(part for at, part in enumerate(key) if at not in (DEVICE, LIBRARIES))


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
    for name in NEVER_NULL:
        if row.get(name) is None:
            return f"{name} is null"
    return "" if row["status"] in STATUSES else f"status={_short(row['status'])}; allowed: {', '.join(STATUSES)}"


def _fits(value: Any, column: Column) -> bool:
    """Whether a value, as JSON holds it, is one of a column. Null may stand anywhere: a row that did not run has few values."""
    if value is None:
        return True
    if column.type.startswith("list<"):
        part_fits = _is_number if column.type == "list<double>" else partial(_is_whole, limit=INT32)
        return isinstance(value, list) and all(part is None or part_fits(part) for part in value)
    return FITS[column.type](value)


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


def require_known(file: IO[bytes], data: object) -> None:
    """Raises UserError if a Parquet file has columns that are none of today's. `data` is how the message calls the file."""
    import pyarrow.parquet as pq

    if unknown := [name for name in pq.read_schema(file).names if name not in COLUMNS]:
        more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
        raise UserError(
            f"results.path: {data} has columns that this version does not know ({', '.join(unknown[:SHOWN])}{more}) and would "
            "lose if it added rows; install the version that wrote them, or type another results.path=..."
        )

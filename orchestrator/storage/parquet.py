"""A dataset's files as one table of today's columns; one with columns of a newer version, which would be lost, is only read."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from orchestrator.errors import DamagedDataset, UserError
from orchestrator.storage import checksum
from orchestrator.storage.columns import COLUMNS, Column, FromColumn, Row
from orchestrator.storage.journal import CHECKED, DATES, LAST_DATE, MAX_SIZE, NEVER_NULL, SIZES, TIMES, rows_in
from orchestrator.storage.row import ANY_OF, KEY, LATER, STATUSES, Key, key_of, schema, to_table
from orchestrator.untrusted.files import open_to_read, require_plain

if TYPE_CHECKING:
    import pyarrow as pa

DATA, JOURNAL = "rows.parquet", "_journal.jsonl"
DEVICE, LIBRARIES = KEY.index("device_name"), KEY.index("libraries")
SEAL_SECONDS = 10.0  # at most between two merges of the journal, while the dataset is small
SMALL_ROWS = 10_000  # which are written again in a moment
AT_ONCE = 500  # rows that become a table without a pause: pyarrow lets no other thread run meanwhile
NEEDED = frozenset({*KEY, "run_id", "status", "finished_at"}) - LATER  # a file without these is not ours
SHOWN = 3  # names of columns, in an error


def foreign_names(names: Iterable[str]) -> list[str]:
    """Names that are not a dataset's own, and that Parquet readers do not ignore."""
    return sorted(name for name in names if name != DATA and not name.startswith(("_", ".")))


def data_file(path: str | Path) -> Path:
    """The Parquet file of a dataset: its folder's, also if there is none yet, or `path` itself, with or without `.parquet`."""
    place = Path(path)
    try:
        files = [] if place.is_dir() else [place, Path(f"{place}.parquet")]
        return next((file for file in files if file.exists() and not file.is_dir()), place / DATA)
    except (OSError, ValueError):  # reading it says what is wrong
        return place / DATA


def read(path: str | Path) -> pa.Table:
    """The dataset with its journal, whose wrong lines a note names. Raises DamagedDataset if it is not ours, UserError."""
    return look(path)[0]


def look(path: str | Path) -> tuple[pa.Table, list[bytes]]:
    """As `read`, with the lines of the journal that are no rows."""
    data = data_file(path)
    try:
        table = read_sealed(data if require_plain(data, follow=True) else None, path, data)
        rows, wrong = _of_journal(data.parent / JOURNAL) if data.name == DATA else ([], [])
    except OSError as error:
        words = f"{error.filename or data} cannot be read ({error.strerror})"
        raise UserError(f"results.path={str(path)!r}: {words}; make it readable, or type another results.path=...") from None
    return merge(table, rows) if rows else table, wrong


def _of_journal(journal: Path) -> tuple[list[Row], list[bytes]]:
    """What follows the last line end was cut off when its writer died, and was never reported as stored."""
    if not require_plain(journal):
        return [], []
    with open_to_read(journal, follow=False) as file:
        *lines, _torn = file.read().split(b"\n")
    return rows_in(lines, journal)


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
    require_values({name: _span_of(today.column(name)) for name in CHECKED}, counts.get("ok", 0), data)
    return today


def _span_of(column: pa.ChunkedArray) -> Span:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(column.type):
        column = pc.divide(column.cast(pa.int64()), 10**6)
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

    `spans` are of `CHECKED`, those of dates in seconds since 1970. Rows that are `ok` have a time, and no others.
    """
    times = [spans[name] for name in TIMES]
    is_time = [time.least is None or 0 < time.least <= (time.most or 0) < math.inf for time in times]
    if sum(time.rows for time in times) != num_ok or not all(is_time):
        raise DamagedDataset(f"{data} has {TIMES[0]} that is no time, or none in a row that is ok; it is not ours, move it away")
    for name in SIZES:
        size = spans[name]
        if size.least is not None and not 1 <= size.least <= (size.most or 0) <= MAX_SIZE:
            raise DamagedDataset(f"{data} has {name} that is no size from 1 to {MAX_SIZE:,}; it is not ours, move it away")
    for name in DATES:
        if (spans[name].most or 0) > LAST_DATE or (spans[name].least or 0) < 0:
            raise DamagedDataset(f"{data} has {name} that is no date from 1970 to 2261; it is not ours, move it away")


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
        _todays_values(table.column(field.name), field.type, COLUMNS[field.name])
        if field.name in known
        else pa.array(_defaults(table, COLUMNS[field.name]), type=field.type)
        for field in schema()
    ]
    return pa.Table.from_arrays(columns, schema=schema())


def _defaults(table: pa.Table, column: Column) -> list[Any]:
    """What the rows of an older table hold in a column that came later. `analysis/sql.py` says the same in SQL."""
    if not isinstance(of := column.default, FromColumn) or of.column not in table.column_names:
        return [column.default_in({})] * len(table)
    return [column.default_in({of.column: value}) for value in table.column(of.column).to_pylist()]


def _todays_values(values: pa.ChunkedArray, to: pa.DataType, column: Column) -> pa.ChunkedArray:
    """A column of a file, whose values may have the names of an older version. `analysis/sql.py` says the same in SQL."""
    import pyarrow.compute as pc

    values = values if values.type == to else values.cast(to)  # a cast copies every sample, even to the same type
    for former, today in column.renamed.items():
        values = pc.if_else(pc.fill_null(pc.equal(values, former), False), today, values)
    return values


def should_seal(journaled: int, rows: int, sealed_at: float) -> bool:
    """Whether a journal is merged: that rewrites the file, so a large one grows by half first. `sealed_at` of `time.monotonic`."""
    return time.monotonic() - sealed_at > SEAL_SECONDS and journaled * 2 > rows - SMALL_ROWS


def merge(table: pa.Table, rows: list[Row]) -> pa.Table:
    """The table with newer rows. Each replaces the row of its key, and the row of a point that was not started on any device."""
    import pyarrow as pa

    latest = {key_of(row): row for row in rows}
    anywhere = {_of_point(key) for key in latest}
    keys = zip(*(table.column(name).to_pylist() for name in KEY), strict=True)
    stale = [key in latest or (ANY_OF in (key[DEVICE] or "") and _of_point(key) in anywhere) for key in keys]
    kept = table.filter(pa.array([not is_stale for is_stale in stale], type=pa.bool_())) if table.num_rows else table
    new = list(latest.values())
    parts = [to_table(new[i : i + AT_ONCE]) for i in range(0, max(len(new), 1), AT_ONCE)]
    return pa.concat_tables([kept.select(list(COLUMNS)), *parts])


def _of_point(key: Key) -> Key:
    """A key without what the row of a point that was not started does not know: the device, and the libraries there."""
    return tuple(part for at, part in enumerate(key) if at not in (DEVICE, LIBRARIES))


def require_known(file: IO[bytes], data: object) -> None:
    """Raises UserError if a Parquet file has columns that are none of today's. `data` is how the message calls the file."""
    import pyarrow.parquet as pq

    if unknown := [name for name in pq.read_schema(file).names if name not in COLUMNS]:
        more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
        raise UserError(
            f"results.path: {data} has columns that this version does not know ({', '.join(unknown[:SHOWN])}{more}) and would "
            "lose if it added rows; install the version that wrote them, or type another results.path=..."
        )

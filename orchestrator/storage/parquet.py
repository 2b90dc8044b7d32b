"""Reads a dataset's files as one table: the Parquet file in today's columns, and the journal's newer rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from orchestrator.errors import DamagedDataset, UserError
from orchestrator.storage.columns import COLUMNS, Column, FromColumn, Row
from orchestrator.storage.row import schema, to_table

if TYPE_CHECKING:
    import pyarrow as pa

DATA, JOURNAL = "rows.parquet", "_journal.jsonl"
KEY = ("point_id", "cluster", "device_name", "torch_version", "libraries", "orchestrator_version")
LATER = frozenset({"libraries"})  # of KEY: what files and journals of older versions lack, and get by its default
NEEDED = frozenset({*KEY, "run_id", "status", "finished_at"}) - LATER  # a file without these is not ours
ANY_OF = " | "  # joins the kinds of devices in the row of a point that was not started on any
RENAMED = frozenset(name for name, column in COLUMNS.items() if column.renamed)
DEVICE, LIBRARIES = KEY.index("device_name"), KEY.index("libraries")

Key = tuple[Any, ...]


def key_of(row: Mapping[str, Any]) -> Key:
    """A row's key: its point, cluster, kind of device and versions. A dataset has one row for each."""
    return tuple(row[name] for name in KEY)


def foreign_names(names: Iterable[str]) -> list[str]:
    """Names that are not a dataset's own, and that Parquet readers do not ignore."""
    return sorted(name for name in names if name != DATA and not name.startswith(("_", ".")))


def read(path: str | Path) -> pa.Table:
    """The dataset under `path`, with the rows that are in its journal alone.

    Raises DamagedDataset for a file that is damaged or not this project's, UserError for one that may not be read.
    """
    data = Path(path) / DATA
    try:
        table = read_sealed(data if data.exists() else None, path, data)
        leftover = list(_journal_rows(Path(path) / JOURNAL))
    except OSError as error:
        words = f"{error.filename or data} cannot be read ({error.strerror})"
        raise UserError(f"results.path={str(path)!r}: {words}; make it readable, or type another results.path=...") from None
    return merge(table, leftover) if leftover else table


def read_sealed(file: Path | IO[bytes] | None, path: str | Path, data: str | Path) -> pa.Table:
    """The rows of a Parquet file in today's columns, none without a file. `path` and `data` name dataset and file in errors.

    Raises DamagedDataset for a file that is damaged, or is no dataset of this project.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file).read() if file else to_table([])  # `read_table` would import all of pyarrow.dataset first
    except (pa.ArrowException, OSError) as error:
        raise DamagedDataset(f"results.path={str(path)!r}: {data} is no readable Parquet file ({error}); move it away") from None
    if missing := NEEDED - set(table.column_names):
        raise DamagedDataset(
            f"results.path={str(path)!r}: {data} lacks the columns {sorted(missing)}; it is not ours, move it away"
        )
    try:
        return _with_every_column(table)
    except pa.ArrowException as error:
        raise DamagedDataset(f"results.path={str(path)!r}: {data} has columns of other types ({error}); move it away") from None


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
    default = column.default
    if not isinstance(default, FromColumn) or default.column not in table.column_names:
        return [_default(default, {})] * len(table)
    return [_default(default, {default.column: value}) for value in table.column(default.column).to_pylist()]


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
    if not journal.exists():
        return
    *lines, _torn = journal.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        row = parse_row(line)
        if row is None:
            where = f"results.path={str(journal.parent)!r}: line {number} of {journal}"
            raise DamagedDataset(
                f"{where} is no row of this project; mend it or move the file away, rows after it are lost with it"
            )
        yield row


def parse_row(line: bytes) -> Row | None:
    """A row of a journal; None for a line that is no row."""
    try:
        row = json.loads(line)
    except ValueError:  # not JSON, or not UTF-8
        return None
    if not isinstance(row, dict) or not set(KEY) - LATER <= row.keys() <= COLUMNS.keys():
        return None
    for name in LATER - row.keys():
        row[name] = _default(COLUMNS[name].default, row)
    for name in RENAMED & row.keys():
        row[name] = COLUMNS[name].renamed.get(row[name], row[name])
    return cast(Row, row)


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

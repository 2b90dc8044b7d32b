"""The files of a dataset as rows: the Parquet file in today's columns, what its journal holds beyond it, both as one table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kernels.problem import Problem
from orchestrator.errors import UserError
from orchestrator.row import COLUMNS, OLD_ICACHE, Row, schema, to_table

if TYPE_CHECKING:
    import pyarrow as pa

DATA, JOURNAL = "rows.parquet", "_journal.jsonl"
KEY = ("point_id", "cluster", "device_name", "torch_version", "flashinfer_version", "orchestrator_version")
NEEDED = frozenset({*KEY, "run_id", "status", "finished_at"})  # a file without these is none of ours
ANY_OF = " | "  # joins the kinds of devices in the row of a point that none of them was to run
DEVICE = KEY.index("device_name")

Key = tuple[Any, ...]


def key_of(row: Mapping[str, Any]) -> Key:
    """What has one current row: a point on a cluster's kind of device under given versions."""
    return tuple(row[name] for name in KEY)


def foreign(names: Iterable[str]) -> list[str]:
    """Names beside a dataset that are none of its own and not hidden from Parquet readers."""
    return sorted(name for name in names if name != DATA and not name.startswith(("_", ".")))


def read(path: str | Path) -> pa.Table:
    """The dataset under `path`, with what its journal holds beyond the Parquet file.

    Raises UserError for a file that is no dataset of this project, or that may not be read.
    """
    data = Path(path) / DATA
    try:
        table = sealed(data if data.exists() else None, path, data)
        leftover = list(_journal_rows(Path(path) / JOURNAL))
    except OSError as error:
        told = f"{error.filename or data} cannot be read ({error.strerror})"
        raise UserError(f"results.path={str(path)!r}: {told}; make it readable, or type another results.path=...") from None
    return merge(table, leftover) if leftover else table


def sealed(file: Path | IO[bytes] | None, path: str | Path, data: str | Path) -> pa.Table:
    """The rows of a Parquet file, in today's columns; `path` and `data` name the dataset and the file in errors.

    Raises UserError for one that is no dataset of this project.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file).read() if file else to_table([])  # `read_table` would import all of pyarrow.dataset first
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"results.path={str(path)!r}: {data} is no readable Parquet file ({error}); move it away") from None
    if missing := NEEDED - set(table.column_names):
        raise UserError(f"results.path={str(path)!r}: {data} lacks the columns {sorted(missing)}; it is not ours, move it away")
    try:
        return _with_every_column(table)
    except pa.ArrowException as error:
        raise UserError(f"results.path={str(path)!r}: {data} has columns of other types ({error}); move it away") from None


def _with_every_column(table: pa.Table) -> pa.Table:
    """The table in today's schema: a row from before an axis or a column existed stands at its default, or has null."""
    import pyarrow as pa

    defaults = {name: field.default for name, field in Problem.model_fields.items() if not field.is_required()}
    known = set(table.column_names)

    def older(name: str) -> list[Any]:
        if name == "icache" and "l2" in known:
            return [OLD_ICACHE.get(l2, l2) for l2 in table.column("l2").to_pylist()]
        return [defaults.get(name)] * len(table)

    columns = [
        _cast(table.column(field.name), field.type) if field.name in known else pa.array(older(field.name), type=field.type)
        for field in schema()
    ]
    return pa.Table.from_arrays(columns, schema=schema())


def _cast(column: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == to else column.cast(to)  # a cast copies every sample, also to what they are


def _journal_rows(journal: Path) -> Iterator[Row]:
    """Rows of a journal. What follows the last end of a line was cut short by the death of its writer, and never reported.

    Raises UserError for any other line that is no row: what stands behind it was reported.
    """
    if not journal.exists():
        return
    *lines, _torn = journal.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        row = row_of(line)
        if row is None:
            where = f"results.path={str(journal.parent)!r}: line {number} of {journal}"
            raise UserError(f"{where} is no row of this project; mend it or move the file away, rows after it are lost with it")
        yield row


def row_of(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:  # no JSON, or no UTF-8
        return None
    return row if isinstance(row, dict) and row.keys() >= set(KEY) and row.keys() <= COLUMNS.keys() else None


def merge(table: pa.Table, rows: list[Row]) -> pa.Table:
    import pyarrow as pa

    latest = {key_of(row): row for row in rows}
    anywhere = {_without_device(key) for key in latest}
    keys = zip(*(table.column(name).to_pylist() for name in KEY), strict=True)
    stale = [key in latest or (ANY_OF in (key[DEVICE] or "") and _without_device(key) in anywhere) for key in keys]
    kept = table.filter(pa.array([not is_stale for is_stale in stale], type=pa.bool_())) if table.num_rows else table
    return pa.concat_tables([kept.select(list(COLUMNS)), to_table(latest.values())])


def _without_device(key: Key) -> Key:
    return key[:DEVICE] + key[DEVICE + 1 :]

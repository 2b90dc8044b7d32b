"""Keeps rows: each durable as soon as it is told of, all of them in one Parquet file that is only ever replaced whole.

`results.path/rows.parquet` is the dataset; `_journal.jsonl` beside it holds what came since, one row a line, synced to
disk; names with an underscore are invisible to Parquet readers. Sealing merges both into a new file and renames it into
place, so that a reader finds the old rows or the new, and a crash at any moment loses and doubles nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kernels.problem import Problem
from orchestrator.errors import UserError
from orchestrator.row import COLUMNS, Row, schema, to_json, to_table

if TYPE_CHECKING:
    import pyarrow as pa

DATA, JOURNAL, LOCK = "rows.parquet", "_journal.jsonl", "_lock"
KEY = ("point_id", "cluster", "device_name", "torch_version", "flashinfer_version", "orchestrator_version")
NEEDED = frozenset({*KEY, "run_id", "status", "finished_at"})  # a file without these is none of ours
ANY_OF = " | "  # joins the kinds of devices in the row of a point that none of them was to run
BLOCK_BYTES = 4096
SEAL_SECONDS = 10.0  # how far the Parquet file may lag behind the journal, while the dataset is small

DEVICE = KEY.index("device_name")

Key = tuple[Any, ...]


def key_of(row: Mapping[str, Any]) -> Key:
    """What has one current row: a point on a cluster's kind of device under given versions."""
    return tuple(row[name] for name in KEY)


class CannotStore(Exception):
    """The dataset cannot be written any more; what was reported before is on disk."""


class Store:
    """A dataset that is being written, by one process at a time.

    Raises UserError where the path cannot hold a dataset, where another process writes to it, and where a file in it is
    no dataset of this project.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._lock = _own(self.path)
        try:
            self._journaled: list[Row] = []
            self._sealed_at = time.monotonic()
            _require_ours(self.path)
            self.table = read(path)
            if (self.path / JOURNAL).exists() or not (self.path / DATA).exists():  # what was sealed stays as it is
                self._write_sealed(self.table)
            # Unbuffered: what a full disk refuses must not be written by a later flush, into a dataset that has another owner.
            self._journal = (self.path / JOURNAL).open("wb", buffering=0)
            _require_room(self._journal)
        except OSError as error:
            self._lock.close()
            raise UserError(f"{self._cannot(error)}; rows that were reported are kept. Make room there, or give it back") from None
        except UserError:
            self._lock.close()
            raise

    def add(self, rows: Iterable[Row]) -> None:
        """Takes rows; they are on disk when this returns. A row replaces an older one of the same key."""
        new = list(rows)
        whole = self._journal.tell()
        try:
            _write_all(self._journal, "".join(f"{to_json(row)}\n" for row in new).encode())
            os.fsync(self._journal.fileno())
        except OSError as error:
            with suppress(OSError):  # a disk that has turned read-only takes nothing away either
                self._journal.truncate(whole)
                self._journal.seek(whole)  # else the next row would stand behind a gap
            raise self._cannot(error) from error
        self._journaled += new
        # Rewriting costs as much as there is, so a large dataset waits until it has grown by half.
        overdue = time.monotonic() - self._sealed_at > SEAL_SECONDS
        if overdue and len(self._journaled) * 2 > self.table.num_rows - 10_000:
            self.seal()

    def seal(self) -> None:
        """Merges the journal into the Parquet file."""
        if self._journaled:
            merged = merge(self.table, self._journaled)
            try:
                self._write_sealed(merged)
                self._journal.seek(0)
                self._journal.truncate()
            except OSError as error:
                raise self._cannot(error) from error
            self.table = merged
            self._journaled.clear()
        self._sealed_at = time.monotonic()

    def close(self) -> None:
        """Seals and lets go of the dataset; lets go of it too where it cannot be sealed."""
        try:
            self.seal()
            (self.path / JOURNAL).unlink(missing_ok=True)
        except OSError as error:
            raise self._cannot(error) from error
        finally:
            self._journal.close()
            self._lock.close()

    def _cannot(self, error: OSError) -> CannotStore:
        return CannotStore(f"results.path={str(self.path)!r} cannot be written ({error.strerror or error})")

    def _write_sealed(self, table: pa.Table) -> None:
        import pyarrow.parquet as pq

        fresh = self.path / f"_{DATA}.new"
        try:
            pq.write_table(table, fresh, compression="zstd")
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            fresh.replace(self.path / DATA)
        except OSError:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)  # half a file helps nobody, and the disk may be full of it
            raise
        folder = os.open(self.path, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def _require_room(journal: IO[bytes]) -> None:
    """OSError now, and not after the first point, where the disk takes nothing more."""
    _write_all(journal, b"\n" * BLOCK_BYTES)
    os.fsync(journal.fileno())
    journal.seek(0)
    journal.truncate()


def _write_all(file: IO[bytes], data: bytes) -> None:
    """A raw file may take a part of what it is given, and say only then that there is no room for the rest."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _require_ours(path: Path) -> None:
    """UserError for a file beside the dataset, which whoever reads the folder as Parquet would take for a part of it."""
    if others := foreign(entry.name for entry in path.iterdir()):
        raise UserError(
            f"results.path={str(path)!r}: {path / others[0]} is no part of a dataset, and readers of the folder take it for one; "
            f"allowed: {DATA} and names that begin with _; move it away, or type another results.path=..."
        )


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
        raise UserError(
            f"results.path={str(path)!r}: {error.filename} cannot be read ({error.strerror}); make it readable, or type another "
            f"results.path=..."
        ) from None
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
    columns = [
        _cast(table.column(field.name), field.type)
        if field.name in known
        else pa.array([defaults.get(field.name)] * len(table), type=field.type)
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


def _own(path: Path) -> IO[str]:
    """The lock of a dataset, made with its folder where there was none."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"results.path={str(path)!r}: cannot be written ({error.strerror}); allowed: a folder that is yours, or a new one"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        owner = lock.read().strip() or "another process"
        raise UserError(
            f"results.path={str(path)!r}: {owner} writes to it; wait for it, or type another results.path=..."
        ) from None
    except OSError as error:
        raise UserError(
            f"results.path={str(path)!r}: cannot be locked there ({error.strerror}); type another results.path=..."
        ) from None
    with suppress(OSError):  # on a full disk the lock holds, and cannot say whose it is
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {platform.node()}")
        lock.flush()
    return lock

"""Keeps rows: each durable as soon as it is told of, all of them in one Parquet file that is only ever replaced whole.

`results.path/rows.parquet` is the dataset; `_journal.jsonl` beside it holds what came since, one row a line, synced to
disk; names with an underscore are invisible to Parquet readers. Sealing merges both into a new file and renames it into
place, so that a reader finds the old rows or the new, and a crash at any moment loses and doubles nothing.
"""

from __future__ import annotations

import fcntl
import os
import platform
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from orchestrator.datafile import DATA, JOURNAL, foreign, merge, read
from orchestrator.errors import UserError
from orchestrator.row import Row, to_json

if TYPE_CHECKING:
    import pyarrow as pa

LOCK = "_lock"
BLOCK_BYTES = 4096
SEAL_SECONDS = 10.0  # how far the Parquet file may lag behind the journal, while the dataset is small


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
        except BaseException as error:  # an interrupt too: what is told once more must not follow half a line
            with suppress(OSError):  # a disk that has turned read-only takes nothing away either
                self._journal.truncate(whole)
                self._journal.seek(whole)  # else the next row would stand behind a gap
            if isinstance(error, OSError):
                raise self._cannot(error) from error
            raise
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

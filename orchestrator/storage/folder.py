"""A dataset in a folder: one Parquet file that is always replaced as a whole, and a journal of newer rows.

`results.path/rows.parquet` is the dataset. `_journal.jsonl` beside it has the rows that came since, one on each line, synced to
disk when `add` returns. Parquet readers ignore names that begin with an underscore.
Sealing merges both into a new file and renames it into place: a reader finds the old rows or the new ones, and a crash at any
moment neither loses nor duplicates a row.
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

from orchestrator.errors import CannotStore, DamagedDataset, UserError
from orchestrator.storage.parquet import DATA, JOURNAL, foreign_names, merge, read
from orchestrator.storage.row import Row, to_json

if TYPE_CHECKING:
    import pyarrow as pa

LOCK = "_lock"
BLOCK_BYTES = 4096
SEAL_SECONDS = 10.0  # at most between two seals, while the dataset is small


class FolderStore:
    """An open dataset in a folder, which this process alone writes to.

    Raises UserError if the folder cannot be written or another process writes to it, DamagedDataset if a file in it is damaged or
    not this project's.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._lock = _lock(self.path)
        try:
            self._journaled: list[Row] = []
            self._sealed_at = time.monotonic()
            _require_ours(self.path)
            self.table = read(path)
            if (self.path / JOURNAL).exists() or not (self.path / DATA).exists():  # a sealed file is not rewritten
                self._write_sealed(self.table)
            # Unbuffered: bytes that a full disk refused must not be flushed later, when another process may own the dataset.
            self._journal = (self.path / JOURNAL).open("wb", buffering=0)
            _require_room(self._journal)
        except OSError as error:
            self._lock.close()
            raise UserError(f"{self._cannot(error)}; rows that were reported are kept. Make room there, or give it back") from None
        except UserError:
            self._lock.close()
            raise

    def add(self, rows: Iterable[Row]) -> None:
        """Stores rows; they are on disk when this returns. A row replaces an older one of the same key. Raises CannotStore."""
        new = list(rows)
        whole = self._journal.tell()
        try:
            _write_all(self._journal, "".join(f"{to_json(row)}\n" for row in new).encode())
            os.fsync(self._journal.fileno())
        except BaseException as error:  # an interrupt too: the same rows may be added again, and must not follow half a line
            with suppress(OSError):  # a disk that has become read-only cannot be truncated either
                self._journal.truncate(whole)
                self._journal.seek(whole)  # else the next row would follow a gap of zeros
            if isinstance(error, OSError):
                raise self._cannot(error) from error
            raise
        self._journaled += new
        # Sealing rewrites the whole file, so a large dataset waits until it has grown by half.
        overdue = time.monotonic() - self._sealed_at > SEAL_SECONDS
        if overdue and len(self._journaled) * 2 > self.table.num_rows - 10_000:
            self.seal()

    def seal(self) -> None:
        """Merges the journal into the Parquet file. Raises CannotStore."""
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
        """Seals, and releases the dataset even if that fails. Raises CannotStore."""
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
                fresh.unlink(missing_ok=True)  # half a file is useless, and may fill the disk
            raise
        folder = os.open(self.path, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def _require_room(journal: IO[bytes]) -> None:
    """Raises OSError now, not after the first point, if the disk is full."""
    _write_all(journal, b"\n" * BLOCK_BYTES)
    os.fsync(journal.fileno())
    journal.seek(0)
    journal.truncate()


def _write_all(file: IO[bytes], data: bytes) -> None:
    """Writes all of it: a raw file may write only a part, and raise at the next write."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _require_ours(path: Path) -> None:
    """Raises DamagedDataset for another file in the folder: readers of the folder would take it for a part of the dataset."""
    if others := foreign_names(entry.name for entry in path.iterdir()):
        raise DamagedDataset(
            f"results.path={str(path)!r}: {path / others[0]} is no part of a dataset, and readers of the folder take it for one; "
            f"allowed: {DATA} and names that begin with _; move it away, or type another results.path=..."
        )


def _lock(path: Path) -> IO[str]:
    """Locks a dataset, and creates its folder if there is none. Raises UserError, with the owner named if there is one."""
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
    with suppress(OSError):  # on a full disk the lock works, but does not name its owner
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {platform.node()}")
        lock.flush()
    return lock

"""A dataset in a folder: one Parquet file that is always replaced as a whole, and a journal of newer rows.

`results.path/rows.parquet` is the dataset. `_journal.jsonl` beside it has the rows that came since, one on each line, synced to
disk when `add` returns. Parquet readers ignore names that begin with an underscore.
Sealing merges both into a new file and renames it into place: a reader finds the old rows or the new ones, and a crash at any
moment neither loses nor duplicates a row. A large dataset is merged in a thread while rows are added: these stay in the journal,
which is replaced by one of them alone once the new file is in place. Until then rows are in both, and a reader takes each once.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import platform
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from orchestrator.errors import CannotStore, DamagedDataset, DatasetGone, NotPlain, UserError
from orchestrator.notes import note_once
from orchestrator.storage import checksum, parquet
from orchestrator.storage.journal import storable
from orchestrator.storage.parquet import DATA, JOURNAL, SMALL_ROWS, foreign_names, look, merge
from orchestrator.storage.row import Row, to_json
from orchestrator.untrusted.files import is_same, open_to_read, open_to_write, require_plain
from orchestrator.untrusted.text import for_line

if TYPE_CHECKING:
    import pyarrow as pa

FRESH, FRESH_JOURNAL = f"_{DATA}.new", f"{JOURNAL}.new"
BLOCK_BYTES = 4096
LOCK, SET_ASIDE = "_lock", "_set_aside.jsonl"
NO_LOCKS_ON_FOLDERS = frozenset({errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOLCK, errno.ENOTSUP})  # such as NFS


@dataclass(frozen=True)
class Merging:
    """A merge that runs in a thread: of the first `rows` rows of the journal. It gives the table that it has written."""

    table: Future[pa.Table]
    rows: int


class FolderStore:
    """An open dataset in a folder, which this process alone writes to.

    With `background` a large dataset is merged in a thread: not where this process also measures, which a thread would disturb.

    Raises UserError if it cannot be written or another process writes to it, DamagedDataset if a file in it is not ours.
    """

    def __init__(self, path: str, *, background: bool = False) -> None:
        self.path, self._background = Path(path).absolute(), background  # a plugin may change the working directory
        self._merging: Merging | None = None
        with suppress(OSError):  # said again below, of a folder that is there and is ours to look into
            _require_ours(self.path)  # before anything is written to it
        self._lock = FolderLock(self.path)
        try:
            self._journaled: list[Row] = []
            self._sealed_at = time.monotonic()
            _require_ours(self.path)
            for name in (FRESH, FRESH_JOURNAL):
                require_plain(self.path / name)  # found now, not at the first seal
            self.table, wrong = look(path)
            if require_plain(self.path / DATA, follow=True):
                with open_to_read(self.path / DATA) as file:
                    parquet.require_known(file, self.path / DATA)
            self._set_aside(wrong)
            if require_plain(self.path / JOURNAL) or not require_plain(self.path / DATA):  # a sealed file is not rewritten
                self._write_sealed(self.table)
            # Unbuffered: bytes that a full disk refused must not be flushed later, when another process may own the dataset.
            self._journal = open_to_write(self.path / JOURNAL)
            self._journal.truncate(0)
            _write(self._journal, b"\n" * BLOCK_BYTES)  # a full disk is told now, not after the first point
            self._journal.seek(0)
            self._journal.truncate()
        except (OSError, UserError) as error:
            self._lock.close()
            if isinstance(error, UserError):
                raise
            if isinstance(error, NotPlain):
                raise UserError(f"results.path={path!r}: {error.filename}: {error.strerror}") from None
            raise UserError(f"{self._cannot(error)}; rows that were reported are kept. Make room there, or give it back") from None

    def add(self, rows: Iterable[Row]) -> None:
        """Stores rows; they are on disk when this returns. A row replaces an older one of the same key. Raises CannotStore."""
        new = list(map(storable, rows))
        self._require_still_there()
        whole = self._journal.tell()
        try:
            _write(self._journal, _lines(new))
        except BaseException as error:  # an interrupt too: the same rows may be added again, and must not follow half a line
            with suppress(OSError):  # a disk that has become read-only cannot be truncated either
                self._journal.truncate(whole)
                self._journal.seek(whole)  # else the next row would follow a gap of zeros
            if isinstance(error, OSError):
                raise self._cannot(error) from error
            raise
        self._journaled += new
        if self._merging is not None:
            if self._merging.table.done():
                self._take_merged(self._merging)
        elif parquet.should_seal(len(self._journaled), self.table.num_rows, self._sealed_at):
            if self._background and self.table.num_rows + len(self._journaled) > SMALL_ROWS:
                self._merge_in_thread()
            else:
                self.seal()

    def _merge_in_thread(self) -> None:
        """Begins to merge the journal of now into the Parquet file; `add` and `seal` take the result."""
        rows, table, thread = list(self._journaled), self.table, ThreadPoolExecutor(1, "merge")

        def merged() -> pa.Table:
            found = merge(table, rows)
            self._write_sealed(found)
            return found

        self._merging = Merging(thread.submit(merged), len(rows))
        thread.shutdown(wait=False)

    def _take_merged(self, merging: Merging) -> None:
        """Waits for a merge in a thread, and leaves in the journal the rows that came since it began. Raises CannotStore."""
        try:
            table = merging.table.result()  # an interrupt here leaves it running, and the next call waits again
            self._merging = None
            self._require_still_there()
            self._keep_journaled(self._journaled[merging.rows :])
        except OSError as error:
            self._merging = None
            raise self._cannot(error) from error
        self.table = table
        self._sealed_at = time.monotonic()

    def _keep_journaled(self, rows: list[Row]) -> None:
        """Replaces the journal by one of these rows alone, as a whole. Raises OSError."""
        fresh = open_to_write(self.path / FRESH_JOURNAL, new=True)
        try:
            _write(fresh, _lines(rows))
            (self.path / FRESH_JOURNAL).replace(self.path / JOURNAL)
        finally:  # an interrupt too: rows must go to the file that has the name
            if is_same(fresh, self.path / JOURNAL):
                self._journal, fresh, self._journaled = fresh, self._journal, rows
            fresh.close()
        _sync_folder(self.path)

    def seal(self) -> None:
        """Merges the journal into the Parquet file. Raises CannotStore."""
        if self._merging is not None:
            self._take_merged(self._merging)
        self._require_still_there()
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
            if self._merging is not None:  # after an interrupt: whoever has the lock next must find it ended
                wait([self._merging.table])
            self._journal.close()
            self._lock.close()

    def _set_aside(self, lines: list[bytes]) -> None:
        """Keeps lines of the journal that are no rows, before it is emptied. Raises OSError."""
        if lines:
            with open_to_write(self.path / SET_ASIDE) as file:
                file.seek(0, os.SEEK_END)
                _write(file, b"".join(line + b"\n" for line in lines))
            note_once(f"the wrong lines of {self.path / JOURNAL} are in {SET_ASIDE} beside it")

    def _cannot(self, error: OSError) -> CannotStore:
        return CannotStore(f"results.path={str(self.path)!r} cannot be written ({error.strerror or error})")

    def _require_still_there(self) -> None:
        """Raises DatasetGone if somebody has deleted or exchanged what this process writes to: its rows would reach nobody."""
        try:
            gone = "" if self._lock.is_ours() else self._lock.path.name
            if not gone and not is_same(self._journal, self.path / JOURNAL):
                gone = JOURNAL
        except OSError as error:  # the folder may no longer be looked into
            raise self._cannot(error) from error
        if not gone:
            return
        what = f"{gone} in it was" if self.path.is_dir() else "the folder was"
        kept = f"{self.table.num_rows:,} rows are in {DATA}" if require_plain(self.path / DATA) else f"{DATA} is gone too"
        raise DatasetGone(
            f"results.path={str(self.path)!r}: {what} deleted or exchanged while this run wrote to it; "
            f"{len(self._journaled):,} rows that were reported since are lost, and {kept}"
        )

    def _write_sealed(self, table: pa.Table) -> None:
        fresh = self.path / FRESH
        require_plain(self.path / DATA)  # renaming would take the place of a link
        try:
            with open_to_write(fresh, new=True) as raw, io.BufferedRandom(cast(io.RawIOBase, raw)) as file:
                checksum.write(table, file)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path / DATA)
        except NotPlain:
            raise
        except OSError:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)  # half a file is useless, and may fill the disk
            raise
        _sync_folder(self.path)


def _sync_folder(path: Path) -> None:
    """Writes to disk which files are in a folder."""
    folder = os.open(path, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def _lines(rows: Iterable[Row]) -> bytes:
    return "".join(f"{to_json(row)}\n" for row in rows).encode()


def _write(file: IO[bytes], data: bytes) -> None:
    """Writes all of it to disk: a raw file may write only a part, and raise at the next write."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
    os.fsync(file.fileno())


def _require_ours(path: Path) -> None:
    """Raises DamagedDataset for another file in the folder: readers of the folder would take it for a part of the dataset."""
    if others := foreign_names(entry.name for entry in path.iterdir()):
        raise DamagedDataset(
            f"results.path={str(path)!r}: {path / others[0]} is no part of a dataset, and readers of the folder take it for one; "
            f"allowed: {DATA} and names that begin with _; move it away, or type another results.path=..."
        )


class FolderLock:
    """The right of one process to write to a dataset: a lock on the folder, and one on the file `_lock`, which names the owner.

    The folder's holds although somebody deletes the file. A network file system may not lock folders; there the file's alone does.
    Creates the folder if there is none. Raises UserError, with the owner named if there is one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / LOCK
        try:
            path.mkdir(parents=True, exist_ok=True)
            require_plain(self.path)
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._of_folder = self._take(self._folder, path)
                self._file = open_to_write(self.path)
                self._take(self._file.fileno(), path)
            except (OSError, UserError):
                os.close(self._folder)
                raise
        except OSError as error:
            place = f"results.path={str(path)!r}: "
            if isinstance(error, NotPlain):
                raise UserError(f"{place}{error.filename}: {error.strerror}") from None
            raise UserError(f"{place}cannot be written ({error.strerror}); allowed: a folder that is yours, or a new one") from None
        with suppress(OSError):  # on a full disk the lock works, but does not name its owner
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {platform.node()}".encode())

    def is_ours(self) -> bool:
        """Whether nobody else can have it. A deleted file matters only if the folder could not be locked."""
        folder = is_same(self._folder, self.path.parent)
        return folder and (self._of_folder or is_same(self._file, self.path))

    def close(self) -> None:
        """Gives the dataset free. Nothing happens the second time."""
        if not self._file.closed:
            self._file.close()
            os.close(self._folder)

    def _take(self, fd: int, path: Path) -> bool:
        """Locks a file or a folder; false for a folder that cannot be locked. Raises UserError if another process has it."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"results.path={str(path)!r}: {self._owner()} writes to it; wait for it, or type another results.path=..."
            ) from None
        except OSError as error:
            if fd == self._folder and error.errno in NO_LOCKS_ON_FOLDERS:
                return False
            raise UserError(
                f"results.path={str(path)!r}: cannot be locked there ({error.strerror}); type another results.path=..."
            ) from None
        return True

    def _owner(self) -> str:
        with suppress(OSError), open_to_read(self.path, follow=False) as file:
            return for_line(file.read(200).decode(errors="replace")).strip() or "another process"
        return "another process"

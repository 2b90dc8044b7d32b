"""A dataset in an object store, which can neither append to an object nor rename one.

`rows.parquet` is written as a whole: readers see all of it or none. Newer rows are in journal objects, one for each call of `add`,
in a folder that is new after each seal. The file's metadata (`SEALED`) says how many objects of which folder it contains. Objects
that a crash or a slow deletion left behind are therefore ignored: a crash at any moment neither loses nor duplicates a row.

The lease says which process may write. pyarrow has no conditional PUT. So a driver writes an object with its own name, and then
lists the others: the later of two drivers sees the earlier one and withdraws. The owner renews its object every few seconds. An
owner counts as dead if its object was not renewed for `STALE_SECONDS`, by the store's clock, or if its process is known to have
ended. An owner that could not renew for `LOST_SECONDS`, stopped or disconnected, stops writing, before others take it for dead.
"""

from __future__ import annotations

import io
import json
import os
import platform
import random
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from orchestrator.errors import CannotStore, DamagedDataset, UserError
from orchestrator.process import start_time
from orchestrator.storage import checksum, parquet
from orchestrator.storage.journal import rows_in, storable
from orchestrator.storage.parquet import DATA, foreign_names, merge, read_sealed
from orchestrator.storage.row import Row, to_json
from orchestrator.storage.s3.bucket import Bucket
from orchestrator.untrusted.door import from_json

if TYPE_CHECKING:
    import pyarrow as pa

JOURNAL = "_journal"
SEALED = b"attention-orchestrator.sealed"
MAX_READS = 3  # of a file that is being replaced
HELP = "see docs/clusters.md for the settings of a store"
MAX_OBJECTS = 1000  # in the journal: more would make readers wait
OWNERS, SET_ASIDE = "_owner", "_set_aside"
RENEW_SECONDS, LOST_SECONDS, STALE_SECONDS = 10.0, 40.0, 60.0
TRIES = 3  # of two drivers that start at the same time both may withdraw


class ObjectStore:
    """An open dataset in an object store, written by this process alone, as `FolderStore`; DamagedDataset if not ours."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.bucket = Bucket(path)
        self._writer = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{secrets.token_hex(2)}"
        self._epoch = self._count = 0  # of the journal: folders so far, objects in this one
        self._journaled: list[Row] = []
        try:
            self._lease = Lease(self.bucket, path)
        except OSError as error:
            raise UserError(f"{self._cannot(error)}; {HELP}") from None
        try:
            if strangers := foreign_names(self.bucket.names()):
                raise DamagedDataset(
                    f"results.path={path!r}: {strangers[0]} is no part of a dataset; type another results.path=..."
                )
            # Journal folders are deleted with the first file, which contains their rows.
            self.table, self._left, data, wrong = _look(self.bucket, path)
            if data is not None:
                parquet.require_known(io.BytesIO(data), f"{path}/{DATA}")
            if wrong:
                self.bucket.put(f"{SET_ASIDE}/{self._writer}.jsonl", b"".join(line + b"\n" for line in wrong))
            self._write_sealed(self.table)
        except (OSError, UserError) as error:
            with suppress(OSError):
                self._lease.release()
            if isinstance(error, UserError):
                raise
            raise UserError(f"{self._cannot(error)}; rows that were reported are kept") from None

    def add(self, rows: Iterable[Row]) -> None:
        """Stores rows; they are in the object store when this returns. A row replaces an older one of the same key."""
        new = list(map(storable, rows))
        try:
            self.bucket.put(f"{self._folder}/{self._count:06d}.jsonl", "".join(f"{to_json(row)}\n" for row in new).encode())
        except OSError as error:
            raise self._cannot(error) from error
        self._count += 1
        self._journaled += new
        # Each journal object costs a reader a request, so many of them count as many rows.
        journaled = self.table.num_rows if self._count > MAX_OBJECTS else len(self._journaled)
        if parquet.should_seal(journaled, self.table.num_rows, self._sealed_at):
            self.seal()

    def seal(self) -> None:
        """Merges the journal into the Parquet file."""
        if not self._journaled:
            return
        merged = merge(self.table, self._journaled)
        self._left[self._folder] = self._count
        try:
            self._write_sealed(merged)
        except OSError as error:
            raise self._cannot(error) from error
        self.table = merged
        self._journaled.clear()

    def close(self) -> None:
        """Seals, and releases the dataset even if that fails. Raises CannotStore."""
        try:
            self.seal()
        finally:
            try:
                self._lease.release()
            except OSError as error:
                raise self._cannot(error) from error

    @property
    def _folder(self) -> str:
        return f"{JOURNAL}/{self._writer}-{self._epoch:04d}"

    def _cannot(self, error: OSError) -> CannotStore:
        return CannotStore(f"results.path={self.path!r} cannot be written ({_words(error)})")

    def _write_sealed(self, table: pa.Table) -> None:
        """Puts the file, and deletes the journal objects that it now contains."""
        file = io.BytesIO()
        checksum.write(table.replace_schema_metadata({SEALED: json.dumps(self._left).encode()}), file)
        if self._lease.is_lost:
            raise OSError("the store was not reached for so long that another driver may own the dataset by now")
        self.bucket.put(DATA, file.getvalue())
        self._epoch, self._count = self._epoch + 1, 0
        for folder in list(self._left):
            self.bucket.delete_folder(folder)
            del self._left[folder]
        self._sealed_at = time.monotonic()


def read(path: str) -> pa.Table:
    """The dataset under `path` with its journal. Raises UserError if it cannot be read, DamagedDataset if it is not ours."""
    try:
        return _look(Bucket(path), path)[0]
    except OSError as error:
        raise UserError(f"results.path={path!r} cannot be read ({_words(error)}); {HELP}") from None


def exists(path: str) -> bool:
    try:
        return DATA in Bucket(path).names()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({_words(error)}); {HELP}") from None


def _words(error: OSError) -> str:
    return " ".join(str(error).split())[:300]


def _look(bucket: Bucket, path: str) -> tuple[pa.Table, dict[str, int], bytes | None, list[bytes]]:
    """Rows, objects by journal folder, Parquet file, wrong lines. Reads the journal first: what goes meanwhile is in the file."""
    import pyarrow.parquet as pq

    names = list(bucket.objects(JOURNAL))
    pieces = bucket.get_all(names)
    data = _file(bucket)
    table = read_sealed(None if data is None else io.BytesIO(data), path, f"{path}/{DATA}")
    metadata = {} if data is None else pq.read_schema(io.BytesIO(data)).metadata or {}
    done: dict[str, int] = from_json(metadata.get(SEALED, b"{}"))
    rows: list[Row] = []
    wrong: list[bytes] = []
    ends = dict[str, int]()
    for name, piece in zip(names, pieces, strict=True):
        folder, number = _place_of(name)
        ends[folder] = max(ends.get(folder, 0), number + 1)
        if piece is not None and number >= done.get(folder, 0):
            found, strange = rows_in(piece.splitlines(), f"{path}/{name}")
            rows, wrong = rows + found, wrong + strange
    return merge(table, rows) if rows else table, ends, data, wrong


def _file(bucket: Bucket) -> bytes | None:
    """The Parquet file. Read again while its footer makes no sense, since a writer may have replaced it during the read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for _ in range(MAX_READS):
        data = bucket.get(DATA)
        with suppress(pa.ArrowException, OSError):
            if data is not None:
                pq.read_metadata(io.BytesIO(data))
            break
    return data


def _place_of(name: str) -> tuple[str, int]:
    """The folder and the number of a journal object. 0 for a foreign name, so that it is read, and reported as damage."""
    folder, _, file = name.rpartition("/")
    digits = file.removesuffix(".jsonl")
    return folder, int(digits) if digits.isdigit() else 0


class Lease:
    """The lease of this process. Raises UserError, with the owner named, if another process has it. Methods raise OSError."""

    def __init__(self, bucket: Bucket, path: str) -> None:
        self.bucket = bucket
        self.name = f"{OWNERS}/{secrets.token_hex(8)}.json"
        for tries_left in reversed(range(TRIES)):
            self._renew()
            try:
                owner = self._another()
            except UserError:
                bucket.delete(self.name)
                raise
            if owner is None:
                break
            bucket.delete(self.name)
            if not tries_left:
                raise UserError(
                    f"results.path={path!r}: {owner} writes to it; wait for it, or type another results.path=... "
                    f"(a driver that died is forgotten after {STALE_SECONDS:g} s)"
                )
            time.sleep(random.uniform(0.3, 1.5))
        self._released = Event()
        self._thread = Thread(target=self._keep, daemon=True, name="lease")
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Whether another process may own the dataset by now."""
        return time.monotonic() - self._renewed_at > LOST_SECONDS

    def release(self) -> None:
        """Gives the lease up. Raises OSError if the store is not reached."""
        self._released.set()
        self._thread.join()
        self.bucket.delete(self.name)

    def _renew(self) -> None:
        began = time.monotonic()
        self.bucket.put(self.name, json.dumps(_this_process()).encode())
        self._renewed_at = began

    def _keep(self) -> None:
        while not self._released.wait(RENEW_SECONDS) and not self.is_lost:
            with suppress(OSError):  # tried again until the lease counts as lost
                self._renew()

    def _another(self) -> str | None:
        """Who else has the lease, in words; None if nobody has. Deletes what dead owners left."""
        put_at = self.bucket.objects(OWNERS)
        now = put_at.pop(self.name)
        for name, renewed in put_at.items():
            owner = _owner_of(self.bucket.get(name) or b"{}", f"s3://{self.bucket.root}/{name}")
            silent_s = (now - renewed).total_seconds()
            here = bool(owner) and owner["place"] == _pid_namespace() != ""  # where a process can be looked up
            if silent_s > STALE_SECONDS or (here and start_time(owner["pid"]) != owner["started"]):
                self.bucket.delete(name)
            elif owner:
                return f"process {owner['pid']} on {owner['host']}, heard of {max(silent_s, 0):.0f} s ago,"
        return None


def _this_process() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": platform.node(), "place": _pid_namespace(), "started": start_time(os.getpid())}


def _owner_of(content: bytes, name: str) -> dict[str, Any]:
    """An owner's description of itself; empty if it was deleted meanwhile. Raises DamagedDataset for any other content."""
    try:
        owner = from_json(content)
    except ValueError:
        owner = {"": "no JSON"}
    if owner and owner.keys() != _this_process().keys():
        raise DamagedDataset(f"{name} is no part of a dataset; move it away, or type another results.path=...")
    return owner


def _pid_namespace() -> str:
    """Where a process number is unique: this boot of this machine, and the container. Empty if unknown."""
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    return ""

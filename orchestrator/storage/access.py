"""Opens a dataset by its path: a folder, local or shared, or a prefix of an object store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from orchestrator.errors import UserError
from orchestrator.storage import folder, parquet
from orchestrator.storage.row import Row
from orchestrator.storage.s3.bucket import SCHEME

if TYPE_CHECKING:
    import pyarrow as pa


class DatasetWriter(Protocol):
    """An open dataset. Only one process at a time writes to it."""

    table: pa.Table  # the rows of the Parquet file, without those that are still only in the journal

    def add(self, rows: Iterable[Row]) -> None:
        """Stores rows: when this returns, a crash loses none of them. Raises CannotStore."""

    def seal(self) -> None:
        """Merges every row into the Parquet file. Raises CannotStore."""

    def close(self) -> None:
        """Merges every row into the Parquet file and releases the dataset. Raises CannotStore."""


def open_writer(path: str, *, background: bool = False) -> DatasetWriter:
    """Opens, or makes, a dataset (merged in a thread with `background`). Raises UserError, DamagedDataset for a file not ours."""
    if in_objects(path):
        from orchestrator.storage.s3.store import ObjectStore

        return ObjectStore(path)
    if (file := parquet.data_file(path)).name != parquet.DATA:
        raise UserError(f"results.path={path!r} is the file {file}, which can only be read; type another results.path=DIR")
    return folder.FolderStore(path, background=background)


def read(path: str) -> pa.Table:
    """The rows of a dataset, in today's columns. Raises DamagedDataset, and UserError if it may not be read."""
    if in_objects(path):
        from orchestrator.storage.s3 import store

        return store.read(path)
    return parquet.read(path)


def exists(path: str) -> bool:
    """Whether there is a dataset. Raises UserError if that cannot be found out."""
    if path.startswith(SCHEME):
        from orchestrator.storage.s3 import store

        return store.exists(path)
    try:
        return parquet.data_file(path).exists()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); make it readable, or type another folder") from None


def in_objects(path: str) -> bool:
    """Whether a path names an object store. Raises UserError for a kind of store that is not supported."""
    if path.startswith(SCHEME):
        return True
    if "://" in path:
        raise UserError(f"results.path={path!r}: allowed: a folder, or {SCHEME}BUCKET/PREFIX for an S3-compatible store")
    return False

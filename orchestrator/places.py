"""Where datasets lie: a folder of this machine or a shared one, or a prefix of an object store. By the path alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orchestrator import datafile, store
from orchestrator.bucket import SCHEME
from orchestrator.errors import UserError
from orchestrator.row import Row

if TYPE_CHECKING:
    import pyarrow as pa


class Written(Protocol):
    """A dataset that is being written, by one process at a time."""

    table: pa.Table  # what the Parquet file holds

    def add(self, rows: Iterable[Row]) -> None:
        """Takes rows; they are kept when this returns. Raises CannotStore."""

    def seal(self) -> None:
        """Brings every row into the Parquet file. Raises CannotStore."""

    def close(self) -> None:
        """Seals and lets go of it. Raises CannotStore."""


def opened(path: str) -> Written:
    """The dataset to write to, made where there was none. Raises UserError where this process cannot have it."""
    if in_objects(path):
        from orchestrator.object_store import ObjectStore

        return ObjectStore(path)
    return store.Store(path)


def read(path: str) -> pa.Table:
    """The rows of a dataset. Raises UserError for what is none of this project's."""
    if in_objects(path):
        from orchestrator import object_store

        return object_store.read(path)
    return datafile.read(path)


def exists(path: str) -> bool:
    """Whether there is a dataset. Raises UserError for a place that cannot be asked."""
    if path.startswith(SCHEME):
        from orchestrator import object_store

        return object_store.exists(path)
    try:
        return (Path(path) / datafile.DATA).exists()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); make it readable, or type another folder") from None


def in_objects(path: str) -> bool:
    """Whether a path is that of an object store. Raises UserError for one of another kind of store."""
    if path.startswith(SCHEME):
        return True
    if "://" in path:
        raise UserError(f"results.path={path!r}: allowed: a folder, or {SCHEME}BUCKET/PREFIX for an S3-compatible store")
    return False

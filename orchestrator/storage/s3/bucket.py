"""Objects under a prefix of an S3 store, through pyarrow: each is there whole or not, and whoever lists next sees it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from orchestrator.errors import UserError

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

SCHEME = "s3://"
MAX_PARALLEL_READS = 16


class Bucket:
    """The objects under a path such as `s3://bucket/prefix`. Every method raises OSError if the store refuses or is not reached.

    Credentials, region and the address of a store other than AWS (`AWS_ENDPOINT_URL`) are found as AWS's own tools find them.
    Raises UserError for a path without a bucket or a prefix.
    """

    def __init__(self, path: str) -> None:
        self.root = path.removeprefix(SCHEME).strip("/")
        self.bucket, _, prefix = self.root.partition("/")
        if not prefix or not self.bucket or "?" in path:
            raise UserError(
                f"results.path={path!r}: allowed: s3://BUCKET/PREFIX; another store than AWS is named by AWS_ENDPOINT_URL"
            )
        # An interrupt reaches only the main thread. There, between opening and writing an object, it would leave it empty.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="bucket")

    @cached_property
    def _files(self) -> S3FileSystem:
        import pyarrow as pa
        from pyarrow import fs

        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if not region and not endpoint:
            region = fs.resolve_s3_region(self.bucket)
        # Opened at its first byte and written at once, an object costs one request instead of three. Before 20 pyarrow cannot.
        delayed = {"allow_delayed_open": True} if int(pa.__version__.partition(".")[0]) >= 20 else {}
        return fs.S3FileSystem(endpoint_override=endpoint, region=region, background_writes=False, **delayed)

    def get(self, name: str) -> bytes | None:
        """An object's bytes; None if there is none. If it is replaced meanwhile, they may be cut to its older length."""
        from pyarrow import fs

        try:
            with self._files.open_input_stream(f"{self.root}/{name}") as stream:
                data: bytes = stream.read()
                return data
        except OSError:  # also if it is deleted between pyarrow's requests for its length and its bytes
            if self._files.get_file_info(f"{self.root}/{name}").type == fs.FileType.NotFound:
                return None
            raise

    def get_all(self, names: Iterable[str]) -> list[bytes | None]:
        """The bytes of many objects, several requests at a time."""
        with ThreadPoolExecutor(MAX_PARALLEL_READS) as readers:
            return list(readers.map(self.get, names))

    def put(self, name: str, data: bytes) -> None:
        """Creates an object or replaces it. It is stored when this returns."""
        self._writer.submit(self._put, name, data).result()

    def _put(self, name: str, data: bytes) -> None:
        with self._files.open_output_stream(f"{self.root}/{name}") as stream:
            stream.write(data)

    def names(self) -> list[str]:
        """Names directly under the prefix, folders included."""
        return [name for name, _ in self._listed("", recursive=False)]

    def objects(self, folder: str) -> dict[str, datetime]:
        """Every object under a folder, sorted by name, with the time it was put, by the store's clock."""
        return {f"{folder}/{name}": put_at for name, put_at in self._listed(folder, recursive=True) if put_at is not None}

    def _listed(self, folder: str, recursive: bool) -> list[tuple[str, datetime | None]]:
        from pyarrow import fs

        base = f"{self.root}/{folder}".rstrip("/")
        found = self._files.get_file_info(fs.FileSelector(base, recursive=recursive, allow_not_found=True))
        return sorted((i.path.removeprefix(f"{base}/"), i.mtime if i.type == fs.FileType.File else None) for i in found)

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.delete_file(f"{self.root}/{name}")

    def delete_folder(self, folder: str) -> None:
        """Deletes every object under a folder, in no particular order."""
        with suppress(FileNotFoundError):
            self._files.delete_dir(f"{self.root}/{folder}")

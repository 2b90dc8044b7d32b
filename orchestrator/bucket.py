"""Objects under a prefix of an S3-compatible store, through pyarrow: each there whole or not at all. Knows nothing of rows.

Asks of the store what S3 promises: an object that was put is listed and read by whoever asks next.
"""

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
READS_AT_ONCE = 16


class Bucket:
    """What a path such as `s3://bucket/prefix` holds. Every method raises OSError where the store does not do as asked.

    Credentials and the region are found where AWS's own tools find them, and so is the address of another store
    (`AWS_ENDPOINT_URL`). Raises UserError for a path that names no bucket, or none of its prefixes.
    """

    def __init__(self, path: str) -> None:
        self.root = path.removeprefix(SCHEME).strip("/")
        self.bucket, _, prefix = self.root.partition("/")
        if not prefix or not self.bucket or "?" in path:
            raise UserError(
                f"results.path={path!r}: allowed: s3://BUCKET/PREFIX; another store than AWS is named by AWS_ENDPOINT_URL"
            )
        # An interrupt reaches the main thread alone: one that came between opening an object and writing it would leave it empty.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="bucket")

    @cached_property
    def _files(self) -> S3FileSystem:
        from pyarrow import fs

        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if not region and not endpoint:
            region = fs.resolve_s3_region(self.bucket)
        # Opened at its first byte and written at once, an object costs one request and not three.
        return fs.S3FileSystem(endpoint_override=endpoint, region=region, allow_delayed_open=True, background_writes=False)

    def get(self, name: str) -> bytes | None:
        """An object's bytes; None where there is none. One that is replaced meanwhile may come cut to its older length."""
        from pyarrow import fs

        try:
            with self._files.open_input_stream(f"{self.root}/{name}") as stream:
                data: bytes = stream.read()
                return data
        except OSError:  # also where it is taken away between pyarrow's look at its length and its read
            if self._files.get_file_info(f"{self.root}/{name}").type == fs.FileType.NotFound:
                return None
            raise

    def get_all(self, names: Iterable[str]) -> list[bytes | None]:
        """Those of many objects, several at once."""
        with ThreadPoolExecutor(READS_AT_ONCE) as readers:
            return list(readers.map(self.get, names))

    def put(self, name: str, data: bytes) -> None:
        """Makes an object or replaces it; it is kept once this returns."""
        self._writer.submit(self._put, name, data).result()

    def _put(self, name: str, data: bytes) -> None:
        with self._files.open_output_stream(f"{self.root}/{name}") as stream:
            stream.write(data)

    def names(self) -> list[str]:
        """What lies right under the prefix, folders among it."""
        return [name for name, _ in self._listed("", recursive=False)]

    def objects(self, folder: str) -> dict[str, datetime]:
        """Every object under a folder, in the order of their names, and when it was put, by the store's own clock."""
        return {f"{folder}/{name}": put_at for name, put_at in self._listed(folder, recursive=True) if put_at is not None}

    def _listed(self, folder: str, recursive: bool) -> list[tuple[str, datetime | None]]:
        from pyarrow import fs

        base = f"{self.root}/{folder}".rstrip("/")
        found = self._files.get_file_info(fs.FileSelector(base, recursive=recursive, allow_not_found=True))
        return sorted((i.path.removeprefix(f"{base}/"), i.mtime if i.type == fs.FileType.File else None) for i in found)

    def delete(self, name: str) -> None:
        """Takes an object away, if it is there."""
        with suppress(FileNotFoundError):
            self._files.delete_file(f"{self.root}/{name}")

    def delete_folder(self, folder: str) -> None:
        """Takes away every object under a folder, in no particular order."""
        with suppress(FileNotFoundError):
            self._files.delete_dir(f"{self.root}/{folder}")

"""A Parquet file with a checksum over every byte, which every Parquet reader can still read.

Each page has a CRC (`write_page_checksum`), which other readers can verify. It covers neither the headers of pages nor the footer,
where a changed statistic or offset would silently give other values. So `MARK` and the SHA-256 of all other bytes are written
between the last page and the footer. Parquet finds pages and footer by offsets, and never reads these bytes. The footer says that
the digest exists (`KEY`), so a damaged mark is found too.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from orchestrator.errors import DamagedDataset
from orchestrator.notes import note_once
from orchestrator.untrusted.files import open_to_read

if TYPE_CHECKING:
    import pyarrow as pa

KEY = b"attention-orchestrator.sha256"
MARK = b"attention-orchestrator sha256 of all other bytes: "
DIGEST = hashlib.sha256().digest_size
MAGIC, TAIL = b"PAR1", struct.Struct("<I4s")  # a Parquet file ends with the length of its footer and these letters
BLOCK = 1 << 20


def write(table: pa.Table, file: IO[bytes]) -> None:
    """Writes a table to an empty file as Parquet with both kinds of checksums."""
    import pyarrow.parquet as pq

    marked = table.replace_schema_metadata({**(table.schema.metadata or {}), KEY: b"before the footer"})
    pq.write_table(marked, file, compression="zstd", write_page_checksum=True)
    start = _footer(file)
    if start is None:
        raise OSError(0, "the written file is not a Parquet file")
    file.seek(start)
    footer = file.read()
    digest = _digest(file, start, footer)
    file.seek(start)
    file.write(MARK + digest + footer)


def require_whole(file: str | Path | IO[bytes], name: object) -> bool:
    """Whether a file has a digest; older ones have none. Raises DamagedDataset, with `name`, for a wrong one, and OSError."""
    if isinstance(file, str | Path):
        with open_to_read(file) as opened:
            return require_whole(opened, name)
    start = _footer(file)
    if start is None:
        raise DamagedDataset(f"{name} is no readable Parquet file (its beginning or its end is not that of one); move it away")
    file.seek(start)
    footer = file.read()
    known = start - len(MARK) - DIGEST
    found = b""
    if known >= len(MAGIC):
        file.seek(known)
        found = file.read(len(MARK) + DIGEST)
    if not found.startswith(MARK):
        if KEY in footer:
            raise DamagedDataset(f"{name} is damaged: its checksum is gone; move it away")
        return False
    if found[len(MARK) :] != _digest(file, known, footer):
        raise DamagedDataset(f"{name} is damaged: its bytes are not those of its checksum (SHA-256); move it away")
    file.seek(0)
    return True


_together: list[list[str]] = []  # the files of each `noted_together` that has begun


@contextmanager
def noted_together() -> Iterator[None]:
    """Says of all files that are read meanwhile at once that they cannot be verified."""
    _together.append([])
    try:
        yield
    finally:
        note_unsealed(list(dict.fromkeys(_together.pop())))


def note_unsealed(names: list[str]) -> None:
    """Says once that files cannot be verified."""
    if _together:
        _together[-1].extend(names)
    elif names:
        which = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more files"
        has = "it has" if len(names) == 1 else "they have"
        note_once(
            f"{which}: {has} no checksum (written by an older version), so damage would go unnoticed; "
            f"the next run that adds rows adds one",
            subject="checksum",
        )


def _footer(file: IO[bytes]) -> int | None:
    """Where the footer of a Parquet file begins; None for another file."""
    size = file.seek(0, 2)
    if size < len(MAGIC) + TAIL.size:
        return None
    file.seek(0)
    begins = file.read(len(MAGIC))
    file.seek(size - TAIL.size)
    length, ends = TAIL.unpack(file.read(TAIL.size))
    start = size - TAIL.size - length
    return start if begins == ends == MAGIC and start >= len(MAGIC) else None


def _digest(file: IO[bytes], start: int, footer: bytes) -> bytes:
    """The SHA-256 of the first `start` bytes and the footer."""
    digest, left = hashlib.sha256(), start
    file.seek(0)
    while left and (block := file.read(min(left, BLOCK))):
        digest.update(block)
        left -= len(block)
    digest.update(footer)
    return digest.digest()

"""Gives committed datasets of an older version their checksums, and shows that nothing else about them changes.

    python -m benchmarks.seal_again [FOLDER ...]

A file that has its checksums is left alone. For any other, the new file is read again and compared with the old one before it takes
its place: names and types of the columns, metadata of the schema and of each column, and each value of each row, by its exact text.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import ROOT
from orchestrator.storage import checksum
from orchestrator.storage.parquet import DATA
from orchestrator.untrusted.files import open_to_write

if TYPE_CHECKING:
    import pyarrow as pa


def seal(path: Path) -> int:
    """Rewrites a Parquet file with checksums. Returns how many values it has; 0 if it had checksums.

    Raises ValueError if anything would change.
    """
    import pyarrow.parquet as pq

    if checksum.require_whole(path, path):
        return 0
    before = pq.ParquetFile(path).read()
    fresh = path.with_name(f"_{path.name}.new")
    with open_to_write(fresh, new=True) as file:
        checksum.write(before, file)
    if not checksum.require_whole(fresh, fresh):
        raise ValueError(f"{fresh} has no checksum")
    values = require_same(before, pq.ParquetFile(fresh, page_checksum_verification=True).read())
    fresh.replace(path)
    return values


def require_same(before: pa.Table, after: pa.Table) -> int:
    """How many values two equal tables have each. Raises ValueError where they differ.

    Values are compared as text, which is exact for numbers, and in which NaN is equal to NaN.
    """
    metadata = {key: value for key, value in (after.schema.metadata or {}).items() if key != checksum.KEY}
    if not before.schema.equals(after.schema.with_metadata(metadata or None), check_metadata=True):
        raise ValueError(f"the schema differs: {before.schema} and {after.schema}")
    if before.num_rows != after.num_rows:
        raise ValueError(f"{before.num_rows} rows and {after.num_rows}")
    for name in before.column_names:
        for row, (one, other) in enumerate(zip(before[name].to_pylist(), after[name].to_pylist(), strict=True)):
            if repr(one) != repr(other):
                raise ValueError(f"{name} of row {row}: {one!r} and {other!r}")
    return int(before.num_rows * before.num_columns)


def main(folders: Sequence[str]) -> None:
    """Seals what has no checksums, and says what it did."""
    for folder in map(Path, folders) if folders else sorted((ROOT / "results").glob("*/")):
        values = seal(folder / DATA) if (folder / DATA).exists() else 0
        print(f"{folder.name}: {f'{values:,} values, all equal' if values else 'has checksums'}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Columns of a newer version: a dataset with them may be read, without them, but not written, since they would be lost."""

from __future__ import annotations

from typing import IO

from orchestrator.errors import UserError
from orchestrator.storage.columns import COLUMNS

SHOWN = 3  # names of columns, in an error


def require_known(file: IO[bytes], data: object) -> None:
    """Raises UserError if a Parquet file has columns that are none of today's. `data` is how the message calls the file."""
    import pyarrow.parquet as pq

    if unknown := [name for name in pq.read_schema(file).names if name not in COLUMNS]:
        more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
        raise UserError(
            f"results.path: {data} has columns that this version does not know ({', '.join(unknown[:SHOWN])}{more}) and would "
            "lose if it added rows; install the version that wrote them, or type another results.path=..."
        )

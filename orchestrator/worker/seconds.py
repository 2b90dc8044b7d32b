"""Columns of seconds, which grow while a point runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from orchestrator.storage.row import Row

Seconds = Literal["inputs_s", "check_s", "measure_s", "total_s"]


@contextmanager
def seconds_into(row: Row, column: Seconds) -> Iterator[None]:
    """Adds the seconds of wall time that the block takes to a column of the row."""
    started = time.perf_counter()
    try:
        yield
    finally:
        add_seconds(row, column, time.perf_counter() - started)


def add_seconds(row: Row, column: Seconds, seconds: float) -> None:
    row[column] = (row.get(column) or 0.0) + seconds

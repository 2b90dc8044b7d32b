"""Rows with a median time in µs, to ask questions about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from orchestrator.analysis.dataset import Dataset, from_table
from orchestrator.analysis.questions import define_views
from orchestrator.config.draft_cost import Draft
from orchestrator.storage.row import Row, finish, to_table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from orchestrator.analysis.questions import Assumed

SHAPE: Row = {"device_name": "H200", "model": "m", "q_dtype": "bf16", "kv_dtype": "bf16", "cluster": "c"}


def made(backend: str, median_us: float | None, status: Any = "ok", reason: str = "", **keys: object) -> Row:
    """A row of a backend."""
    shape = {"s_qo": 1, "batch_size": 8, "s_kv": 8192, **keys}
    point_id = f"{backend}-{shape['s_qo']}-{shape['batch_size']}-{shape['s_kv']}"
    return finish({**SHAPE, **shape, "backend": backend, "median_us": median_us, "point_id": point_id}, status, reason)


def asked(*rows: Row, assuming: Draft | None = None) -> Dataset:
    """A dataset of these rows."""
    return views_of(to_table(rows), assuming)


def views_of(table: pa.Table | pd.DataFrame, draft: Draft | None = None, **assumed: Unpack[Assumed]) -> Dataset:
    """A dataset of rows in memory, with a view for every question."""
    return define_views(from_table(table), draft or Draft(), **assumed)

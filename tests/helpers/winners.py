"""The fastest kernels of the main sweep as pandas finds them."""

from __future__ import annotations

import pandas as pd

GRID = ["q_dtype", "kv_dtype", "s_qo", "batch_size", "s_kv"]


def ok(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with a time."""
    return table[table["status"] == "ok"].copy()


def kernels(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each kernel of a problem: that of the backend of its own name if there is one. A reference competes alone."""
    right = ok(table)
    is_reference = right["backend"] == "torch_sdpa"
    has_others = (~is_reference).groupby([right[key] for key in GRID]).transform("any")
    right = right[~(is_reference & has_others)].copy()
    right["kernel"] = right["resolved_backend"].fillna(right["backend"])
    right["another"] = right["kernel"] != right["backend"]
    keys = [*GRID, "routine", "kv_layout", "page_order", "kernel"]
    return right.sort_values("another", kind="stable").drop_duplicates(keys)


def launch_of(rows: pd.DataFrame) -> pd.Series:
    """What is taken off a graph's time, in rows that are older than `own_us`: by the class of their host."""
    return pd.Series([3.75 if launch > 3.8 else 3.0 for launch in rows["launch_us"]], index=rows.index)

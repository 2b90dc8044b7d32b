"""A report over several sweeps says so, because its tables do not tell them apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orchestrator.config.settings import Settings
from orchestrator.reporting.report import dataset_grids
from orchestrator.storage.row import to_table
from tests.helpers.timed_rows import made


@pytest.mark.parametrize(
    ("sweeps", "where", "cells"),
    [
        (("a", "b", "b"), "{}", [("b", "2"), ("a", "1")]),
        (("a", "", "a"), "{}", [("a", "2"), ("no name", "1")]),
        (("a", "b", "b"), "{sweep: b}", []),
        (("a", "a", "a"), "{}", []),
    ],
)
def test_several_sweeps_are_counted(
    sweeps: tuple[str, ...], where: str, cells: list[tuple[str, str]], tmp_path: Path, settings: Callable[..., Settings]
):
    rows = [made("fa2_tc", 10.0, s_kv=1024 * n, sweep=name) for n, name in enumerate(sweeps, 1)]
    pq.write_table(to_table(rows), tmp_path / "rows.parquet")

    shown = dataset_grids(settings("+sweep=smoke", f"results.path={tmp_path}", f"where={where}"))

    assert [line for grid in shown if grid.title.startswith("rows of several sweeps") for line in grid.cells] == cells

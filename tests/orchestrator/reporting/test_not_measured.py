"""A report of a dataset that has no row of what the sweep asks for says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orchestrator.analysis.dataset import open_dataset
from orchestrator.config.settings import Settings
from orchestrator.planning.expand import expand
from orchestrator.reporting.report import dataset_grids, not_measured
from orchestrator.storage.row import to_table
from tests.helpers.datasets import RESULTS
from tests.helpers.timed_rows import asked, made

H8 = "sweep.batch_size=[8]", "sweep.s_kv=[8192]"


@pytest.mark.parametrize(
    ("typed", "cells"),
    [
        (("sweep.tp=[8]",), (("sweep.tp", "8", "1"),)),
        (("sweep.batch_size=[8,64]", "sweep.backend=[fa2,cudnn]"), ()),
        (("sweep.window=[9]",), ()),  # an axis that is not looked at
        (("+sweep.shape=[{s_qo: 1, s_kv: 8192}]", "sweep.s_kv=[77]"), ()),  # a later axis sets it too
        (("sweep.s_kv=[1,2,3,4,5,6,7,8,9]",), (("sweep.s_kv", "1, 2, 3, 4, 5, 6, 7, 8 and 1 more", "8192"),)),
    ],
)
def test_an_axis_without_a_common_value_is_named(
    typed: tuple[str, ...], cells: tuple[tuple[str, ...], ...], settings: Callable[..., Settings]
):
    points = expand(settings("+sweep=smoke", *H8, "sweep.s_qo=[1]", "sweep.backend=[fa2]", *typed))
    found = not_measured(asked(made("fa2", 10.0, tp=1, page_size=64)), points)

    assert tuple(line for grid in found for line in grid.cells) == cells


@pytest.mark.parametrize(
    "name", ["h200_drafts/mixed_q_len", "h200_mla/mixed_q_len_mla", "h200_prefill/chunked_prefill", "h100_prefill/ragged_prefill"]
)
def test_a_committed_dataset_has_what_its_sweep_asks_for(name: str, settings: Callable[..., Settings]):
    assert not_measured(open_dataset(RESULTS / name), expand(settings(f"+sweep={name.partition('/')[2]}"))) == []


@pytest.mark.parametrize(
    ("typed", "mode", "titles"), [("sweep.tp=[8]", "report", 1), ("sweep.tp=[1]", "report", 0), ("sweep.tp=[8]", "run", 0)]
)
def test_the_report_begins_with_it(typed: str, mode: str, titles: int, tmp_path: Path, settings: Callable[..., Settings]):
    pq.write_table(to_table([made("fa2_tc", 10.0, tp=1, page_size=64)]), tmp_path / "rows.parquet")
    shown = dataset_grids(settings("+sweep=smoke", f"mode={mode}", typed, *H8, f"results.path={tmp_path}"))

    assert [grid.title.startswith("not measured") for grid in shown].count(True) == titles
    assert shown[0].title.startswith("not measured") is bool(titles)

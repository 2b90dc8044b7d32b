"""The page of columns is what the dictionary says, and anyone can ask for it without a dataset."""

from __future__ import annotations

import pytest

from orchestrator import ROOT
from orchestrator.reporting import columns_page
from orchestrator.storage.columns import COLUMNS
from tests.helpers.command_line import Invoke


def test_the_committed_page_is_made_of_the_dictionary():
    assert (ROOT / "docs" / "columns.md").read_text() == columns_page.page(), "type make columns"


def test_the_tables_have_every_column_once_with_unit_and_meaning():
    cells = [line for grid in columns_page.grids() for line in grid.cells]

    assert [line[0] for line in cells] == list(COLUMNS)
    assert ("median_us", "double", "µs", "ok rows only", COLUMNS["median_us"].meaning) in cells
    assert ("point_id", "string", "", "always", COLUMNS["point_id"].meaning) in cells
    assert ("host_us", "double", "µs", "may be null", COLUMNS["host_us"].meaning) in cells


@pytest.mark.parametrize("format_", ["terminal", "markdown", "svg"])
def test_the_question_needs_no_sweep_and_no_dataset(invoke: Invoke, format_: str):
    done = invoke("mode=report", "question=columns", f"format={format_}")

    assert (done.returncode, done.stderr) == (0, "")
    assert all(name in done.stdout for name in COLUMNS)
    assert (done.stdout == columns_page.page()) == (format_ == "markdown")

"""The page of the committed datasets is what their rows say, and how one run is compared with another."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.findings import frames, nearness
from orchestrator.config.settings import sweep_names
from tests.helpers.datasets import EVERY, RESULTS
from tools import dataset_page


def test_the_page_of_datasets_is_written_from_their_rows():
    assert (RESULTS / "README.md").read_text() == dataset_page.page(), "type python -m tools.dataset_page"


def test_the_page_has_a_line_for_each_dataset_and_its_command_names_a_sweep():
    lines = [line for line in dataset_page.page().splitlines() if "|`+sweep=" in line]

    assert len(lines) == len(EVERY) > 90
    assert {line.split("|`+sweep=")[1].split()[0].rstrip("`|") for line in lines} <= set(sweep_names())


def test_a_dataset_that_nobody_described_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dataset_page, "RESULTS", tmp_path)
    (tmp_path / "datasets.yaml").write_text("h200_main: {a: {asks: X, command: +sweep=a}}")

    with pytest.raises(SystemExit, match=r"but not in both: h200_main/a\.parquet"):
        dataset_page.page()


def test_a_kernel_that_another_run_chose_costs_its_time_over_the_best():
    there = pd.DataFrame({"a": [1.0, 2.0], "b": [2.0, 1.0]}, index=pd.Index([8, 16], name="batch_size"))
    here = pd.DataFrame({"a": [3.0, 3.0], "b": [2.0, 3.0]}, index=there.index)

    assert frames.keeping(there, here).to_dict() == {8: 1.5, 16: 1.0}


def test_points_of_two_runs_are_compared_one_to_one_without_times_that_were_cut_short():
    one, other = "h200_mla/mla_mtp_all_candidates", "h200_mla/mla_mtp"
    both = nearness.shared(one, other)

    assert 100 < len(both) == len(nearness.again(one, other)) < len(frames.rows(one))
    assert not (both[["stop_reason", "stop_reason_before"]] == "decided").any(axis=None)
    assert set(both["backend"]) == {"fa2", "fa3"}
    assert (both["own_us"] / both["own_us_before"]).between(0.9, 1.1).all()

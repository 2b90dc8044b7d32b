"""What the documents say is what the project prints and holds."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from orchestrator import grid, report, store
from orchestrator.row import COLUMNS
from tests.conftest import ROOT

DATASET = ROOT / "results" / "h200_specdec_long_ctx"
README = (ROOT / "README.md").read_text()
DESIGN = (ROOT / "docs" / "design.md").read_text()


@pytest.fixture(scope="module")
def h200() -> pd.DataFrame:
    return store.read(DATASET).to_pandas()


def test_the_committed_dataset_holds_every_point_once_and_every_supported_one_ok(h200: pd.DataFrame):
    assert list(h200.columns) == list(COLUMNS)
    assert h200["point_id"].nunique() == len(h200) == 1344
    assert h200["status"].value_counts().to_dict() == {"unsupported": 768, "ok": 576}
    assert (DATASET / "rows.parquet").stat().st_size < 2_000_000
    assert set(h200["device_name"]) == {"NVIDIA H200"}


def test_the_main_table_of_the_readme_is_drawn_from_it(h200: pd.DataFrame):
    assert grid.markdown(report.best_grids(h200)[:1]) in README


def test_the_time_a_point_is_the_dataset_s(h200: pd.DataFrame):
    ran = h200[h200["attempt"] > 0]
    seconds = (ran["finished_at"].max() - ran["started_at"].min()).total_seconds() / len(ran)

    assert f"{seconds:.3f} s of wall" in README
    assert f"{seconds:.3f} s of wall" in (DATASET / "_README.md").read_text()
    assert h200["run_id"].unique()[0] in (DATASET / "_README.md").read_text()


def test_the_worst_errors_of_the_design_page_are_the_dataset_s(h200: pd.DataFrame):
    worst = h200[h200["status"] == "ok"].groupby(["resolved_backend", "q_dtype", "kv_dtype"])["rel_err"].max()

    for (kernel, q, kv), error in worst.items():  # type: ignore[misc]
        assert f"| {kernel} | {q}, {kv} | {error:.4f} |" in DESIGN


def test_every_file_and_page_that_is_named_is_there():
    for text in (README, DESIGN, (ROOT / "docs" / "clusters.md").read_text()):
        for path in re.findall(r"\]\((?!http)([^)]+)\)|`((?:conf|docs|kernels|orchestrator|tests|results)/[\w./]+)`", text):
            assert (ROOT / (path[0] or path[1])).exists() or "my_model" in path[1], path


def test_the_commands_at_the_top_are_targets():
    makefile = (ROOT / "Makefile").read_text()

    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in ("run", "test"))
    assert README.index("make run") < README.index("make test") < README.index("##")

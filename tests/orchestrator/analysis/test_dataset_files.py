"""Datasets that are files: `FOLDER/NAME.parquet`, with the companions beside them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orchestrator.analysis.compare import selection
from orchestrator.analysis.dataset import open_dataset
from orchestrator.analysis.sources import find_sources, left_out, local_datasets
from orchestrator.config.modes import companion, owner
from orchestrator.errors import NoRows, UserError
from orchestrator.storage import access, parquet
from orchestrator.storage.row import Row, to_table
from tests.helpers.timed_rows import made


def file_of(path: Path, *rows: Row) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(to_table(rows), path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b", "a_noise", "a_check_power", "rule_edges_paged"):
        file_of(tmp_path / "h200_main" / f"{name}.parquet", made(name, 10.0))
    return tmp_path / "h200_main"


@pytest.mark.parametrize("name", ["a", "a.parquet"])
def test_a_file_is_a_dataset_with_and_without_its_ending(folder: Path, name: str):
    path = str(folder / name)

    assert [row["backend"] for row in parquet.read(path).to_pylist()] == ["a"] == list(open_dataset(path).current()["backend"])
    assert access.exists(path) and selection.exists(path) and len(selection.read(path)) == 1
    assert find_sources(path) == ([f"{folder}/a.parquet"], [f"{folder}/a_noise.parquet"])


def test_the_companion_of_a_file_is_named_as_that_of_a_folder():
    assert companion("d/a.parquet", "noise") == companion("d/a", "noise") == "d/a_noise"
    assert owner("d/a_noise.parquet") == owner("d/a_noise") == "d/a"


@pytest.mark.parametrize("path", ["h200_main", "h200_main/", "h200_*", "*/*", "h200_main/*.parquet"])
def test_a_folder_of_files_is_all_of_them_without_companions_and_rule_edges(folder: Path, path: str):
    typed = f"{folder.parent}/{path}"

    assert local_datasets(typed) == [folder / "a.parquet", folder / "b.parquet"]
    assert left_out(typed) == ["h200_main/rule_edges_paged"]
    assert sorted(open_dataset(typed).current()["backend"]) == ["a", "b"]


def test_a_pattern_needs_no_ending(folder: Path):
    assert local_datasets(str(folder.parent / "*" / "[ab]")) == [folder / "a.parquet", folder / "b.parquet"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("h200_specdec", "h200_drafts/specdec"),  # as the folder of a dataset was called
        ("h200_main/specdec", "h200_drafts/specdec"),
        ("h200_drafts/spedec.parquet", "h200_drafts/specdec"),
        ("h100_specdec", "h100_drafts/specdec"),
    ],
)
def test_a_name_that_is_not_there_names_the_file_that_was_meant(folder: Path, typed: str, meant: str):
    for card in ("h100", "h200"):
        file_of(folder.parent / f"{card}_drafts" / "specdec.parquet", made("a", 10.0))

    with pytest.raises(NoRows, match=f"no rows there; did you mean '{folder.parent}/{meant}'"):
        open_dataset(folder.parent / typed)


@pytest.mark.parametrize("name", ["a", "a.parquet", "a_noise"])
def test_a_file_is_never_written(folder: Path, name: str):
    with pytest.raises(UserError, match=r"is the file .*, which can only be read; type another"):
        access.open_writer(str(folder / name))

    assert not [path for path in folder.iterdir() if path.is_dir()]


def test_a_folder_that_a_run_writes_beside_a_file_is_read_by_its_name(folder: Path):
    store = access.open_writer(str(folder / "a_replay"))
    store.close()

    assert local_datasets(str(folder / "a_replay")) == [folder / "a_replay"]
    assert local_datasets(str(folder)) == [folder / "a.parquet", folder / "b.parquet"]

"""mode=donate: what is in the way of publishing rows, and what the copy says no more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from orchestrator.commands.donate import without_names
from orchestrator.storage import checksum, parquet
from tests.helpers.command_line import Invoke, run
from tests.helpers.datasets import EVERY, RESULTS

SWEEP = ("+sweep=smoke", "timing=quick", "sweep.backend=[torch_sdpa]", "sweep.batch_size=[1]", "sweep.s_kv=[64]", "cluster=inline")
KNOWN = {"orchestrator_version": "0.2.0+g0123456789ab", "host": "gpu17.lab"}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    rows = tmp_path_factory.mktemp("measured")
    assert run(*SWEEP, f"results.path={rows}").returncode == 0
    return parquet.read(rows)


def stored(table: pa.Table, folder: Path, **columns: Any) -> Path:
    """A dataset of these rows, of which the first has other values in some columns."""
    for name, value in {**KNOWN, **columns}.items():
        field = table.schema.field(name)
        others = [KNOWN[name]] * table.num_rows if name in KNOWN else table.column(name).to_pylist()
        values = [value, *others[1:]]
        table = table.set_column(table.column_names.index(name), field, pa.array(values, type=field.type))
    (folder / "rows").mkdir()
    with (folder / "rows" / "rows.parquet").open("w+b") as file:
        checksum.write(table, file)
    return folder / "rows"


def test_a_copy_names_no_person_and_no_machine_and_is_a_dataset_like_the_committed_ones(
    measured: pa.Table, tmp_path: Path, invoke: Invoke
):
    rows = stored(measured, tmp_path, reason="File /home/jonathan/src/kernel.py, see s3://lab/x on 10.1.2.3 or jonathan@gpu17.lab")
    copy = tmp_path / "main.parquet"
    asked = invoke(*SWEEP, f"results.path={rows}", "mode=donate")
    done = invoke(*SWEEP, f"results.path={rows}", "mode=donate", f"into={copy}")
    found = parquet.read(copy).to_pandas()
    text = copy.read_bytes().decode("latin1") + found.to_csv()

    assert (asked.returncode, done.returncode) == (0, 0), asked.stdout + done.stdout
    assert "host: 2 rows change, such as 'gpu17.lab' to 'host-1'" in asked.stdout and "nothing is in the way" in asked.stdout
    assert "reason: 1 rows change, such as 'File /home/jonathan/src/kernel.py, see" in asked.stdout
    assert set(found["host"]) == {"host-1"}
    assert found["reason"][0] == "File .../kernel.py, see s3://ADDRESS on ADDRESS or USER@HOST"
    assert [name for name in ("gpu17.lab", "jonathan", "10.1.2.3", str(tmp_path)) if name in text] == []
    pd.testing.assert_frame_equal(
        found.drop(columns=["host", "reason"]), parquet.read(rows).to_pandas().drop(columns=["host", "reason"])
    )


@pytest.mark.parametrize(
    ("columns", "keys", "said"),
    [
        ({}, ["sweep.s_kv=[64,256]"], "2 of the 4 points of this command have no row; type mode=donate behind the whole"),
        ({}, ["sweep.s_qo=[1]"], "1 points that have a row are not of this command; type"),
        ({"check": "not_checked: check.enabled=false"}, [], "1 rows are ok and were not checked; run them again with"),
        ({"torch_version": None}, [], "torch_version: 1 rows that ran do not have it; run them again"),
        ({"compute_capability": "9.0"}, [], "driver: 1 rows that ran do not have it"),
        ({"orchestrator_version": "0.2.0"}, [], "orchestrator_version: 0.2.0, 0.2.0+g0123456789ab; allowed: one commit"),
        ({"orchestrator_version": "0.2.0+g0123456789ab.dirty.12345678"}, [], "allowed: one commit, without changed files"),
        ({"orchestrator_version": "0.2.0+gba9876543210"}, [], "allowed: one commit, without changed files"),
        ({"reason": "no answer from gpu17.lab"}, [], "reason: 1 rows name a host or user: 'no answer from gpu17.lab'"),
        ({"command": "a /home/jo/b", "kernel_config": "by jo"}, [], "kernel_config: 1 rows name a host or user: 'by jo'"),
    ],
)
def test_what_is_in_the_way_is_said_and_nothing_is_written(
    measured: pa.Table, tmp_path: Path, invoke: Invoke, columns: dict[str, Any], keys: list[str], said: str
):
    rows = stored(measured, tmp_path, **columns)
    typed = [word for word in SWEEP if word.split("=")[0] not in [key.split("=")[0] for key in keys]]
    done = invoke(*typed, *keys, f"results.path={rows}", "mode=donate", f"into={tmp_path}/copy.parquet")

    assert done.returncode == 1, done.stderr
    assert "in the way: " in done.stdout and said in done.stdout and "not yet to be published" in done.stdout
    assert not (tmp_path / "copy.parquet").exists()


@pytest.mark.parametrize(
    ("into", "said"),
    [
        ("rows/rows.parquet", "it is there already; type a new file"),
        ("copy.csv", ".parquet of a donated file"),
        ("none/copy.parquet", "cannot be written (No such file or directory); give another place"),
    ],
)
def test_a_place_for_the_copy_that_is_none_is_an_error(measured: pa.Table, tmp_path: Path, invoke: Invoke, into: str, said: str):
    rows = stored(measured, tmp_path)
    done = invoke(*SWEEP, f"results.path={rows}", "mode=donate", f"into={tmp_path}/{into}")

    assert done.returncode == 2 and said in done.stderr and f"{tmp_path}/{into}" in done.stderr


def test_no_rows_are_an_error(tmp_path: Path, invoke: Invoke):
    done = invoke(*SWEEP, f"results.path={tmp_path}/none", "mode=donate")

    assert done.returncode == 2 and "it has no rows; type the command of a run that has ended" in done.stderr


def test_of_committed_rows_nothing_changes_but_folders():
    """They name no host, no address and no user, and every word of a reason but a folder or a link stays."""
    table = pa.concat_tables([parquet.read(RESULTS / f"{name}.parquet") for name in EVERY])
    cleaned, changes = without_names(table)

    assert len(changes) == 3
    for name in (change.partition(":")[0] for change in changes):
        pairs = {*zip(table.column(name).to_pylist(), cleaned.column(name).to_pylist(), strict=True)}
        assert all(os.sep in before for before, after in pairs if before != after)

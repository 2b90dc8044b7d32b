"""The dictionary of the row: what each column means, that mypy and Parquet know the same columns, and what older files hold."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import get_type_hints

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pandas.testing import assert_frame_equal

from orchestrator import ROOT
from orchestrator.analysis.connection import Connection
from orchestrator.analysis.sources import union_sql
from orchestrator.storage import parquet
from orchestrator.storage.columns import COLUMNS, SECTIONS, Row
from orchestrator.storage.folder import FolderStore
from orchestrator.storage.row import schema
from tests.helpers.stored_rows import made

COMMITTED = sorted((ROOT / "results").glob("h[12]00_*/*.parquet"))
OLD = [path for path in COMMITTED if pq.read_schema(path).names != list(COLUMNS)]


def test_the_row_that_mypy_checks_has_the_columns_of_the_dictionary():
    assert list(get_type_hints(Row)) == list(COLUMNS)
    assert [column.section for column in COLUMNS.values()] == sorted(
        (column.section for column in COLUMNS.values()), key=list(SECTIONS).index
    )


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_has_a_meaning_and_a_number_has_a_unit(name: str):
    column = COLUMNS[name]

    assert column.meaning[0] != " " and column.meaning.endswith(".")
    assert bool(column.unit) == (column.type not in ("string", "bool"))
    assert column.nullable or not column.only_if_ok
    for ending, unit in {"_us": "µs", "_s": "s", "_bytes": "bytes", "_mhz": "MHz", "_c": "°C", "_w": "W", "_rel": "ratio"}.items():
        assert not name.endswith(ending) or column.unit == unit


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_a_column_without_null_has_none_in_a_committed_dataset(path: Path):
    table = pq.read_table(path)

    assert [name for name in table.column_names if table[name].null_count and not COLUMNS[name].nullable] == []


def test_a_parquet_file_says_what_its_columns_mean(tmp_path: Path):
    store = FolderStore(str(tmp_path))
    store.add([made("p1", median_us=3.5)])
    store.close()
    field = pq.read_schema(tmp_path / parquet.DATA).field("median_us")

    assert field.metadata[b"unit"].decode() == "µs"
    assert field.metadata[b"meaning"].decode() == COLUMNS["median_us"].meaning
    assert parquet.read(tmp_path).schema.equals(schema(), check_metadata=True)


# Of each set of columns the last file.
@pytest.mark.parametrize("path", {str(pq.read_schema(path).names): path for path in OLD}.values(), ids=lambda path: path.name)
def test_an_older_file_has_the_same_defaults_in_arrow_and_in_sql(path: Path):
    """But for a call's own time, which every view computes for rows that lack it."""
    columns = [name for name in COLUMNS if name != "own_us"]
    data = Connection([str(path)])
    data.execute(f"CREATE VIEW rows AS {union_sql(data.con, [str(path)])}")
    in_sql = data.to_arrow("FROM rows ORDER BY row").select(columns)
    in_arrow = parquet.read(path).select(columns)

    if not in_sql.equals(in_arrow):  # which takes a tenth of the time
        assert_frame_equal(in_sql.to_pandas(), in_arrow.to_pandas())


def test_some_committed_files_are_older_than_some_columns():
    lacking = [set(COLUMNS) - set(pq.read_schema(path).names) for path in OLD]

    assert set.union(*lacking) >= {"context", "env", "max_seq_len"}


@pytest.mark.parametrize("path", [OLD[0], COMMITTED[-1]], ids=lambda path: path.name)
def test_a_row_joins_a_committed_file_and_pandas_reads_the_rest_as_before(path: Path, tmp_path: Path):
    before = parquet.read(path)
    (like,) = before.slice(0, 1).to_pylist()
    times = {name: like[name].isoformat() for name in ("started_at", "finished_at")}
    shutil.copy(path, tmp_path / parquet.DATA)
    store = FolderStore(str(tmp_path))
    store.add([{**like, **times, "point_id": "new"}])
    store.close()
    after = pd.read_parquet(tmp_path)

    assert_frame_equal(after[after["point_id"] != "new"], before.to_pandas())
    assert after.iloc[-1]["point_id"] == "new"
    meanings = [field.metadata[b"meaning"].decode() for field in pq.read_schema(tmp_path / parquet.DATA)]
    assert meanings == [column.meaning for column in COLUMNS.values()]

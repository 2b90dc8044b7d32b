"""Damage at any byte of a dataset is found by every reader, before a value of it is used."""

from __future__ import annotations

import io
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator import notes
from orchestrator.analysis.dataset import open_dataset
from orchestrator.errors import DamagedDataset
from orchestrator.storage import checksum
from orchestrator.storage.folder import FolderStore
from orchestrator.storage.parquet import DATA, read
from orchestrator.storage.row import to_table
from tests.helpers.stored_rows import made

ROWS = [made(f"p{number}", median_us=1.0 + number, reason="a reason") for number in range(4)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a small dataset."""
    path = tmp_path_factory.mktemp("whole")
    store = FolderStore(str(path))
    store.add(ROWS)
    store.close()
    return (path / DATA).read_bytes()


def test_other_programs_read_the_file_as_before(tmp_path: Path, whole: bytes):
    (tmp_path / DATA).write_bytes(whole)
    file = str(tmp_path / DATA)

    assert pd.read_parquet(tmp_path)["median_us"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert duckdb.sql(f"SELECT sum(median_us) FROM '{file}'").fetchall() == [(10.0,)]
    assert pq.ParquetFile(file, page_checksum_verification=True).read().num_rows == 4


def test_a_changed_byte_anywhere_is_damage(whole: bytes):
    """Each byte of the head, of the digest and of the end, and every 37th of the others, as the readers check them."""
    mark = whole.index(checksum.MARK)
    chosen = {*range(8), *range(mark, mark + len(checksum.MARK) + checksum.DIGEST), *range(len(whole) - 8, len(whole))}
    survived = []
    for offset in sorted(chosen | set(range(0, len(whole), 37))):
        damaged = bytearray(whole)
        damaged[offset] ^= 0x20
        try:
            checksum.require_whole(io.BytesIO(damaged), DATA)
            survived.append(offset)
        except DamagedDataset as error:
            assert "move it away" in str(error)

    assert len(whole) > 10_000
    assert survived == []


@pytest.mark.parametrize("share", [0.01, 0.5, 0.97])
def test_every_reader_looks(tmp_path: Path, whole: bytes, share: float):
    damaged = bytearray(whole)
    damaged[int(len(whole) * share)] ^= 0x20
    (tmp_path / DATA).write_bytes(damaged)

    for reader in (read, open_dataset, lambda path: open_dataset(path / DATA), lambda path: FolderStore(str(path))):
        with pytest.raises(DamagedDataset, match=DATA):
            reader(tmp_path)
    assert (tmp_path / DATA).read_bytes() == damaged


def test_pages_have_checksums_that_others_can_verify(tmp_path: Path, whole: bytes):
    """The first page of data, changed: a reader that knows nothing of our digest finds it too."""
    (tmp_path / DATA).write_bytes(whole)
    column = pq.read_metadata(tmp_path / DATA).row_group(0).column(0)
    end = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size
    damaged = bytearray(whole)
    damaged[end - 1] ^= 0x20
    (tmp_path / DATA).write_bytes(damaged)

    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(tmp_path / DATA, page_checksum_verification=True).read()


def test_a_file_of_an_older_version_is_read_and_says_so_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pq.write_table(to_table(ROWS), tmp_path / DATA)
    with notes.buffered():
        for _ in range(2):
            read(tmp_path)
        notes.release()
    told = capsys.readouterr().err

    assert told.count("it has no checksum (written by an older version)") == 1
    FolderStore(str(tmp_path)).close()
    assert checksum.require_whole(tmp_path / DATA, DATA) is False  # what holds no new row is not rewritten


def test_an_older_file_that_is_damaged_gives_no_traceback(tmp_path: Path):
    """Without a checksum damage may go unseen. What is seen is said in words."""
    pq.write_table(to_table(ROWS), tmp_path / DATA)
    plain = (tmp_path / DATA).read_bytes()
    seen = 0
    for number, offset in enumerate(range(4, len(plain), len(plain) // 8)):
        damaged = bytearray(plain)
        damaged[offset] ^= 0xFF
        (tmp_path / DATA).write_bytes(damaged)
        try:
            read(tmp_path) if number % 4 else open_dataset(tmp_path).current()
        except DamagedDataset:
            seen += 1

    assert seen > 1


def changed(name: str, values: pa.Array) -> pa.Table:
    table = to_table(ROWS)
    return table.set_column(table.schema.get_field_index(name), name, values)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (to_table(ROWS).append_column("status", pa.array(["ok"] * 4)), "has the column status twice"),
        (to_table(ROWS).append_column("STATUS", pa.array(["ok"] * 4)), "has the column status twice"),
        (changed("status", pa.nulls(4, pa.string())), "has rows without"),
        (changed("status", pa.nulls(4)), "has rows without"),
        (changed("status", pa.array(["ok", "ok", "ok", "\x1b[31m"])), "has the status '.x1b"),
        (changed("median_us", pa.array(["fast"] * 4)), "has columns of other types"),
        (changed("batch_size", pa.array([[1]] * 4)), "has columns of other types"),
        (pa.table({"x": [1]}), "lacks the columns"),
    ],
)
def test_a_file_with_other_columns_is_refused_by_every_reader(tmp_path: Path, table: pa.Table, words: str):
    pq.write_table(table, tmp_path / DATA)

    for reader in (read, open_dataset):
        with pytest.raises(DamagedDataset, match=words):
            reader(tmp_path)


def test_a_command_tells_it_once_whatever_it_reads(capsys: pytest.CaptureFixture[str]):
    with notes.buffered():
        for name in ("a", "b"):
            checksum.note_unsealed([name])
        notes.release()

    assert capsys.readouterr().err.count("no checksum") == 1

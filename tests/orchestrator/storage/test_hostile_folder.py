"""A shared folder in which somebody has put links and FIFOs, or from which somebody deletes files under a running driver."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orchestrator.analysis.dataset import open_dataset
from orchestrator.errors import DamagedDataset, DatasetGone, UserError
from orchestrator.storage.folder import FRESH, LOCK, FolderStore
from orchestrator.storage.parquet import DATA, JOURNAL, read
from orchestrator.storage.row import Row, to_table
from tests.helpers.stored_rows import ids, made


def a_dataset(path: Path) -> None:
    store = FolderStore(str(path))
    store.add([made("p1")])
    store.close()


PLANTED = {
    "a link": lambda file, victim: file.symlink_to(victim),
    "a hard link": lambda file, victim: os.link(victim, file),
    "a dangling link": lambda file, victim: file.symlink_to(victim.with_name("made")),
    "a FIFO": lambda file, victim: os.mkfifo(file),
    "a folder": lambda file, victim: file.mkdir(),
}


@pytest.mark.parametrize("what", PLANTED)
@pytest.mark.parametrize("name", [LOCK, JOURNAL, FRESH, DATA])
def test_a_writer_follows_nothing_that_it_did_not_make(tmp_path: Path, name: str, what: str):
    folder, victim = tmp_path / "rows", tmp_path / "victim"
    a_dataset(folder)
    victim.write_bytes((folder / DATA).read_bytes() if name == DATA else b"precious")
    before = victim.read_bytes()
    (folder / name).unlink(missing_ok=True)
    PLANTED[what](folder / name, victim)
    if what == "a hard link" and name in (DATA, FRESH):  # which lose their name, and are never written to
        FolderStore(str(folder)).close()
    else:
        with pytest.raises(UserError, match=name):
            FolderStore(str(folder))

    assert victim.read_bytes() == before
    assert not victim.with_name("made").exists()


@pytest.mark.parametrize("what", ["a FIFO", "a folder", "a dangling link"])
@pytest.mark.parametrize("name", [JOURNAL, DATA])
def test_a_reader_waits_for_no_fifo(tmp_path: Path, name: str, what: str):
    a_dataset(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    PLANTED[what](tmp_path / name, tmp_path / "victim")

    for reader in (read, open_dataset):
        with pytest.raises(UserError, match="plain file is needed"):
            reader(tmp_path)


def test_a_linked_dataset_can_be_read(tmp_path: Path):
    a_dataset(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / DATA).symlink_to(tmp_path / "a" / DATA)

    assert read(tmp_path / "b").num_rows == 1


def test_a_deleted_lock_lets_no_second_writer_in(tmp_path: Path):
    store = FolderStore(str(tmp_path))
    (tmp_path / LOCK).unlink()
    with pytest.raises(UserError, match="another process writes to it"):
        FolderStore(str(tmp_path))
    store.add([made("p1")])
    store.close()

    assert ids(tmp_path) == ["p1"]
    assert not (tmp_path / LOCK).exists()  # the second one left nothing behind


def test_a_lock_that_is_exchanged_on_a_disk_without_locks_on_folders_stops_the_writer(tmp_path: Path):
    store = FolderStore(str(tmp_path))
    store._lock._of_folder = False
    (tmp_path / LOCK).unlink()
    (tmp_path / LOCK).write_text("process 1 on another")

    with pytest.raises(DatasetGone, match="_lock in it was deleted or exchanged"):
        store.add([made("p1")])


@pytest.mark.parametrize("after", ["nothing", "a seal"])
def test_a_deleted_folder_is_said_with_what_is_lost(tmp_path: Path, after: str):
    path = tmp_path / "rows"
    store = FolderStore(str(path))
    store.add([made("p1")])
    if after == "a seal":
        store.seal()
    shutil.rmtree(path)
    lost = 0 if after == "a seal" else 1
    words = f"the folder was deleted or exchanged while this run wrote to it; {lost} rows that were reported since are lost"

    for attempt in (lambda: store.add([made("p2")]), store.seal, store.close):
        with pytest.raises(DatasetGone, match=f"{words}, and {DATA} is gone too"):
            attempt()
    assert not path.exists()


def test_an_exchanged_folder_is_not_written_to(tmp_path: Path):
    path = tmp_path / "rows"
    store = FolderStore(str(path))
    path.rename(tmp_path / "moved")
    other = FolderStore(str(path))
    with pytest.raises(DatasetGone):
        store.add([made("p1")])
    other.close()

    assert ids(path) == []


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"median_us": None}, "median_us that is no time, or none in a row that is ok"),
        ({"median_us": 0.0}, "median_us that is no time"),
        ({"median_us": -1.0}, "median_us that is no time"),
        ({"median_us": math.nan}, "median_us that is no time"),
        ({"median_us": math.inf}, "median_us that is no time"),
        ({"s_kv": 0}, "s_kv that is no size from 1 to 2,147,483,647"),
        ({"tp": 0}, "tp that is no size"),
        ({"num_kv_heads": 2**40}, "num_kv_heads that is no size"),
    ],
)
def test_times_and_sizes_that_no_row_has_are_refused_by_both_readers(columns: Row, words: str, tmp_path: Path):
    pq.write_table(to_table([made("p1"), made("p2", **columns)]), tmp_path / DATA)

    for reader in (read, open_dataset):
        with pytest.raises(DamagedDataset, match=words):
            reader(tmp_path)

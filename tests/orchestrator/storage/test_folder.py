"""A dataset in a folder: rows on disk at once, one file for readers, nothing lost or duplicated by a crash at any moment."""

from __future__ import annotations

import textwrap
from pathlib import Path
from threading import Event

import pandas as pd
import pyarrow as pa
import pytest

from orchestrator.errors import UserError
from orchestrator.storage import checksum, parquet
from orchestrator.storage import folder as stores
from orchestrator.storage.folder import FolderStore
from orchestrator.storage.parquet import DATA, JOURNAL, read
from orchestrator.storage.row import COLUMNS
from tests.helpers.command_line import run_code
from tests.helpers.stored_rows import ids, made


def test_pandas_reads_the_folder_with_every_column(tmp_path: Path):
    store = FolderStore(str(tmp_path / "a" / "b"))
    store.add([made("p1", median_us=3.5, samples_us=[3.0, 4.0])])
    store.close()
    table = pd.read_parquet(tmp_path / "a" / "b")

    assert list(table.columns) == list(COLUMNS)
    assert table.loc[0, "median_us"] == 3.5
    assert [p.name for p in (tmp_path / "a" / "b").iterdir() if not p.name.startswith("_")] == [DATA]


def test_a_row_is_on_disk_when_add_returns(tmp_path: Path):
    store = FolderStore(str(tmp_path))
    store.add([made("p1")])

    assert '"p1"' in (tmp_path / JOURNAL).read_text()


def test_a_newer_row_of_the_same_point_replaces_the_older(tmp_path: Path):
    store = FolderStore(str(tmp_path))
    store.add([made("p1", "failed"), made("p2")])
    store.seal()
    store.add([made("p1", "ok")])
    store.close()
    table = pd.read_parquet(tmp_path).set_index("point_id")

    assert table["status"].to_dict() == {"p1": "ok", "p2": "ok"}


def test_other_versions_and_clusters_keep_their_rows(tmp_path: Path):
    store = FolderStore(str(tmp_path))
    store.add(
        [
            made("p1"),
            made("p1", libraries="flashinfer-python 0.8"),
            made("p1") | {"cluster": "lab"},
            made("p1") | {"device_name": "H200"},
        ]
    )
    store.close()

    assert ids(tmp_path) == ["p1"] * 4


def test_a_point_without_a_device_loses_that_row_once_a_device_runs_it(tmp_path: Path):
    store = FolderStore(str(tmp_path))
    store.add([made("p1", "skipped") | {"device_name": "H200 | B200"}, made("p2", "skipped") | {"device_name": "H200 | B200"}])
    store.seal()
    store.add([made("p1") | {"device_name": "B200"}])
    store.close()
    table = pd.read_parquet(tmp_path).set_index("point_id")

    assert table["status"].to_dict() == {"p1": "ok", "p2": "skipped"}


def test_an_empty_dataset_is_a_dataset(tmp_path: Path):
    FolderStore(str(tmp_path)).close()

    assert list(pd.read_parquet(tmp_path).columns) == list(COLUMNS)


KILLED_AT = {
    "before it seals": "pass",
    "while it writes the new file": "import pyarrow.parquet as pq; pq.write_table = die",
    "before the new file has its name": "type(store.path).replace = die",
    "before it empties the journal": "import io; store._journal = Dying(store._journal)",
}


@pytest.mark.parametrize("moment", KILLED_AT)
def test_a_writer_killed_at_any_moment_loses_and_duplicates_nothing(tmp_path: Path, moment: str):
    code = textwrap.dedent(
        """
        import os, signal, sys
        from tests.helpers.stored_rows import made
        from orchestrator.storage.folder import FolderStore
        def die(*_args, **_keys):
            os.kill(os.getpid(), signal.SIGKILL)
        class Dying:
            def __init__(self, real): self.real = real
            def __getattr__(self, name): return die if name == "seek" else getattr(self.real, name)
        store = FolderStore(sys.argv[1])
        store.add([made("p1"), made("p2", "failed")])
        store.seal()
        store.add([made("p2"), made("p3")])
        """
    )
    code += f"\n{KILLED_AT[moment]}\n" + ("die()" if moment == "before it seals" else "store.seal()")
    death = run_code(code, str(tmp_path))
    assert death.returncode == -9
    seen_by_readers = ids(tmp_path)
    FolderStore(str(tmp_path)).close()

    assert set(seen_by_readers) >= {"p1", "p2"}
    assert ids(tmp_path) == ["p1", "p2", "p3"]
    assert set(pd.read_parquet(tmp_path)["status"]) == {"ok"}


@pytest.fixture
def _merges_in_a_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parquet, "SEAL_SECONDS", 0.0)
    monkeypatch.setattr(stores, "SMALL_ROWS", 0)


@pytest.mark.usefixtures("_merges_in_a_thread")
def test_rows_are_added_while_a_large_dataset_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    go_on, merge = Event(), stores.merge
    monkeypatch.setattr(stores, "merge", lambda *given: go_on.wait(60) and merge(*given))
    store = FolderStore(str(tmp_path), background=True)
    for number in range(4):  # the first begins a merge, which does not end
        store.add([made(f"p{number}"), made("p0", "failed")])
    while_it_lasts = sorted(read(tmp_path).column("point_id").to_pylist())
    go_on.set()
    assert store._merging is not None
    store._merging.table.result()
    assert ids(tmp_path) == ["p0"] and len((tmp_path / JOURNAL).read_text().splitlines()) == 8
    store.add([made("p4")])  # takes what was merged
    assert len((tmp_path / JOURNAL).read_text().splitlines()) == 7
    store.add([made("p0")])
    store.close()

    assert while_it_lasts == ["p0", "p1", "p2", "p3"]
    assert ids(tmp_path) == ["p0", "p1", "p2", "p3", "p4"] and set(pd.read_parquet(tmp_path)["status"]) == {"ok"}


@pytest.mark.parametrize(
    "moment",
    [
        "import pyarrow.parquet as pq; pq.write_table = die",
        "type(store.path).replace = die",
        "store.add([made('p2')]); store._merging.table.result(); type(store.path).replace = die",
        "store.add([made('p2')]); store._merging.table.result(); stores._sync_folder = die",
    ],
)
def test_a_writer_killed_while_it_merges_in_a_thread_loses_and_duplicates_nothing(tmp_path: Path, moment: str):
    code = f"""
import os, signal, sys, time
from tests.helpers.stored_rows import made
from orchestrator.storage import folder as stores, parquet
def die(*_args, **_keys):
    os.kill(os.getpid(), signal.SIGKILL)
parquet.SEAL_SECONDS, stores.SMALL_ROWS = 0.0, 0
store = stores.FolderStore(sys.argv[1], background=True)
{moment}
for number in range(3, 99):
    store.add([made(f"p{{number}}")])
    print(number, flush=True)
    time.sleep(0.1)
"""
    death = run_code(code, str(tmp_path))
    reported = [f"p{number}" for number in death.stdout.split()] + (["p2"] if "p2" in moment else [])
    FolderStore(str(tmp_path)).close()
    found = ids(tmp_path)

    assert death.returncode == -9, death.stderr
    assert set(reported) <= set(found) and len(found) == len(set(found)) <= len(reported) + 1


def test_a_growing_journal_reaches_readers_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parquet, "SEAL_SECONDS", 0.0)
    store = FolderStore(str(tmp_path))
    store.add([made("p1")])

    assert ids(tmp_path) == ["p1"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_rows_added_again_after_an_interrupt_are_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str):
    store, sync = FolderStore(str(tmp_path)), stores.os.fsync
    store.add([made("p1")])

    def interrupted(file: int) -> None:
        if when == "after":
            sync(file)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stores.os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.add([made("p2")])
    store.add([made("p2")])
    assert [line.count('"point_id"') for line in (tmp_path / JOURNAL).read_text().splitlines()] == [1, 1]
    store.close()

    assert ids(tmp_path) == ["p1", "p2"]


def test_a_second_writer_is_refused_with_the_owner_named(tmp_path: Path):
    store = FolderStore(str(tmp_path))
    code = f"from orchestrator.storage.folder import FolderStore; FolderStore({str(tmp_path)!r})"
    second = run_code(code)
    store.close()

    assert "UserError" in second.stderr and "process" in second.stderr and "writes to it" in second.stderr


@pytest.mark.parametrize("path", ["/dev/null/x", "/proc/nothing"])
def test_a_path_that_cannot_hold_a_dataset_is_refused(path: str):
    with pytest.raises(UserError, match="cannot be written"):
        FolderStore(path)


def test_a_foreign_or_broken_file_is_named_and_left_alone(tmp_path: Path):
    (tmp_path / DATA).write_bytes(b"not parquet")
    with pytest.raises(UserError, match="no readable Parquet file"):
        FolderStore(str(tmp_path))
    assert (tmp_path / DATA).read_bytes() == b"not parquet"

    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / DATA)
    with pytest.raises(UserError, match="lacks the columns"):
        read(tmp_path)


def test_a_dataset_with_columns_of_a_newer_version_is_read_and_not_written(tmp_path: Path):
    store = FolderStore(str(tmp_path))
    store.add([made("p1")])
    store.close()
    table = read(tmp_path).append_column("of_tomorrow", pa.array([7]))
    with (tmp_path / DATA).open("wb+") as file:
        checksum.write(table, file)
    before = (tmp_path / DATA).read_bytes()

    with pytest.raises(UserError, match=r"does not know \(of_tomorrow\) and would lose"):
        FolderStore(str(tmp_path))
    assert (tmp_path / DATA).read_bytes() == before
    assert read(tmp_path).column("point_id").to_pylist() == ["p1"]

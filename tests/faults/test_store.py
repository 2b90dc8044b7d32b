"""The dataset's disk fills up, turns read-only or holds foreign files. The error names the cause, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from orchestrator import ROOT
from orchestrator.analysis.dataset import open_dataset
from orchestrator.errors import CannotStore, UserError
from orchestrator.storage.folder import SET_ASIDE, FolderStore
from orchestrator.storage.parquet import DATA, JOURNAL, read
from tests.helpers.command_line import run, run_code
from tests.helpers.runs import TINY, rows_of
from tests.helpers.stored_rows import ids, made

INLINE = [*TINY, "cluster=inline", "sweep.batch_size=[1,2]", "sweep.s_qo=[1]", "sweep.backend=[nothing,torch_sdpa]"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: it takes root ({mounted.stderr.strip()})")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Fills the disk except for `leave` bytes; the file that does."""
    free = os.statvfs(disk)
    ballast = disk / "_ballast"
    ballast.write_bytes(b"x" * max(0, free.f_bavail * free.f_frsize - leave))
    return ballast


def until_full(store: FolderStore) -> list[str]:
    """The rows that were reported before the disk was full."""
    reported: list[str] = []
    with pytest.raises(CannotStore, match="No space left on device"):
        while True:
            store.add([made(f"p{len(reported)}", reason="a reason of some length " * 4)])
            reported.append(f"p{len(reported)}")
    return reported


@pytest.mark.root
def test_a_full_disk_is_an_error_that_keeps_every_row_that_was_reported(small_disk: Path):
    path = small_disk / "rows"
    store = FolderStore(str(path))
    reported = until_full(store)
    with pytest.raises(CannotStore, match="No space left on device"):
        store.close()
    on_full_disk = sorted(read(path).column("point_id").to_pylist())
    resize(small_disk, "16m")
    FolderStore(str(path)).close()

    assert len(reported) > 20
    assert on_full_disk == sorted(reported)
    assert ids(path) == sorted(reported)
    assert not (path / f"_{DATA}.new").exists()


@pytest.mark.root
def test_a_dataset_takes_rows_again_once_there_is_room(small_disk: Path):
    path = small_disk / "rows"
    store = FolderStore(str(path))
    reported = until_full(store)
    resize(small_disk, "16m")
    store.add([made("late")])
    late = sorted(read(path).column("point_id").to_pylist())
    store.close()

    assert late == ids(path) == sorted([*reported, "late"])


def test_a_journal_that_becomes_read_only_is_an_error_and_keeps_its_rows(tmp_path: Path):
    """As on a disk that turns read-only under an open file."""
    store = FolderStore(str(tmp_path))
    store.add([made("p1")])
    store._journal = (tmp_path / JOURNAL).open("rb", buffering=0)
    with pytest.raises(CannotStore, match="cannot be written"):
        store.add([made("p2")])
    store._lock.close()

    assert read(tmp_path).column("point_id").to_pylist() == ["p1"]


@pytest.mark.root
def test_a_disk_that_is_full_at_the_start_stops_the_run_before_it_begins(small_disk: Path):
    path = small_disk / "rows"
    store = FolderStore(str(path))
    store.add([made("p1")])
    store.close()
    before = (path / DATA).read_bytes()
    ballast = fill(small_disk, leave=0)
    full = run(*INLINE, f"results.path={path}")
    after = (path / DATA).read_bytes()
    ballast.unlink()

    assert full.returncode == 2
    assert "No space left on device" in full.stderr and f"results.path='{path}'" in full.stderr
    assert "Traceback" not in full.stderr
    assert after == before
    assert ids(path) == ["p1"]


@pytest.mark.root
def test_a_run_whose_disk_fills_up_keeps_its_rows_and_can_be_resumed(small_disk: Path):
    path = small_disk / "rows"
    FolderStore(str(path)).close()
    fill(small_disk, leave=24 * 1024)  # a seal of an empty dataset, and a row or two
    stopped = run(*INLINE, f"results.path={path}")
    kept = read(path).column("point_id").to_pylist()
    resize(small_disk, "16m")
    again = run(*INLINE, f"results.path={path}")
    table = rows_of(path)

    assert stopped.returncode == 1, stopped.stderr
    assert "No space left on device" in stopped.stdout and "Make room, then type" in stopped.stdout
    assert "Traceback" not in stopped.stdout + stopped.stderr
    assert again.returncode == 0, again.stderr
    assert len(table) == table["point_id"].nunique() == 4
    assert f"{4 - len(kept)} rows in" in again.stdout


def test_a_file_that_may_grow_no_further_keeps_whole_rows_alone(tmp_path: Path):
    """The limit is reached in the middle of a row. This needs no root, unlike a full disk."""
    code = textwrap.dedent(
        """
        import resource, sys
        from orchestrator.errors import CannotStore
        from orchestrator.storage.folder import FolderStore
        from tests.helpers.stored_rows import made
        store = FolderStore(sys.argv[1])
        store.add([made("p1")])
        whole = store._journal.tell()
        resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 100, whole + 100))
        try:
            store.add([made("p2")])
        except CannotStore as error:
            print(error, store._journal.tell() - whole)
        """
    )
    full = run_code(code, str(tmp_path))

    assert "File too large" in full.stdout, full.stderr
    assert (tmp_path / JOURNAL).read_bytes().endswith(b"}\n")
    FolderStore(str(tmp_path)).close()
    assert ids(tmp_path) == ["p1"]


def test_a_results_path_that_turns_read_only_keeps_its_rows(tmp_path: Path):
    code = textwrap.dedent(
        """
        import os, sys
        from orchestrator.storage.folder import FolderStore
        from tests.helpers.stored_rows import made
        store = FolderStore(sys.argv[1])
        store.add([made("p1")])
        store.seal()
        store.add([made("p2")])
        os.chmod(sys.argv[1], 0o555)
        if os.geteuid() == 0:
            os.seteuid(65534)  # root may write anywhere
        for what in (store.seal, store.close, lambda: FolderStore(sys.argv[1])):
            try:
                what()
            except Exception as error:
                print(type(error).__name__, error)
        """
    )
    path = tmp_path / "rows"
    done = run_code(code, str(path))
    read_only = sorted(read(path).column("point_id").to_pylist())
    path.chmod(0o755)
    FolderStore(str(path)).close()

    said = done.stdout.splitlines()
    assert [line.split()[0] for line in said] == ["CannotStore", "CannotStore", "UserError"], done.stderr
    assert all("Permission denied" in line and str(path) in line for line in said)
    assert read_only == ids(path) == ["p1", "p2"]


def sealed(path: Path, *point_ids: str) -> None:
    store = FolderStore(str(path))
    store.add([made(point_id) for point_id in point_ids])
    store.close()


def test_a_truncated_dataset_is_named_and_left_alone(tmp_path: Path):
    sealed(tmp_path, "p1", "p2")
    whole = (tmp_path / DATA).read_bytes()
    (tmp_path / DATA).write_bytes(whole[: len(whole) // 2])
    refused = run(*INLINE, f"results.path={tmp_path}")

    assert refused.returncode == 2
    assert str(tmp_path / DATA) in refused.stderr and "no readable Parquet file" in refused.stderr
    assert (tmp_path / DATA).read_bytes() == whole[: len(whole) // 2]


@pytest.mark.parametrize("reads", ["mode=report", "mode=dashboard export={}/page.html", "export={}/rows.csv"])
def test_every_reader_names_a_file_that_is_damaged_before_its_footer(tmp_path: Path, reads: str):
    whole = (ROOT / "results" / "h200_main" / "specdec_long_ctx.parquet").read_bytes()
    damaged = bytearray(whole)
    damaged[200 : len(whole) // 2 : 97] = bytes(len(range(200, len(whole) // 2, 97)))
    (tmp_path / DATA).write_bytes(damaged)
    refused = run(*reads.format(tmp_path).split(), f"results.path={tmp_path}")

    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert str(tmp_path / DATA) in refused.stderr and "move it away" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert (tmp_path / DATA).read_bytes() == damaged


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path):
    sealed(tmp_path, "p1")
    (tmp_path / JOURNAL).mkdir()  # unreadable for root too
    for reads in (read, open_dataset, FolderStore):
        with pytest.raises(UserError, match=r"cannot be read \(it is a folder"):
            reads(str(tmp_path))


def test_a_folder_that_may_not_be_looked_into_is_named(tmp_path: Path):
    sealed(tmp_path / "closed" / "rows", "p1")
    code = textwrap.dedent(
        """
        import os, sys
        from orchestrator.analysis.dataset import open_dataset
        from orchestrator.storage import access
        os.chmod(sys.argv[1], 0)
        if os.geteuid() == 0:
            os.seteuid(65534)
        for reads in (access.exists, access.read, open_dataset):
            try:
                reads(sys.argv[1] + "/rows")
            except Exception as error:
                print(type(error).__name__, error)
        """
    )
    done = run_code(code, str(tmp_path / "closed"))
    (tmp_path / "closed").chmod(0o755)

    assert [line.split()[0] for line in done.stdout.splitlines()] == ["UserError"] * 3, done.stdout + done.stderr
    assert done.stdout.count("Permission denied") == 3


@pytest.mark.parametrize("name", ["other.parquet", "notes.txt"])
def test_a_foreign_file_beside_the_dataset_is_named_and_left_alone(tmp_path: Path, name: str):
    sealed(tmp_path, "p1")
    before = (tmp_path / DATA).read_bytes()
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match=f"{name} is no part of a dataset"):
        FolderStore(str(tmp_path))

    assert (tmp_path / name).read_text() == "mine"
    assert (tmp_path / DATA).read_bytes() == before
    (tmp_path / name).unlink()
    sealed(tmp_path, "p2")  # a refusal has let go of the dataset
    assert ids(tmp_path) == ["p1", "p2"]


def test_a_parquet_file_with_our_columns_in_other_types_is_named(tmp_path: Path):
    sealed(tmp_path, "p1")
    table = pd.read_parquet(tmp_path / DATA).assign(batch_size="many")
    table.to_parquet(tmp_path / DATA)
    with pytest.raises(UserError, match="columns of other types"):
        FolderStore(str(tmp_path))


@pytest.mark.parametrize("line", [b"not json", b'{"point_id": "p9"}', b"17", b"\xff\xfe", b'{"someone": "else"}'])
def test_a_bad_line_in_the_journal_costs_itself_is_named_and_set_aside(
    tmp_path: Path, line: bytes, capsys: pytest.CaptureFixture[str]
):
    store = FolderStore(str(tmp_path))
    store.add([made("p1"), made("p2")])
    store._lock.close()
    first, second, _ = (tmp_path / JOURNAL).read_bytes().split(b"\n")
    (tmp_path / JOURNAL).write_bytes(b"\n".join([first, line, second, b""]))
    assert sorted(read(tmp_path).column("point_id").to_pylist()) == ["p1", "p2"]
    assert f"line 2 of {tmp_path / JOURNAL} is no row of this project" in capsys.readouterr().err
    FolderStore(str(tmp_path)).close()

    assert ids(tmp_path) == ["p1", "p2"]
    assert (tmp_path / SET_ASIDE).read_bytes() == line + b"\n"


@pytest.mark.parametrize("tail", [b'{"point_id": "p3", "clu', b"\0" * 400])
def test_a_line_without_an_end_was_never_reported(tmp_path: Path, tail: bytes):
    store = FolderStore(str(tmp_path))
    store.add([made("p1")])
    store._lock.close()
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(tail)
    FolderStore(str(tmp_path)).close()

    assert ids(tmp_path) == ["p1"]

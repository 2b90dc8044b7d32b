"""A dataset in an object store, on a real S3 server of this machine: what is reported is kept, whoever dies, and has one owner."""

from __future__ import annotations

import io
import itertools
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator import ROOT
from orchestrator.errors import CannotStore, UserError
from orchestrator.storage import access, checksum, parquet
from orchestrator.storage.parquet import DATA
from orchestrator.storage.row import COLUMNS, to_json
from orchestrator.storage.s3 import store
from orchestrator.storage.s3.bucket import Bucket
from orchestrator.storage.s3.store import JOURNAL, OWNERS, SET_ASIDE, ObjectStore
from tests.helpers import s3_servers
from tests.helpers.command_line import environment, run, run_code, start_code
from tests.helpers.runs import SLOW_OF_ANY_BATCH, start
from tests.helpers.s3_servers import Server
from tests.helpers.stored_rows import made


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """An S3 server with an empty bucket, `lab`."""
    server = s3_servers.start()
    yield server
    server.stop()


@pytest.fixture
def path(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix where nothing is, and everything that a process must know to find the store."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://lab/{secrets.token_hex(4)}/sweep"


def ids(path: str) -> list[str]:
    """What pandas reads, as any reader would."""
    return sorted(pd.read_parquet(path)["point_id"])


def journal(path: str) -> list[str]:
    return list(Bucket(path).objects(JOURNAL))


def test_pandas_reads_the_prefix_with_every_column(path: str):
    store = ObjectStore(path)
    assert list(pd.read_parquet(path).columns) == list(COLUMNS)

    store.add([made("p1", median_us=3.5, samples_us=[3.0, 4.0]), made("p2", "failed")])
    store.close()
    table = pd.read_parquet(path)

    assert list(table.columns) == list(COLUMNS)
    assert table.loc[0, "median_us"] == 3.5
    assert journal(path) == []


def test_a_row_is_in_the_store_when_add_returns_and_our_readers_see_it(path: str):
    store = ObjectStore(path)
    store.add([made("p1")])
    store.add([made("p2")])

    assert len(journal(path)) == 2
    assert sorted(access.read(path)["point_id"].to_pylist()) == ["p1", "p2"]
    assert ids(path) == []
    store.close()
    assert ids(path) == ["p1", "p2"]


def test_a_newer_row_of_the_same_point_replaces_the_older(path: str):
    store = ObjectStore(path)
    store.add([made("p1", "failed"), made("p2")])
    store.seal()
    store.add([made("p1", "failed")])
    store.add([made("p1", "ok")])
    assert dict(zip(*access.read(path).select(["point_id", "status"]).to_pydict().values(), strict=True)) == {
        "p1": "ok",
        "p2": "ok",
    }
    store.close()

    assert pd.read_parquet(path).set_index("point_id")["status"].to_dict() == {"p1": "ok", "p2": "ok"}


def test_a_dataset_with_columns_of_a_newer_version_is_not_written(path: str):
    store = ObjectStore(path)
    store.add([made("p1")])
    store.close()
    checksum.write(access.read(path).append_column("of_tomorrow", pa.array([7])), changed := io.BytesIO())
    Bucket(path).put(DATA, changed.getvalue())

    with pytest.raises(UserError, match=r"does not know \(of_tomorrow\) and would lose"):
        ObjectStore(path)
    assert Bucket(path).get(DATA) == changed.getvalue()


KILLED_AT = {
    "before it seals": "die()",
    "while it puts a row": "store.bucket._put = die; store.add([made('p4')])",
    "while it puts the file": "store.bucket._put = die; store.seal()",
    "before it deletes any journal object": "store.bucket.delete_folder = die; store.seal()",
    # Of `failed` and `ok` of one point the older is left: it must not come back.
    "before it deletes the older journal object": "store.bucket.delete_folder = lambda folder: die(newest(folder)); store.seal()",
}
KILLED = """
    import os, signal, sys
    from tests.helpers.stored_rows import made
    from orchestrator.storage.s3.store import JOURNAL, ObjectStore
    def die(*_args, **_keys):
        os.kill(os.getpid(), signal.SIGKILL)
    def newest(folder):
        store.bucket.delete(max(store.bucket.objects(folder)))
    store = ObjectStore(sys.argv[1])
    store.add([made("p1"), made("p2", "failed")])
    store.seal()
    store.add([made("p3", "failed")])
    store.add([made("p2"), made("p3")])
"""


@pytest.mark.parametrize("moment", KILLED_AT)
def test_a_writer_killed_at_any_moment_loses_and_doubles_nothing(path: str, moment: str):
    code = textwrap.dedent(KILLED) + KILLED_AT[moment]
    death = run_code(code, path)
    assert death.returncode == -signal.SIGKILL, death.stderr
    seen_by_pandas, seen_by_us = ids(path), sorted(access.read(path)["point_id"].to_pylist())
    ObjectStore(path).close()

    assert set(seen_by_pandas) >= {"p1", "p2"}
    assert seen_by_us == ids(path) == ["p1", "p2", "p3"]
    assert set(pd.read_parquet(path)["status"]) == {"ok"}
    assert journal(path) == []


def test_a_growing_journal_reaches_readers_while_the_run_goes_on(path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parquet, "SEAL_SECONDS", 0.0)
    store = ObjectStore(path)
    store.add([made("p1")])

    assert ids(path) == ["p1"]
    store.close()


def test_a_reader_misses_no_reported_row_while_a_writer_seals(path: str):
    code = f"from tests.orchestrator.storage.test_s3 import write_many; write_many({path!r}, 40)"
    writer = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for line in writer.stdout:
        assert access.read(path).num_rows > int(line)
    assert writer.wait(timeout=30) == 0

    assert len(ids(path)) == 40


def write_many(path: str, count: int) -> None:
    """Tells of each row once it is kept; seals now and then."""
    parquet.SEAL_SECONDS = 0.05
    store = ObjectStore(path)
    for number in range(count):
        store.add([made(f"p{number}")])
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
    store.close()


def test_a_second_writer_is_refused_with_the_owner_named(path: str):
    store = ObjectStore(path)
    code = f"from orchestrator.storage.s3.store import ObjectStore; ObjectStore({path!r})"
    second = run_code(code)
    store.add([made("p1")])
    store.close()

    assert "UserError" in second.stderr and "process" in second.stderr and "writes to it" in second.stderr
    assert ids(path) == ["p1"]
    assert list(Bucket(path).objects(OWNERS)) == []


def test_of_many_that_come_at_once_never_two_own_a_dataset(path: str):
    code = textwrap.dedent(
        f"""
        import time
        from orchestrator.errors import UserError
        from orchestrator.storage.s3.store import ObjectStore
        try:
            store = ObjectStore({path!r})
        except UserError:
            print("refused")
        else:
            began = time.time()
            time.sleep(1)
            print(began, time.time())
            store.close()
        """
    )
    many = [start_code(code) for _ in range(4)]
    said = [one.communicate(timeout=180)[0].split() for one in many]
    owned = sorted((float(words[0]), float(words[1])) for words in said if len(words) == 2)

    assert all(len(words) == 2 or words == ["refused"] for words in said)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(owned))


def elsewhere(path: str, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A writer of another machine, which shows no sign of life after its first."""
    with monkeypatch.context() as there:
        there.setattr(store, "_pid_namespace", lambda: "another machine")
        there.setattr(store, "RENEW_SECONDS", 1e6)
        return ObjectStore(path)


def test_an_owner_on_another_machine_is_alive_until_its_lease_is_stale(path: str, monkeypatch: pytest.MonkeyPatch):
    silent = elsewhere(path, monkeypatch)
    silent.add([made("p1")])
    with pytest.raises(UserError, match="heard of"):
        ObjectStore(path)
    monkeypatch.setattr(store, "STALE_SECONDS", 1.0)
    time.sleep(2.5)  # the store's clock has whole seconds
    heir = ObjectStore(path)

    assert ids(path) == ["p1"]
    heir.close()


def test_an_owner_that_was_stopped_too_long_writes_no_file(path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store, "STALE_SECONDS", 1.0)
    stopped = elsewhere(path, monkeypatch)
    stopped.add([made("p1")])
    time.sleep(2.5)
    heir = ObjectStore(path)
    heir.add([made("p2")])
    heir.seal()
    monkeypatch.setattr(store, "LOST_SECONDS", 1.0)
    stopped.add([made("p3")])
    with pytest.raises(CannotStore, match="another driver may own"):
        stopped.seal()
    heir.close()
    assert ids(path) == ["p1", "p2"]
    ObjectStore(path).close()

    assert ids(path) == ["p1", "p2", "p3"]


def test_a_store_that_goes_away_is_an_error_and_what_was_reported_is_kept(
    server: Server, path: str, monkeypatch: pytest.MonkeyPatch
):
    passing = server.another_door()
    with monkeypatch.context() as there:
        there.setenv("AWS_ENDPOINT_URL", passing.environment["AWS_ENDPOINT_URL"])
        store = ObjectStore(path)
        store.add([made("p1")])
    passing.stop()
    with pytest.raises(CannotStore, match="cannot be written"):
        store.add([made("p2")])
    with pytest.raises(CannotStore, match="cannot be written"):
        store.close()

    assert access.read(path)["point_id"].to_pylist() == ["p1"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("s3://lab", "allowed: s3://BUCKET/PREFIX"),
        ("s3://nowhere/sweep", "cannot be written"),
        ("gs://lab/sweep", "allowed: a folder, or s3://BUCKET/PREFIX"),
    ],
)
@pytest.mark.usefixtures("path")
def test_a_path_that_cannot_hold_a_dataset_is_refused(wrong: str, words: str):
    with pytest.raises(UserError, match=words):
        access.open_writer(wrong)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (DATA, b"not parquet", "no readable Parquet file"),
        ("notes.txt", b"hello", "no part of a dataset"),
    ],
)
def test_a_foreign_or_broken_object_is_named_and_left_alone(path: str, name: str, content: bytes, words: str):
    Bucket(path).put(name, content)
    with pytest.raises(UserError, match=words):
        ObjectStore(path)

    assert Bucket(path).get(name) == content
    assert list(Bucket(path).objects(OWNERS)) == []


def test_a_wrong_line_of_a_journal_is_set_aside(path: str):
    Bucket(path).put(f"{JOURNAL}/other-0000/000000.jsonl", b'{"x": 1}\n' + to_json(made("p1")).encode())
    ObjectStore(path).close()

    assert ids(path) == ["p1"]
    assert [Bucket(path).get(name) for name in Bucket(path).objects(SET_ASIDE)] == [b'{"x": 1}\n']


@pytest.mark.parametrize("content", [b"hello", b"[1]", b'{"x": 1}'])
def test_an_object_among_the_owners_that_is_none_is_named_and_left_alone(path: str, content: bytes):
    name = f"{OWNERS}/notes.txt"
    Bucket(path).put(name, content)
    with pytest.raises(UserError, match=f"{name} is no part of a dataset; move it away"):
        ObjectStore(path)

    assert Bucket(path).get(name) == content
    assert list(Bucket(path).objects(OWNERS)) == [name]


def test_a_sweep_killed_in_mid_run_resumes_where_it_was(path: str, tmp_path: Path):
    args = [*SLOW_OF_ANY_BATCH, "sweep.batch_size=[1,2]", "cluster=inline", f"results.path={path}"]
    driver = start(*args)
    deadline = time.monotonic() + 60
    while len(journal(path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    driver.kill()
    driver.communicate(timeout=180)
    before = set(access.read(path)["point_id"].to_pylist())
    stopped_at = pd.Timestamp.now(tz="UTC")
    again = run(*args)
    table = pd.read_parquet(path)
    report = run("mode=report", f"results.path={path}")
    pq.write_table(access.read(path), tmp_path / DATA)
    compared = run("mode=compare", f"baseline={path}", f"candidate={tmp_path}", "full=true")

    assert len(before) >= 2
    assert again.returncode == 0, again.stderr
    assert len(table) == table["point_id"].nunique() == 6
    assert set(table["status"]) == {"ok"}
    assert before <= set(table[table["finished_at"] < stopped_at]["point_id"])
    assert report.returncode == 0 and "· 6 ok" in report.stdout
    assert compared.returncode == 0 and f"what changed: {path} → {tmp_path}" in compared.stdout, compared.stderr

"""The driver is killed, stopped or interrupted, or meets another driver. No reported row is lost, and the same command resumes."""

from __future__ import annotations

import random
import signal
import textwrap
import time
from pathlib import Path

import pandas as pd
import pytest

from orchestrator.storage.folder import FolderStore
from tests.backends.faulty import alive
from tests.helpers.command_line import run, start_code
from tests.helpers.runs import (
    IMPATIENT,
    SLOW,
    SLOW_OF_ANY_BATCH,
    TINY,
    journal,
    processes,
    rows_of,
    signal_all,
    start,
    wait_for_rows,
    wait_until,
)

STOPS = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 130}


def test_a_driver_that_is_stopped_again_and_again_loses_no_row(tmp_path: Path):
    # One batch size more: a busy machine finishes more points before it hears a signal.
    args = [*SLOW_OF_ANY_BATCH, "sweep.batch_size=[1,2,3,4]", f"results.path={tmp_path}"]
    reported: set[str] = set()
    for sent, code in STOPS.items():
        driver = start(*args)
        wait_until(lambda known=frozenset(reported): len(set(journal(tmp_path)) - known) >= 2, "2 rows more")
        workers = list(processes("ray::WorkerActor", under=driver.pid))
        reported |= set(journal(tmp_path))
        driver.send_signal(sent)
        out, err = driver.communicate(timeout=180)
        assert driver.returncode == code, err
        if sent != signal.SIGKILL:
            assert f"results.path={tmp_path}" in out and "To go on, type" in out
            assert "Traceback" not in out + err
        assert workers
        wait_until(lambda left=workers: not any(map(alive, left)), "the workers are gone with their driver", seconds=5)
    stopped_at = pd.Timestamp.now(tz="UTC")
    last = run(*args)
    table = rows_of(tmp_path)

    assert last.returncode == 0, last.stderr
    assert len(table) == table["point_id"].nunique() == 12
    assert set(table["status"]) == {"ok"}
    assert reported <= set(table.loc[table["finished_at"] < stopped_at, "point_id"])


def test_an_interrupt_ends_the_whole_of_a_run_over_several_clusters(tmp_path: Path):
    args = [*SLOW, f"results.path={tmp_path}", "-m", "cluster=inline,local"]
    driver = start(*args)
    wait_for_rows(tmp_path, 1)
    driver.send_signal(signal.SIGINT)
    out, err = driver.communicate(timeout=180)

    assert driver.returncode == 130, err
    assert out.count("To go on, type") == 1
    assert set(rows_of(tmp_path)["cluster"]) == {"inline"}


def test_a_run_under_which_ray_itself_dies_stops_with_its_rows_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in IMPATIENT.items():
        monkeypatch.setenv(f"RAY_{name}", str(value))
    driver = start(*SLOW, f"results.path={tmp_path}")
    reported = set(wait_for_rows(tmp_path, 2))
    signal_all(list(processes("raylet/raylet", under=driver.pid)), signal.SIGKILL)
    out, err = driver.communicate(timeout=240)

    assert driver.returncode == 1, err
    assert "every finished row is stored. To go on, type" in out
    assert "Traceback" not in out + err
    assert reported <= set(rows_of(tmp_path)["point_id"])


def test_a_second_driver_is_refused_with_the_owner_named(tmp_path: Path):
    args = [
        *TINY,
        "cluster=inline",
        "sweep.backend=[slow]",
        "sweep.batch_size=[1,2]",
        "sweep.s_qo=[1,2]",
        f"results.path={tmp_path}",
    ]
    first = start(*args)
    wait_until(lambda: journal(tmp_path), "a row of the first driver")
    first.send_signal(signal.SIGSTOP)  # so that it cannot have finished before the second comes
    second = run(*args)
    first.send_signal(signal.SIGCONT)
    first.communicate(timeout=240)
    table = rows_of(tmp_path)

    assert second.returncode == 2
    assert f"process {first.pid} on" in second.stderr and "writes to it" in second.stderr
    assert first.returncode == 0
    assert len(table) == table["point_id"].nunique() == 4
    assert set(table["status"]) == {"ok"}


WRITER = textwrap.dedent(
    """
    import sys
    from tests.helpers.stored_rows import made
    from orchestrator.storage import folder as stores, parquet
    parquet.SEAL_SECONDS = 0.01
    store = stores.FolderStore(sys.argv[1])
    print("ready", flush=True)
    for n in range(int(sys.argv[2]), 100_000):
        store.add([made(f"p{n}"), made("again")])
        print(f"p{n}", flush=True)
    """
)


@pytest.mark.parametrize("seed", range(6))
def test_a_writer_killed_at_any_moment_keeps_each_reported_row_once(tmp_path: Path, seed: int):
    draw = random.Random(seed)
    reported: list[str] = []
    for _ in range(2):
        writer = start_code(WRITER, str(tmp_path), str(len(reported)))
        wait_until(lambda writer=writer: writer.printed().startswith("ready\n"), "the writer is ready")
        time.sleep(draw.uniform(0.0, 0.4))
        writer.kill()
        reported += writer.communicate(timeout=30)[0].splitlines()[1:]
    seen_by_readers = list(rows_of(tmp_path)["point_id"])
    FolderStore(str(tmp_path)).close()
    kept = list(rows_of(tmp_path)["point_id"])

    assert len(seen_by_readers) == len(set(seen_by_readers))
    assert len(kept) == len(set(kept))
    assert set(reported) <= set(kept)
    assert len(set(kept) - set(reported)) <= 3  # `again`, and one a death that was on disk before it was told of

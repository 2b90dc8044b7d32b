"""Kernels that fail in every way, on real Ray actors: how each point ends, and what becomes of its worker."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pandas as pd
import pytest

import kernels
from tests.backends.faulty import MARKS
from tests.helpers.command_line import run
from tests.helpers.memory_limit import limited_to
from tests.helpers.runs import SLOW, SMALL, TINY, processes, rows_of, start, start_from_scratch, wait_for_rows

ENDS = {
    "torch_sdpa": "ok",
    "raises": "failed",
    "wrong": "mismatch",
    "nan": "mismatch",
    "uncompilable": "failed",
    "fa2": "unsupported",
    "out_of_memory": "oom",
    "out_of_host_memory": "oom",
    "hangs": "timeout",
    "spins": "timeout",
    "stops": "timeout",
    "finds_nobody": "ok",
    "dies": "failed",
    "dies_once": "ok",
    "exits": "failed",
    "segfaults": "failed",
    "dies_measured": "failed",
    "nothing": "ok",
}
Done = tuple[subprocess.CompletedProcess[str], pd.DataFrame]


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """One problem on every bad backend, beside good ones."""
    folder = tmp_path_factory.mktemp("faults")
    os.environ[MARKS] = str(folder)
    backends = f"sweep.backend=[{','.join(ENDS)}]"
    done = run(
        *TINY, backends, "sweep.batch_size=[1]", "sweep.s_qo=[1]", "limits.point_seconds=20", f"results.path={folder / 'rows'}"
    )
    return done, rows_of(folder / "rows")


def test_every_point_has_one_right_row_and_a_fault_costs_its_own_alone(faults: Done):
    done, table = faults

    assert done.returncode == 1, done.stderr
    assert len(table) == table["point_id"].nunique() == len(ENDS)
    assert dict(zip(table["backend"], table["status"], strict=True)) == ENDS
    assert list(Path(os.environ[MARKS]).glob("dies_once-*"))  # it did die before it was ok


def test_a_plugin_that_patches_torch_or_closes_descriptors_fails_itself_alone(tmp_path: Path):
    backends = ("adapters=[tests.backends.hostile]", "sweep.backend=[patches,closes,torch_sdpa]", "limits.point_seconds=20")
    done = run(*SMALL, *backends, "sweep.batch_size=[1,2]", "sweep.s_qo=[1]", f"results.path={tmp_path / 'rows'}")
    table = rows_of(tmp_path / "rows")

    assert "Traceback" not in done.stderr
    assert table.groupby("backend").size().to_dict() == {"closes": 2, "patches": 2, "torch_sdpa": 2}
    assert set(table.set_index("backend").loc["torch_sdpa", "status"]) == {"ok"}


@pytest.mark.parametrize(
    ("backend", "words", "attempts"),
    [
        ("uncompilable", "did not compile: mha.cu(7): error", {0}),
        # The next point kills the worker: on a busy machine before the answer has left it, and the point runs once more.
        ("raises", "RuntimeError: no kernel for a group of 8", {1, 2}),
        ("nan", "hold NaN", {1, 2}),
        ("wrong", "off by more than", {1, 2}),
        ("hangs", "limits.point_seconds=20", {1}),
        ("spins", "limits.point_seconds=20", {1}),
        ("stops", "limits.point_seconds=20", {1}),
        # A busy machine may lose the answer of the point before it instead, which then pays the attempt.
        ("dies_once", "", {1, 2}),
    ],
)
def test_a_reason_says_what_happened(faults: Done, backend: str, words: str, attempts: set[int]):
    mine = faults[1].query("backend == @backend")

    assert all(words in reason for reason in mine["reason"])
    assert set(mine["attempt"]) <= attempts


@pytest.mark.parametrize("backend", ["dies", "exits", "segfaults", "dies_measured"])
def test_a_poison_point_is_given_up_after_two_attempts(faults: Done, backend: str):
    (row,) = faults[1].query("backend == @backend").to_dict("records")

    assert row["reason"].startswith("the worker process died")
    assert row["attempt"] == 2


@pytest.mark.parametrize(
    ("backend", "words"),
    [("out_of_memory", "tried to allocate 20 GiB"), ("out_of_host_memory", "host memory: ")],
)
def test_a_point_without_memory_is_tried_once_more_alone_and_then_given_up(faults: Done, backend: str, words: str):
    (row,) = faults[1].query("backend == @backend").to_dict("records")

    assert words in row["reason"]
    assert row["attempt"] == 2


def test_a_process_that_hangs_or_is_stopped_is_gone_before_the_next_starts(faults: Done):
    (row,) = faults[1].query("backend == 'finds_nobody'").to_dict("records")

    assert (row["status"], row["reason"]) == ("ok", "")


def test_workers_import_this_project_and_no_other_package_called_kernels(faults: Done):
    assert set(faults[1].query("backend == 'nothing'")["resolved_backend"]) == {kernels.__file__}


def test_without_a_terminal_there_are_no_bars_and_no_colours(faults: Done):
    done = faults[0]

    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout
    assert "2 mismatch, 6 failed" in done.stdout and "next:" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_every_row_carries_the_command_that_runs_it_again(faults: Done, tmp_path: Path):
    row = faults[1].query("backend == 'nothing'").iloc[0]
    typed = shlex.split(row["command"])
    again = run(*typed[3:], f"into={tmp_path}", "cluster=inline")  # the last key given counts
    table = rows_of(tmp_path)

    assert typed[:3] == ["python", "-m", "orchestrator"]
    assert again.returncode == 0, again.stderr
    assert list(table["point_id"]) == [row["point_id"]]


def test_a_worker_killed_from_outside_is_replaced_while_the_run_goes_on(tmp_path: Path):
    driver = start(*SLOW, f"results.path={tmp_path}")
    wait_for_rows(tmp_path, 2)
    killed = [pid for pid in processes("ray::WorkerActor", under=driver.pid) if os.kill(pid, signal.SIGKILL) is None]
    killed_at = pd.Timestamp.now(tz="UTC")
    driver.communicate(timeout=240)
    table = rows_of(tmp_path)
    next_started = table.loc[table["started_at"] > killed_at, "started_at"].min()

    assert killed
    assert driver.returncode == 0
    assert len(table) == table["point_id"].nunique() == 9
    assert set(table["status"]) == {"ok"}
    assert table["attempt"].max() == 2
    assert next_started - killed_at < pd.Timedelta(seconds=60)  # a busy machine took 20 s to start one


@pytest.mark.root
def test_a_worker_killed_for_its_memory_is_oom_after_a_second_try_alone(tmp_path: Path):
    os.environ["FAULTY_EATS_MIB"] = "6144"
    args = [*TINY, "sweep.backend=[nothing,eats_memory,torch_sdpa]", "sweep.batch_size=[1]", "sweep.s_qo=[1]"]
    with limited_to(2560 * 2**20) as join:
        driver = start_from_scratch(*args, f"results.path={tmp_path}", preexec_fn=join)
        out, err = driver.communicate(timeout=240)
    table = rows_of(tmp_path).set_index("backend")

    assert driver.returncode == 1, out + err
    assert table["status"].to_dict() == {"nothing": "ok", "eats_memory": "oom", "torch_sdpa": "ok"}
    assert table.loc["eats_memory", "reason"].startswith("host memory: ")
    assert table.loc["eats_memory", "attempt"] == 2

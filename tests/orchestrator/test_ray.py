"""The whole way on real Ray: every fault a kernel can have, a worker killed from outside, a driver killed, a joined cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

import kernels
from tests.conftest import ROOT, command, environment, run

TINY = [
    "+sweep=smoke",
    "timing=quick",
    "adapters=[tests.faulty,tests.uncompilable]",
    "sweep.s_kv=[256]",
    "model.num_qo_heads=8",
    "model.num_kv_heads=1",
]
ENDS = {
    **dict.fromkeys(("torch_sdpa", "nothing", "dies_once"), "ok"),
    **dict.fromkeys(("wrong", "nan"), "mismatch"),
    **dict.fromkeys(("raises", "dies", "exits", "uncompilable"), "failed"),
    "out_of_memory": "oom",
    "hangs": "timeout",
    "fa2": "unsupported",
}


def rows_of(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path)


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], pd.DataFrame]:
    """One sweep with every fault in it, each beside innocent points."""
    folder = tmp_path_factory.mktemp("faults")
    os.environ["FAULTY_MARKS"] = str(folder)
    done = run(
        *TINY,
        f"sweep.backend=[{','.join(ENDS)}]",
        "sweep.batch_size=[1]",
        "limits.point_seconds=6",
        f"results.path={folder / 'rows'}",
    )
    return done, rows_of(folder / "rows")


def test_every_point_has_one_row_and_each_fault_costs_its_own_point_alone(
    faults: tuple[subprocess.CompletedProcess[str], pd.DataFrame],
):
    done, table = faults

    assert done.returncode == 1, done.stderr
    assert len(table) == table["point_id"].nunique() == 2 * len(ENDS)
    assert {b: set(s) for b, s in table.groupby("backend")["status"]} == {backend: {status} for backend, status in ENDS.items()}


@pytest.mark.parametrize(
    ("backend", "words", "attempts"),
    [
        ("uncompilable", "did not compile: mha.cu(7): error", {0}),
        # The next point kills the worker: on a busy machine before the answer has left it, and the point runs once more.
        ("raises", "RuntimeError: no kernel for a group of 8", {1, 2}),
        ("dies", "the worker process died", {2}),
        ("exits", "the worker process died", {2}),
        ("hangs", "limits.point_seconds=6", {1}),
        ("dies_once", "", {2}),
    ],
)
def test_a_reason_says_what_happened(
    faults: tuple[subprocess.CompletedProcess[str], pd.DataFrame], backend: str, words: str, attempts: set[int]
):
    mine = faults[1].query("backend == @backend")

    assert all(words in reason for reason in mine["reason"])
    assert set(mine["attempt"]) <= attempts


def test_workers_import_this_project_and_no_other_package_called_kernels(
    faults: tuple[subprocess.CompletedProcess[str], pd.DataFrame],
):
    assert set(faults[1].query("backend == 'nothing'")["resolved_backend"]) == {kernels.__file__}


def test_without_a_terminal_there_are_no_bars_and_no_colours(faults: tuple[subprocess.CompletedProcess[str], pd.DataFrame]):
    done = faults[0]

    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout
    assert "points by status" in done.stdout and "next:" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_every_row_carries_the_command_that_runs_it_again(
    faults: tuple[subprocess.CompletedProcess[str], pd.DataFrame], tmp_path: Path
):
    import shlex

    row = faults[1].query("backend == 'nothing'").iloc[0]
    typed = shlex.split(row["command"])
    again = run(*typed[3:], f"results.path={tmp_path}", "cluster=inline")  # the last key given counts
    table = rows_of(tmp_path)

    assert typed[:3] == ["python", "-m", "orchestrator"]
    assert again.returncode == 0, again.stderr
    assert list(table["point_id"]) == [row["point_id"]]


SLOW = [*TINY, "sweep.backend=[slow]", "sweep.batch_size=[1,2,3,4]", "sweep.s_qo=[1,2,3]"]  # 12 points of about a second


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*args), cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_rows(path: Path, count: int) -> list[str]:
    """The first point ids of a journal, as soon as it holds so many."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        journal = path / "_journal.jsonl"
        lines = journal.read_text().splitlines() if journal.exists() else []
        done = [json.loads(line)["point_id"] for line in lines if line.endswith("}")]
        if len(done) >= count:
            return done
        time.sleep(0.05)
    raise AssertionError(f"no {count} rows in {path}")


def processes(needle: str, *, under: int) -> Iterator[int]:
    """Processes whose command line holds a word and whose ancestors include one process."""
    parents = {}
    lines = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    for pid, line in lines.items():
        ancestor = pid
        while ancestor and ancestor != under:
            ancestor = parents.get(ancestor, 0)
        if needle in line and ancestor == under:
            yield pid


def test_a_worker_killed_in_mid_sweep_is_replaced_and_every_point_ends_ok(tmp_path: Path):
    driver = start(*SLOW, f"results.path={tmp_path}")
    wait_for_rows(tmp_path, 2)
    killed = [pid for pid in processes("ray::_Actor", under=driver.pid) if os.kill(pid, signal.SIGKILL) is None]
    driver.communicate(timeout=120)
    table = rows_of(tmp_path)

    assert killed
    assert driver.returncode == 0
    assert len(table) == table["point_id"].nunique() == 12
    assert set(table["status"]) == {"ok"}
    assert table["attempt"].max() == 2


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_a_driver_stopped_in_mid_sweep_goes_on_where_it_was(tmp_path: Path, sent: signal.Signals, code: int):
    driver = start(*SLOW, f"results.path={tmp_path}")
    before = wait_for_rows(tmp_path, 3)
    driver.send_signal(sent)
    out, err = driver.communicate(timeout=60)
    assert driver.returncode == code, err
    if sent != signal.SIGKILL:
        assert f"results.path={tmp_path}" in out and "To go on, type" in out
        assert "Traceback" not in out + err
    stopped_at = pd.Timestamp.now(tz="UTC")
    again = run(*SLOW, f"results.path={tmp_path}")
    table = rows_of(tmp_path)

    assert again.returncode == 0, again.stderr
    assert len(table) == table["point_id"].nunique() == 12
    assert set(table["status"]) == {"ok"}
    kept = table[table["finished_at"] < stopped_at]
    assert set(before) <= set(kept["point_id"])


def test_a_finished_sweep_runs_nothing_again(tmp_path: Path):
    args = [*TINY, "sweep.backend=[nothing,fa2]", f"results.path={tmp_path}"]
    first, again = run(*args), run(*args)

    assert (first.returncode, again.returncode) == (0, 0)
    assert "8 rows in" in first.stdout
    assert "0 rows in" in again.stdout


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[str]:
    """A Ray head of its own process, as `ray start` makes it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = 5000 + probe.getsockname()[1] % 3000  # below the ports that Ray gives to its workers
    args = [
        "start",
        "--head",
        "--block",
        f"--port={port}",
        "--num-cpus=2",
        "--node-ip-address=127.0.0.1",
        "--include-dashboard=false",
    ]
    ray = str(Path(command()[0]).parent / "ray")
    head = subprocess.Popen([ray, *args], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_port(port)
    yield f"127.0.0.1:{port}"
    head.terminate()
    head.wait(timeout=60)


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.2)
    raise AssertionError(f"nobody listens on port {port}")


def test_a_running_cluster_is_joined(ray_cluster: str, tmp_path: Path):
    done = run(
        "+sweep=smoke",
        "timing=quick",
        "cluster=ray",
        f"cluster.address={ray_cluster}",
        "sweep.s_kv=[256]",
        f"results.path={tmp_path}",
    )
    table = rows_of(tmp_path)

    assert done.returncode == 0, done.stderr
    assert table["status"].value_counts().to_dict() == {"ok": 4, "unsupported": 8}
    assert set(table["cluster"]) == {ray_cluster}
    assert table.query("status == 'ok'")["node_id"].str.len().gt(10).all()


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path):
    done = run("+sweep=smoke", "cluster=ray", "cluster.address=127.0.0.1:1", f"results.path={tmp_path}")

    assert done.returncode == 2
    assert "cluster.address='127.0.0.1:1'" in done.stderr
    assert "Traceback" not in done.stderr

"""The head of a Ray cluster dies: the run ends by itself, and the same command resumes once there is a head again."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from orchestrator.pools.ray import connection
from tests.helpers.command_line import command, environment
from tests.helpers.runs import SLOW, WITHOUT_WATCHERS, journal, processes, rows_of, signal_all, start, wait_for_rows, wait_until


@dataclass
class Head:
    """A head with one CPU, as `ray start` makes it, always at the same address."""

    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        ray = str(Path(command()[0]).parent / "ray")
        keys = [f"--port={self.port}", "--num-cpus=1", "--node-ip-address=127.0.0.1", "--include-dashboard=false"]
        keys += WITHOUT_WATCHERS
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([ray, "start", "--head", "--block", *keys], env=environment(), **quiet)
        wait_until(self.listens, "the head listens")

    def listens(self) -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return True
        return False

    def kill(self) -> None:
        """Power off: Ray's own processes and all that they started, at once."""
        if self.process and self.process.poll() is None:
            signal_all([*processes("", under=self.process.pid), self.process.pid], signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def head() -> Iterator[Head]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        head = Head(5000 + probe.getsockname()[1] % 3000)  # below the ports that Ray gives to its workers
    yield head
    head.kill()


def test_a_run_whose_head_dies_keeps_its_rows_and_can_be_resumed(head: Head, tmp_path: Path):
    args = [*SLOW, "cluster=ray", f"cluster.address={head.address}", "cluster.head_seconds=3", f"results.path={tmp_path}"]
    head.start()
    driver = start(*args)
    wait_for_rows(tmp_path, 2)
    head.kill()
    out, err = driver.communicate(timeout=240)
    reported = set(journal(tmp_path)) | set(rows_of(tmp_path)["point_id"])
    died_at = pd.Timestamp.now(tz="UTC")

    assert driver.returncode == 1, out + err
    assert f":{head.port} has not answered for 3 s; every row that was reported is stored" in err
    assert "Traceback" not in out + err
    assert len(reported) >= 2

    head.start()
    again = start(*args)
    out, err = again.communicate(timeout=300)
    table = rows_of(tmp_path)
    assert again.returncode == 0, out + err
    assert len(table) == table["point_id"].nunique() == 9
    assert set(table["status"]) == {"ok"}
    assert reported == set(table.loc[table["finished_at"] < died_at, "point_id"])


def test_a_head_that_is_back_in_time_is_none_that_is_gone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.05)
    lost: list[tuple[str, float]] = []
    with listening() as port:
        pass
    with connection.watched(f"127.0.0.1:{port}", 6.0, lambda *gone: lost.append(gone)):
        time.sleep(0.5)
        with listening(port):
            time.sleep(2.0)
        time.sleep(4.0)  # 6.5 s after it was first gone, 4 s after the second time
        assert lost == []
        wait_until(lambda: lost == [(f"127.0.0.1:{port}", 6.0)], "the head is gone", 10)


@contextmanager
def listening(port: int = 0) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", port)) as server:
        yield server.getsockname()[1]

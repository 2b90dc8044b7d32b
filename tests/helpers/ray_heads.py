"""Ray clusters of one node on this machine, each started with `ray start`."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from tests.helpers.command_line import command, environment
from tests.helpers.runs import WITHOUT_WATCHERS

FIRST_PORT, LAST_PORT = 5000, 8000  # below the ports that Ray gives to its workers
START_SECONDS = 60


@contextmanager
def ray_heads(count: int) -> Iterator[list[str]]:
    """The addresses of so many clusters; they are started side by side and end with the block."""
    ports = _free_ports(count)
    with ExitStack() as stack:
        logs = [stack.enter_context(_head(port)) for port in ports]
        for log in logs:
            _wait_for(log)
        yield [f"127.0.0.1:{port}" for port in ports]


@contextmanager
def _head(port: int) -> Iterator[Path]:
    """Starts a head. Gives the file of what it prints."""
    args = [
        "start",
        "--head",
        "--block",
        f"--port={port}",
        "--min-worker-port=0",  # any free port: two clusters of one machine would choose the same from a range
        "--max-worker-port=0",
        "--num-cpus=2",
        "--node-ip-address=127.0.0.1",
        "--include-dashboard=false",
        *WITHOUT_WATCHERS,
    ]
    ray = str(Path(command()[0]).parent / "ray")
    with tempfile.NamedTemporaryFile() as log:
        head = subprocess.Popen([ray, *args], env=environment(), stdout=log, stderr=log)
        try:
            yield Path(log.name)
        finally:
            head.terminate()
            head.wait(timeout=180)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        found = {FIRST_PORT + probe.getsockname()[1] % (LAST_PORT - FIRST_PORT) for probe in probes}
    return list(found) if len(found) == count else _free_ports(count)


def _wait_for(log: Path) -> None:
    """Until the head says that it runs: its port is open long before it takes a driver."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if "Ray runtime started" in log.read_text():
            return
        time.sleep(0.2)
    raise AssertionError(f"no Ray head runs after {START_SECONDS} s: {log.read_text()[-2000:]}")

"""Small sweeps with bad backends as processes, and what a test needs to watch and disturb them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pandas as pd

from orchestrator import ROOT
from tests.helpers.command_line import command, environment
from tests.helpers.forked import Forked

SMALL = ["+sweep=smoke", "timing=quick", "sweep.s_kv=[256]", "model.num_qo_heads=8", "model.num_kv_heads=1"]
TINY = [*SMALL, "adapters=[tests.backends.faulty,tests.backends.uncompilable]"]
# Points of about a second, each a group of its own
SLOW_OF_ANY_BATCH = [*TINY, "sweep.backend=[slow]", "sweep.s_qo=[1,2,3]"]
SLOW = [*SLOW_OF_ANY_BATCH, "sweep.batch_size=[1,2,3]"]  # 9 points

Value = TypeVar("Value")

# Ray finds after 5 s that a machine does not answer, instead of after a minute.
IMPATIENT = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 4,
}

# Options of `ray start`: nobody reads the logs of a test's cluster, or asks for more machines. Each watcher takes a second of CPU
# time to start, and that of the logs goes on taking it.
WITHOUT_WATCHERS = ["--include-log-monitor=false", "--no-monitor"]


def rows_of(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path)


def start(*args: str) -> Forked:
    """Starts the command line, in a process that has its libraries already, and does not wait for its end."""
    return Forked(args, ROOT, environment())


def start_from_scratch(*args: str, **more: object) -> subprocess.Popen[str]:
    """Starts the command line as its user does: Python begins anew and imports what it needs."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command(*args), cwd=ROOT, env=environment(), **pipes, **more)


def wait_until(holds: Callable[[], Value], what: str, seconds: float = 90) -> Value:
    """The first true value that `holds` gives."""
    deadline = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
        time.sleep(0.05)
    return value


def journal(path: Path) -> list[str]:
    """The point ids of the rows in the journal of a dataset."""
    file = path / "_journal.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["point_id"] for line in lines if line.endswith("}")]


def wait_for_rows(path: Path, count: int) -> list[str]:
    """Waits until the journal has so many rows; their point ids."""
    wait_until(lambda: len(journal(path)) >= count, f"{count} rows in {path}")
    return journal(path)


def processes(needle: str, *, under: int) -> Iterator[int]:
    """Descendants of a process whose command line contains `needle`."""
    parents: dict[int, int] = {}
    lines: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    for pid, line in lines.items():
        ancestor = parents.get(pid, 0)
        while ancestor and ancestor != under:
            ancestor = parents.get(ancestor, 0)
        if needle in line and ancestor == under:
            yield pid


def signal_all(pids: list[int], number: int) -> None:
    """Those of the processes that are still there: Ray ends some by itself."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

"""Where the seconds of a start go: from the command to its first stored row, of one trivial point.

python benchmarks/start.py [RUNS] [inline,local,ray] [BACKEND]

Three ways are taken: `cluster=inline`, `cluster=local`, and a Ray head that this benchmark starts once and leaves running; its
command is typed twice, and the second time counts (`cluster.keep_warm_s` keeps a worker between them). The command has a terminal,
so what a person sees first is timed too. BACKEND is torch_sdpa, or one that a GPU here serves.
"""

from __future__ import annotations

import os
import pty
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from figures import ROOT, at_most

MARKS = Path(__file__).resolve().parent / "start_marks"
TARGETS = {"inline": 5.0, "local": 8.0, "ray": 3.0}  # seconds until the first row is stored, on one GPU
SCREEN_TARGET = 1.0
POINT = ["+sweep=smoke", "timing=quick", "sweep.batch_size=[1]", "sweep.s_kv=[256]", "sweep.s_qo=[1]"]
WARM = "cluster.keep_warm_s=600"


@dataclass
class Start:
    """One start: seconds from the command to the first visible text, to the first stored row, and to the end; and its marks."""

    screen: float = 0.0
    row: float = 0.0
    end: float = 0.0
    marks: dict[str, tuple[float, float]] = field(default_factory=dict)


def environment(marks: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), str(MARKS), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path, "START_MARKS": str(marks), "RAY_AUTH_MODE": "token", "TERM": "xterm"}


def started(overrides: list[str], marks: Path) -> Start:
    """Types the command in a terminal of its own, and waits for its end."""
    marks.write_text("")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "orchestrator", *POINT, *overrides, f"results.path={folder}/d"]
        journal, screen, theirs = Path(folder) / "d" / "_journal.jsonl", *pty.openpty()
        found, began, said = Start(), time.monotonic(), b""
        with subprocess.Popen(command, cwd=ROOT, env=environment(marks), stdin=theirs, stdout=theirs, stderr=theirs) as driver:
            os.close(theirs)
            while True:
                if select.select([screen], [], [], 0.01)[0]:
                    try:
                        said += os.read(screen, 65536)
                    except OSError:  # the other side is closed
                        break
                    found.screen = found.screen or time.monotonic() - began
                if not found.row and journal.exists() and b"{" in journal.read_bytes():
                    found.row = time.monotonic() - began
        found.end = time.monotonic() - began
        os.close(screen)
    assert driver.returncode == 0, said.decode(errors="replace")
    found.row = found.row or found.end  # it was sealed between two looks
    for line in marks.read_text().splitlines():
        process, label, begin, end = line.split("\t")
        found.marks.setdefault(f"{process}: {label}", (float(begin) - began, float(end) - began))
    return found


@contextmanager
def head(marks: Path) -> Iterator[str]:
    """A Ray of one node that runs, and its address."""
    port = 20000 + os.getpid() % 5000
    env = {**environment(marks), "RAY_ENABLE_RECORD_ACTOR_TASK_LOGGING": "0"}
    words = [f"--port={port}", "--min-worker-port=0", "--max-worker-port=0", "--node-ip-address=127.0.0.1"]
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--include-dashboard=false", *words]
        runs = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            while log.seek(0) == 0 and b"Ray runtime started" not in log.read():
                assert runs.poll() is None, "no Ray head starts; RAY_AUTH_MODE=token needs a token: ray get-auth-token --generate"
                time.sleep(0.2)
            yield f"127.0.0.1:{port}"
        finally:
            runs.terminate()
            runs.wait()


def measured(cluster: str, backend: str, runs: int) -> Iterator[Start]:
    more = [f"sweep.backend=[{backend}]", f"cluster={cluster}"]
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder) / "marks"
        for _ in range(runs):
            if cluster != "ray":
                yield started(more, marks)
                continue
            with head(marks) as address:
                typed = [*more, f"cluster.address={address}", WARM]
                started(typed, marks)
                time.sleep(10)  # the warm worker loads its libraries
                yield started(typed, marks)


def show(cluster: str, starts: list[Start]) -> None:
    print(f"\ncluster={cluster}: median of {len(starts)}, seconds after the command")
    seen: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for start in starts:
        for label, span in start.marks.items():
            seen[label].append(span)
    medians = {label: [statistics.median(part) for part in zip(*spans, strict=True)] for label, spans in seen.items()}
    for label, (begin, end) in sorted(medians.items(), key=lambda item: item[1]):
        print(f"  {begin:6.2f} to {end:6.2f}  {end - begin:5.2f} s  {label}")
    at_most("  first text on the screen", [start.screen for start in starts], SCREEN_TARGET, "s")
    at_most("  first row stored", [start.row for start in starts], TARGETS[cluster], "s")
    print(f"  the whole command: {statistics.median(start.end for start in starts):.2f} s")


def main(runs: str = "3", clusters: str = "inline,local,ray", backend: str = "torch_sdpa") -> None:
    for cluster in clusters.split(","):
        show(cluster, list(measured(cluster, backend, int(runs))))


if __name__ == "__main__":
    main(*sys.argv[1:])

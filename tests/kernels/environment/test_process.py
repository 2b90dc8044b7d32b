"""The process of an environment: what it is asked and answers, and how it ends."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import setup
from kernels.environment import process, wire
from kernels.environment.process import Process, ProcessDied, ProcessGone, ProcessHung
from kernels.environment.wire import from_bytes, to_bytes
from orchestrator.process import start_time
from tests.helpers.runs import wait_until

SERVE = """
import importlib.util, os, subprocess, sys, time
from kernels.environment.wire import ConnectionClosed, Wire


def serve(reads, writes):
    wire = Wire(reads, writes)
    while True:
        try:
            request, _ = wire.receive()
        except ConnectionClosed:
            os._exit(0)
        do = request["do"]
        if do == "echo":
            wire.send({"event": "one"})
            wire.send({"event": "two"})
            wire.send(request, (b"x" * request["size"], b""))
        if do == "finds":
            wire.send({"found": [name for name in request["names"] if importlib.util.find_spec(name)], "paths": sys.path})
        if do == "exits":
            print("the last words", file=sys.stderr, flush=True)
            os._exit(3)
        if do == "raises":
            wire.send({"error": {"kind": request["kind"], "message": "no room"}, "healthy": request["healthy"]})
        if do == "hangs":
            wire.send({"event": subprocess.Popen(["sleep", "1000"]).pid})
            time.sleep(1000)
"""


def write_fake(folder: Path) -> None:
    """A `kernels` without torch."""
    package = folder / "kernels" / "environment"
    package.mkdir(parents=True)
    for place in (package.parent, package):
        (place / "__init__.py").touch()
    shutil.copy(wire.__file__, package)
    (package / "serve.py").write_text(SERVE)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """A process of such a `kernels`."""
    write_fake(tmp_path)
    monkeypatch.setattr(process, "_folder_of", lambda name: str(tmp_path) if name == "kernels" else None)
    started = Process(sys.executable)
    yield started
    started.close()
    assert start_time(started.pid) is None


def test_requests_events_and_large_answers(fake: Process):
    events: list[object] = []

    answer, blobs = fake.ask("echo", 20, lambda event: events.append(event["event"]), size=5_000_000, word="µ")

    assert (answer["word"], [len(blob) for blob in blobs], events) == ("µ", [5_000_000, 0], ["one", "two"])
    assert fake.alive


def test_it_finds_kernels_and_nothing_else_of_this_folder(fake: Process):
    answer, _ = fake.ask("finds", 20, names=["kernels", "tests", "json"])

    assert answer["found"] == ["kernels", "json"]
    assert "" not in answer["paths"]


def test_in_an_installed_copy_it_finds_kernels_inside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The package's own __init__.py imports what an environment need not have."""
    write_fake(tmp_path)
    for file in (tmp_path / "kernels" / "environment").glob("*.py"):
        file.write_text(setup.renamed(file.read_text()))
    (tmp_path / "__init__.py").write_text("raise ImportError('no pandas here')")
    monkeypatch.setattr(process, "OWN", ())
    monkeypatch.setattr(process, "OUTER", {setup.PACKAGE: str(tmp_path)})
    monkeypatch.setattr(process, "START", setup.renamed(process.START))

    installed = Process(sys.executable)
    answer, _ = installed.ask("finds", 20, names=[f"{setup.PACKAGE}.kernels.environment.wire"])
    installed.close()

    assert answer["found"] == [f"{setup.PACKAGE}.kernels.environment.wire"]


def test_its_end_is_told_with_its_last_words_and_what_was_there_is_lost(fake: Process):
    with pytest.raises(ProcessDied, match="the process of its environment ended with exit code 3: the last words"):
        fake.ask("exits", 20)
    with pytest.raises(ProcessGone):
        fake.ask("echo", 20, size=1)
    assert not fake.alive


def test_one_that_hangs_is_killed_with_what_it_started(fake: Process):
    started: list[int] = []

    with pytest.raises(ProcessHung, match=r"no answer after 1 s; the process of its environment was killed"):
        fake.ask("hangs", 1, lambda event: started.append(event["event"]))

    wait_until(lambda: start_time(started[0]) is None, "its own process has ended")


@pytest.mark.parametrize(("kind", "healthy"), [("OutOfMemoryError", True), ("BadThing", True), ("RuntimeError", False)])
def test_what_a_request_raises_is_raised_here(fake: Process, kind: str, healthy: bool):
    with pytest.raises(Exception, match="no room") as error:
        fake.ask("raises", 20, kind=kind, healthy=healthy)

    assert type(error.value).__name__ == kind and fake.alive == healthy
    assert isinstance(error.value, torch.OutOfMemoryError) == (kind == "OutOfMemoryError")


def test_an_interpreter_that_cannot_be_started_says_so_at_each_request():
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    never = Process("/nowhere/python")

    with pytest.raises(ProcessGone, match="/nowhere/python cannot be started: No such file or directory"):
        never.ask("echo", 20, size=1)
    never.close()
    assert not never.alive and len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_it_ends_with_a_worker_that_is_killed(fake: Process):
    reads, writes = os.pipe()
    if (worker := os.fork()) == 0:
        orphan = Process(sys.executable)
        orphan.ask("finds", 20, names=[])
        os.write(writes, str(orphan.pid).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(worker, 0)
    orphan_pid = int(os.read(reads, 20))

    wait_until(lambda: start_time(orphan_pid) is None, "the process has ended with its worker")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int64])
def test_tensors_travel_bit_by_bit(dtype: torch.dtype):
    sent = torch.arange(24).view(2, 3, 4).to(dtype).transpose(0, 1)

    found = from_bytes(*to_bytes(sent), torch.device("cpu"))

    assert found.dtype == dtype and torch.equal(found.float(), sent.float())


def test_an_answer_that_comes_in_parts_is_waited_for_and_no_longer():
    reads, writes = os.pipe()
    side = wire.Wire(reads, writes)
    os.write(writes, b"\0\0")
    began = time.monotonic()

    with pytest.raises(wire.AnswerTimeout):
        side.receive(0.1)
    assert time.monotonic() - began < 5
    side.close()

"""Processes from which Ray's workers are forked in tests, which saves each of them the import of torch and of most libraries.

    the process that starts Ray
    └─ origin: has imported the libraries but not Ray, and starts raylets
       └─ raylet
          └─ template: forked from the origin before it became the raylet
             └─ worker: forked from the template, when the raylet asks for one through stand_in.py

So a worker stands below its raylet as always. Each dies with the one above, as a worker does with its raylet.
A worker has what a new process would have: its words, variables, folder, streams and path. It imports Ray itself, which then reads
its variables, and the project, of which each cluster brings a copy.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PROJECT = ("conf", "kernels", "orchestrator", "tests")
MAX_BYTES = 2**18


class Raylet:
    """A raylet that an origin has started, with what Ray uses of subprocess.Popen."""

    stdin = stdout = stderr = None

    def __init__(self, args: Sequence[str], pid: int) -> None:
        self.args, self.pid = list(args), pid
        self.returncode: int | None = None
        self._there = os.pidfd_open(pid)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code is known to its parent alone: here it is 0 if it has ended."""
        if self.returncode is None:
            if not select.select([self._there], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            os.close(self._there)
            self.returncode = 0
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._there, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Origin:
    """The process that starts raylets, as the one that asks it sees it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def start(self, command: Sequence[str], path: str, variables: Mapping[str, str], folder: str, dies_too: bool) -> Raylet:
        """Starts a raylet whose template listens at `path`. With `dies_too`, it ends with the process that asks."""
        message = {"words": command, "variables": dict(variables), "folder": folder, "path": path, "dies_too": dies_too}
        with Path(os.devnull).open("r+b", buffering=0) as nothing:
            send(self.connection, message, [0, nothing.fileno(), nothing.fileno()])
        return Raylet(command, int(self.connection.recv(16)))


def fork_origin(imports: Sequence[str] = ()) -> Origin | None:
    """An origin that is forked from this process; None if this process has threads, which a fork would lose.

    It imports `imports` itself, while this process goes on.
    """
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return None
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if os.fork() == 0:
        here.close()
        end_after(lambda: serve_starts(there, imports))
    there.close()
    return Origin(here)


def origin_in(context: ForkServerContext) -> Origin:
    """An origin that multiprocessing's server forks, for a process that has threads."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    context.Process(target=serve_starts, args=(there,), daemon=True).start()
    there.close()
    return Origin(here)


def serve_starts(connection: socket.socket, imports: Sequence[str] = ()) -> None:
    """The origin: starts raylets until the other side of the connection is gone."""
    die_with_parent()
    for name in imports:
        importlib.import_module(name)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as in each process that Ray starts
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    let_go_of_files(connection)
    forget_path()
    for name in [name for name in sys.modules if name.partition(".")[0] in PROJECT]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    while received := receive(connection):
        message, streams = received
        if (pid := os.fork()) == 0:
            connection.close()
            end_after(lambda message=message, streams=streams: become_raylet(message, streams))
        connection.send(str(pid).encode())
        for stream in streams:
            os.close(stream)


def let_go_of_files(kept: socket.socket) -> None:
    """Closes what the process has open, such as the lock of a dataset.

    The numbers stay taken, since Python still has objects that would close them.
    """
    with Path(os.devnull).open("r+b", buffering=0) as nothing:
        for number in [int(file.name) for file in Path("/proc/self/fd").iterdir()]:
            if number > 2 and number not in (kept.fileno(), nothing.fileno()):
                with suppress(OSError):  # the listing's own
                    os.fstat(number)
                    os.dup2(nothing.fileno(), number, inheritable=False)


def forget_path() -> None:
    """Takes from Python's path what came with this process and not with Python."""
    sys.path[:] = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]


def become_raylet(message: dict[str, Any], streams: Sequence[int]) -> None:
    put_on(message, streams)
    if message["dies_too"]:
        die_with_parent()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        Path(message["path"]).unlink(missing_ok=True)  # of a raylet that was killed; Ray gives its name to the next
        listener.bind(message["path"])
        listener.listen(64)
        if os.fork() == 0:
            end_after(lambda: serve_forks(listener))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.execvp(message["words"][0], message["words"])


def serve_forks(listener: socket.socket) -> None:
    """The template: forks itself whenever stand_in.py asks."""
    die_with_parent()
    while True:
        connection, _ = listener.accept()
        with connection:
            message, streams = receive(connection) or ({}, [])
            if message and os.fork() == 0:
                listener.close()
                end_after(lambda m=message, s=streams, c=connection: become_program(m, s, c))
        for stream in streams:
            os.close(stream)


def become_program(message: dict[str, Any], streams: Sequence[int], connection: socket.socket) -> None:
    """Runs a Python program as a new Python would. The connection stays open for as long as it runs."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    put_on(message, streams)
    program, *_ = sys.argv = message["words"]
    sys.orig_argv = [sys.executable, *sys.argv]
    own = [path for path in message["variables"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = dict.fromkeys([str(Path(program).parent), *own, *sys.path])
    importlib.invalidate_caches()
    connection.send(b"y")
    try:
        import_sitecustomize_of(own)
        runpy.run_path(program, run_name="__main__")
    finally:
        atexit._run_exitfuncs()


def import_sitecustomize_of(path: Sequence[str]) -> None:
    """What Python does first of all, if it finds another file than the one beside this, which changes nothing in a worker."""
    first = next((folder for folder in path if (Path(folder) / "sitecustomize.py").exists()), "")
    if first and Path(first) != Path(__file__).parent:
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")


def put_on(message: dict[str, Any], streams: Sequence[int]) -> None:
    """Takes over the streams, variables and folder of a message."""
    for number, (stream, name) in enumerate(zip(streams, ("stdin", "stdout", "stderr"), strict=True)):
        os.dup2(stream, number)
        os.close(stream)
        # The old one may stand for another number.
        setattr(sys, name, os.fdopen(number, "w" if number else "r", buffering=1, closefd=False))
    os.environ.clear()
    os.environ.update(message["variables"])
    os.chdir(message["folder"])


def end_after(run: Callable[[], None]) -> NoReturn:
    """Ends this process after `run`: what it was forked from must not go on in it."""
    code: object = 1
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else 1)


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def send(connection: socket.socket, message: object, streams: Sequence[int]) -> None:
    connection.sendmsg([json.dumps(message).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))])


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """A message and the streams that came with it; None if the other side is gone."""
    text, streams, _, _ = socket.recv_fds(connection, MAX_BYTES, 3)
    return (json.loads(text), streams) if text else None

"""The command line, or a piece of Python, in a process that is forked from one that has imported the libraries.

It has its own process id, environment, working directory, standard streams and signals, and its parent is not the test.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator import ROOT

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.helpers.preloaded"])
_started: list[Forked] = []


class Forked:
    """A command line that runs, or with `code` that program, with the methods of subprocess.Popen that tests use."""

    def __init__(self, args: Sequence[str], cwd: Path, env: Mapping[str, str], code: str | None = None) -> None:
        self.args = list(args)
        self._said = Path(tempfile.mkdtemp(prefix="forked-"))
        self._process = CONTEXT.Process(target=_run, args=(self.args, str(cwd), dict(env), str(self._said), code))
        self._process.start()
        _started.append(self)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Of a process that a signal ended, the signal's number below zero."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Does nothing to a process that has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def printed(self) -> str:
        """What it has printed so far."""
        out = self._said / "out"
        return out.read_text() if out.exists() else ""

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for the end; returns stdout and stderr. Raises subprocess.TimeoutExpired if it does not come."""
        self._process.join(timeout)
        out, err = self.printed(), (self._said / "err").read_text()
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0, out, err)
        return out, err


def _run(args: Sequence[str], cwd: str, env: Mapping[str, str], said: str, code: str | None) -> None:
    """In the forked process: becomes what `python -m orchestrator` or `python -c` is in a new one, and ends with its exit code."""
    for number, name in ((1, "out"), (2, "err")):
        with (Path(said) / name).open("wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    of_environment = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = dict.fromkeys([cwd, *of_environment, *sys.path])
    try:
        if code is None:
            _command(args)
        else:
            sys.argv = ["-c", *args]
            exec(code, {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()  # a forked process would end without them


def _command(args: Sequence[str]) -> None:
    sys.argv = [str(ROOT / "orchestrator" / "__main__.py"), *args]
    from orchestrator.cli import main
    from tests.ray_start import quick_ray, template

    # Not while Ray is imported: a process forked then would hold the locks of the import.
    quick_ray.in_this_process(template.fork_origin() if _may_start_ray(args) else None)
    sys.exit(main())


def _may_start_ray(args: Sequence[str]) -> bool:
    modes = {word for word in args if word.startswith("mode=")}
    return "cluster=inline" not in args and modes <= {"mode=run", "mode=compile"}


@atexit.register
def _end_all() -> None:
    """Ends what a failed test left, for which the test process would wait, and removes what all of them printed."""
    for forked in _started:
        forked.kill()
        shutil.rmtree(forked._said, ignore_errors=True)

"""Processes of environments that are forked from one that has imported torch: a start costs no CPU time.

All else is as in `kernels.environment.process`: a process of its own in a session of its own, its two pipes, its packages.
"""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, ClassVar

from kernels.environment import process
from tests.helpers.forked import CONTEXT


class ForkedPopen:
    """What `kernels.environment.process` uses of subprocess.Popen."""

    started: ClassVar[list[ForkedPopen]] = []

    def __init__(
        self, words: Sequence[str], *, stdout: Any, pass_fds: tuple[int, int], env: Mapping[str, str], **_keys: object
    ) -> None:
        python, *_, start, given = words
        handed = [_Descriptor(number) for number in (stdout.fileno(), *pass_fds)]
        self._process = CONTEXT.Process(target=_become, args=(python, start, given, dict(env), *handed))
        self._process.start()
        ForkedPopen.started.append(self)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("forked", timeout or 0.0)
        return self._process.exitcode


class _Descriptor:
    """A file descriptor that the forked process gets too."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return _detached, (DupFd(self.number),)


def _detached(handed: Any) -> int:
    number: int = handed.detach()
    return number


def _become(python: str, start: str, given: str, env: dict[str, str], log: int, reads: int, writes: int) -> None:
    """In the forked process: what START does in a new interpreter, with the packages of the environment first."""
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(env)
    before = list(sys.path)
    sys.path[:] = []
    for folder in Path(python).parent.parent.glob("lib/python*/site-packages"):
        site.addsitedir(str(folder))
    sys.path += before
    sys.argv = ["-c", json.dumps([reads, writes, os.getppid(), *json.loads(given)[3:]])]
    exec(start, {"__name__": "__main__"})


def instead_of(real: type) -> Any:
    """subprocess.Popen for `kernels.environment.process`. uv and describe.py are programs of their own and run as such."""

    class Popen(real):  # type: ignore[valid-type, misc]
        def __new__(cls, words: list[str], *args: Any, **keys: Any) -> Any:
            return ForkedPopen(words, **keys) if process.START in words else real(words, *args, **keys)

    return Popen

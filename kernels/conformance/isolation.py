"""A process that runs checks, so that a backend which crashes, hangs or loses the device costs one verdict."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from kernels import registry
from kernels.conformance.checks import CheckFinding, failed
from kernels.conformance.suite import Trial, execute
from kernels.cuda import answers
from kernels.lazy import torch

CONTEXT: SpawnContext | ForkServerContext = multiprocessing.get_context("spawn")  # forked from this one, it could not use CUDA
MAX_DEATHS = 3  # of one backend: each costs the start of a process


class Isolated:
    """Runs trials one after another in another process, and in a new one after a crash."""

    def __init__(self, plugins: Sequence[str], trial_seconds: float) -> None:
        self.plugins, self.trial_seconds = tuple(plugins), trial_seconds
        self._running: _TrialProcess | None = None  # from the first trial after the start or a death on
        self._deaths: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def run(self, routine: str, backend: str, trial: Trial) -> CheckFinding:
        """The trial's finding; death, or a time above `trial_seconds`, is a failure. After `MAX_DEATHS` others do not run."""
        if self._deaths[routine, backend] == MAX_DEATHS:
            return CheckFinding("not run", f"{MAX_DEATHS} checks before it ended their process; fix those first")
        finding = self._ask(routine, backend, trial)
        self._deaths[routine, backend] += self._running is None and not trial.forced
        return finding

    def _ask(self, routine: str, backend: str, trial: Trial) -> CheckFinding:
        self._running = running = self._running or _TrialProcess.start(self.plugins)
        try:
            running.connection.send((routine, backend, trial))
            if not running.connection.poll(self.trial_seconds):
                self._end()
                return failed(f"no answer within {self.trial_seconds:g} s")
            finding: CheckFinding
            finding, healthy = running.connection.recv()
        except (EOFError, ConnectionError):
            cause = running.cause_of_death()
            self._end()
            return failed(cause)
        if not healthy:
            self._end()
        return finding

    def _end(self) -> None:
        if self._running is not None:
            self._running.end()
        self._running = None


@dataclass(frozen=True)
class _TrialProcess:
    """A process that runs trials, and the connection to it."""

    process: BaseProcess
    connection: Connection[Any, Any]

    @classmethod
    def start(cls, plugins: tuple[str, ...]) -> _TrialProcess:
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_serve, args=(theirs, plugins), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)

    def cause_of_death(self) -> str:
        """Waits for its end, and says how it ended."""
        self.process.join()
        code = self.process.exitcode or 0
        return f"the process died of {signal.Signals(-code).name}" if code < 0 else f"the process ended with exit code {code}"

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(connection: Connection[Any, Any], plugins: tuple[str, ...]) -> None:
    """Answers each trial with its finding, and whether this process can go on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this process
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the table alone goes to the parent's stdout
    torch.set_num_threads(1)  # problems are small: more threads cost more than they save
    while True:
        try:
            routine, backend, trial = connection.recv()
        except EOFError:
            return
        adapter = registry.get_installed(routine, backend, plugins)
        connection.send((execute(adapter, trial), answers(trial.device)))

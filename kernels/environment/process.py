"""The process of an environment, as the worker sees it: started, asked, and ended with all that it started itself."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernels.environment.wire import AnswerTimeout, ConnectionClosed, Header, Wire
from kernels.lazy import torch

LAST_WORDS = 400  # characters of what it wrote to stderr, for the words of its death
# In an installed copy `kernels` lies in a package, whose own __init__.py imports what an environment need not have.
_INSIDE = __name__.removesuffix(".environment.process").rpartition(".")[0]
OWN = () if _INSIDE else ("kernels",)
OUTER = {_INSIDE: str(Path(__file__).resolve().parents[2])} if _INSIDE else {}
# The process finds `kernels` and the plugins where this one has them, and nothing else of this environment. It ends with the
# worker: PR_SET_PDEATHSIG is 1 (linux/prctl.h), 9 is SIGKILL.
START = """
import ctypes, importlib.machinery, json, os, sys, types
ctypes.CDLL(None).prctl(1, 9)
reads, writes, parent, places, outer = json.loads(sys.argv[1])
if os.getppid() != parent:
    os._exit(1)
for name, folder in outer.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if path is None and name in places:
            return importlib.machinery.PathFinder.find_spec(name, [places[name]])
sys.meta_path.insert(0, Finder)
from kernels.environment.serve import serve
serve(reads, writes)
"""


class ProcessEnded(Exception):
    """The process of an environment is there no more."""


class ProcessDied(ProcessEnded):
    """The process ended while it was at a request; the message says how."""


class ProcessHung(ProcessEnded):
    """The process did not answer a request in time, and was killed."""


class ProcessGone(ProcessEnded):
    """What was prepared in the process is gone with it, because of another request."""


class Process:
    """One process of an environment. It is gone for good once `alive` is false."""

    def __init__(self, python: str, modules: Iterable[str] = (), *, own_path: bool = True) -> None:
        """`modules` are the plugins that it may import. If the interpreter cannot be started, every request says so.

        With `own_path` it finds what its interpreter has, else what this process finds too: folders on PYTHONPATH.
        """
        their_reads, our_writes = os.pipe()
        our_reads, their_writes = os.pipe()
        self._log = tempfile.TemporaryFile()
        self._wire = Wire(our_reads, our_writes)
        self.alive = False
        self._why_gone = "the process of its environment is gone"
        packages = dict.fromkeys(name.partition(".")[0] for name in (*OWN, *modules))
        places = {name: place for name in packages if name not in OUTER and (place := _folder_of(name))}
        given = json.dumps([their_reads, their_writes, os.getpid(), places, OUTER])
        try:
            self._process = subprocess.Popen(
                [python, "-I" if own_path else "-P", "-c", START, given],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(their_reads, their_writes),
                start_new_session=True,  # Ctrl-C reaches the worker, which ends this process and what it started
                env={name: value for name, value in os.environ.items() if not (own_path and name.startswith("PYTHON"))},
            )
        except OSError as error:
            self._wire.close()
            self._log.close()
            self._why_gone = f"{python} cannot be started: {error.strerror}"
            return
        finally:
            os.close(their_reads)
            os.close(their_writes)
        self.alive = True

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(
        self, do: str, seconds: float = math.inf, on_event: Callable[[Header], object] | None = None, **keys: Any
    ) -> tuple[Header, list[bytes]]:
        """The answer to a request. `on_event` gets what the process tells before it.

        Raises ProcessDied, ProcessHung and ProcessGone, and what the request itself raised there: MemoryError and
        torch.OutOfMemoryError as they are, any other as an exception of the same name.
        """
        if not self.alive:
            raise ProcessGone(self._why_gone)
        try:
            self._wire.send({"do": do, **keys})
            while True:
                answer, blobs = self._wire.receive(seconds)
                if "event" not in answer:
                    break
                if on_event is not None:
                    on_event(answer)
        except ConnectionClosed:
            raise ProcessDied(self._end()) from None
        except AnswerTimeout:
            self._end()
            raise ProcessHung(f"no answer after {seconds:g} s; the process of its environment was killed") from None
        if "error" in answer:
            if not answer["healthy"]:
                self._end()
            raise _rebuilt(**answer["error"])
        return answer, blobs

    def close(self) -> None:
        """Ends the process, whatever it does."""
        if self.alive:
            self._end()

    def _end(self) -> str:
        """Ends the process and what it has started. Returns how it ended, and its last words."""
        self.alive = False
        self._wire.close()
        with suppress(subprocess.TimeoutExpired):  # it may be on its way out
            self._process.wait(0.2)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its compilers too
        code = self._process.wait()
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - LAST_WORDS))
        said = " ".join(self._log.read().decode(errors="replace").split())
        self._log.close()
        return f"the process of its environment {how}" + (f": {said}" if said else "")


def _folder_of(package: str) -> str | None:
    """The folder that a top-level package or module lies in; None if there is none."""
    spec = find_spec(package)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return str(Path(next(iter(spec.submodule_search_locations))).resolve().parent)
    return None if spec.origin is None else str(Path(spec.origin).resolve().parent)


def _rebuilt(kind: str, message: str) -> Exception:
    """An exception as it was raised in the process; of a class that is not known here, one of the same name."""
    known: dict[str, Any] = {"OutOfMemoryError": torch.OutOfMemoryError, "MemoryError": MemoryError, "RuntimeError": RuntimeError}
    made: Exception = (known.get(kind) or type(kind, (Exception,), {}))(message)
    return made

"""Processes of this machine, by what Linux says about them in /proc, and how one ends with its parent."""

from __future__ import annotations

import ctypes
import signal
from contextlib import suppress
from pathlib import Path

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Ends this process as soon as its parent ends. It takes no lock, so that a new process may call it.

    Ray only asks a process to end. While a kernel hangs it would not react, and would keep its GPU from the next run.
    """
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start_time(pid: int) -> str | None:
    """When a process was started, in clock ticks since boot: with the number it names one process, since numbers come again.

    None once the process has ended, also while its parent has not asked for its exit code yet.
    """
    with suppress(OSError, IndexError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else rest[18]
    return None

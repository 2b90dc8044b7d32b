"""Processes of this machine, by what Linux says about them in /proc."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def start_time(pid: int) -> str | None:
    """When a process was started, in clock ticks since boot: with the number it names one process, since numbers come again.

    None once the process has ended, also while its parent has not asked for its exit code yet.
    """
    with suppress(OSError, IndexError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else rest[18]
    return None

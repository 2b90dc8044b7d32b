"""A limit on the memory of a process and its children, through cgroups of either version. Needs root."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.helpers.runs import wait_until

ROOTS = {Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes", Path("/sys/fs/cgroup"): "memory.max"}


@contextmanager
def limited_to(limit_bytes: int) -> Iterator[Callable[[], None]]:
    """Gives a function for a child process to call before it runs. Skips the test if no cgroup can be made."""
    for root, file in ROOTS.items():
        group = root / f"attention-orchestrator-{secrets.token_hex(4)}"
        try:
            group.mkdir()
            (group / file).write_text(str(limit_bytes))
        except OSError:
            with suppress(OSError):
                group.rmdir()
            continue
        try:
            yield lambda group=group: _join(group)
        finally:
            wait_until(lambda group=group: not (group / "cgroup.procs").read_text(), "the limited processes have ended", seconds=60)
            group.rmdir()
        return
    pytest.skip("no memory cgroup can be made here: it takes root and a writable /sys/fs/cgroup")


def _join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))

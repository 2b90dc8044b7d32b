"""Notices that the head of a Ray cluster is gone, and ends the run in words.

Without a head no call to Ray returns, and after a minute Ray ends the process with an error of its own. So this looks from a
thread, by connecting to the head's port, and asks nothing of Ray.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console

GONE_SECONDS = 15.0  # a head that is started again within them, where Ray keeps its state elsewhere, is none that is gone
LOOK_SECONDS = 1.0
REACH_SECONDS = 2.0
STOPPED = 1  # the exit code of a run that stopped before its end


def listens(address: str) -> bool:
    """Whether somebody accepts a connection at HOST:PORT."""
    host, _, port = address.rpartition(":")
    with suppress(OSError):
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()
        return True
    return False


def end(address: str) -> None:
    """Ends this process as it stands: what it would tidy up, it would ask of Ray."""
    screen = Console(stderr=True)
    screen.show_cursor()  # which a progress bar has hidden
    screen.print(
        f"stopped: Ray's head at {address} has not answered for {GONE_SECONDS:g} s; every row that was reported is stored. "
        f"To go on once Ray has a head again, type the same command",
        highlight=False,
        soft_wrap=True,
    )
    os._exit(STOPPED)


@contextmanager
def watched(address: str, gone: Callable[[str], None] = end) -> Iterator[None]:
    """Calls `gone` once nobody has listened at HOST:PORT for GONE_SECONDS.

    They count from the first look that found nobody: a process that was stopped meanwhile has seen nothing.
    """
    over = threading.Event()

    def look() -> None:
        missed: float | None = None
        while not over.wait(LOOK_SECONDS):
            if listens(address):
                missed = None
            elif missed is None:
                missed = time.monotonic()
            elif time.monotonic() - missed >= GONE_SECONDS:
                gone(address)
                return

    threading.Thread(target=look, name="head", daemon=True).start()
    try:
        yield
    finally:
        over.set()

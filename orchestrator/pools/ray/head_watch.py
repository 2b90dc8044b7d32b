"""Notices that the head of a Ray cluster is gone, and ends the run with a message.

Without a head no call to Ray returns, and after a minute Ray ends the process with an error of its own. So a thread
connects to the head's port every second, and makes no call to Ray.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console

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


def end(address: str, seconds: float) -> None:
    """Ends this process at once, without the clean-up that would have to ask Ray."""
    screen = Console(stderr=True)
    screen.show_cursor()  # a progress bar has hidden it
    screen.print(
        f"stopped: Ray's head at {address} has not answered for {seconds:g} s; every row that was reported is stored. "
        f"To go on once Ray has a head again, type the same command",
        highlight=False,
        soft_wrap=True,
    )
    os._exit(STOPPED)


@contextmanager
def watched(address: str, seconds: float, gone: Callable[[str, float], None] = end) -> Iterator[None]:
    """Calls `gone` with its arguments once nobody has listened at HOST:PORT for so many seconds.

    They count from the first look that found nobody, because a driver that was stopped meanwhile has seen nothing.
    """
    over = threading.Event()

    def look() -> None:
        missed: float | None = None
        while not over.wait(LOOK_SECONDS):
            if listens(address):
                missed = None
            elif missed is None:
                missed = time.monotonic()
            elif time.monotonic() - missed >= seconds:
                gone(address, seconds)
                return

    threading.Thread(target=look, name="head", daemon=True).start()
    try:
        yield
    finally:
        over.set()

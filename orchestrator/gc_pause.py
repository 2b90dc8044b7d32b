"""Pauses Python's garbage collector while many objects are made, because it would scan all of them again and again.

Frozen objects are given back before the process ends: some libraries, such as DuckDB, count what is left then, and print it.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

atexit.register(gc.unfreeze)


@contextmanager
def paused() -> Iterator[None]:
    """No collection inside the block; later collections skip the objects that were made there."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()

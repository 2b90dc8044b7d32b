"""Pauses garbage collection while many objects are made; they thaw at exit, since DuckDB counts and prints what is left."""

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

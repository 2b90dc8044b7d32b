"""Opens torch's libraries in a thread while the configuration is read, if this very process will measure.

The system loads a library without Python's lock. So this takes nothing from the other thread where a core is free for it.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.first_line import measures

INLINE = "cluster=inline"
CORES = 4  # on two busy ones the whole start took 3% longer with it


def begin(argv: Sequence[str]) -> threading.Thread | None:
    """Begins if the arguments say that this process will measure, and there are cores for it.

    Nobody needs to wait for the thread: `import torch` then takes less.
    """
    if INLINE not in argv or not measures(argv) or len(os.sched_getaffinity(0)) < CORES:
        return None
    # No daemon: the process must not end, as it does for a wrong key, while a library runs its initializers.
    thread = threading.Thread(target=_open, name="torch's libraries")
    thread.start()
    return thread


def _open() -> None:
    """As torch does, in its order. It opens its CUDA libraries itself, since it chooses between several places for some of them.

    What cannot be opened here fails again, in words, when torch is imported.
    """
    import ctypes

    with suppress(OSError, ImportError, ValueError):
        found = importlib.util.find_spec("torch")
        if found is not None and found.origin is not None:
            folder = Path(found.origin).parent / "lib"
            ctypes.CDLL(str(folder / "libtorch_global_deps.so"), ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(folder / "libtorch_cpu.so"))

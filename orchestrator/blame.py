"""What an exception makes of the point that raised it."""

from __future__ import annotations

import errno

from orchestrator.row import Status

REASON_CHARS = 600
HOST_FULL = "DefaultCPUAllocator: can't allocate memory"


def blame(error: Exception) -> tuple[Status, str]:
    """Status and reason of a point that raised."""
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        return "oom", _words(error)
    # torch's own allocator for the host raises RuntimeError, and fork or mmap OSError
    if isinstance(error, MemoryError) or HOST_FULL in str(error) or getattr(error, "errno", None) == errno.ENOMEM:
        return "oom", f"host memory: {_words(error) or type(error).__name__}"
    if isinstance(error, RuntimeError) and "out of memory" in str(error).lower():  # CUDA's own words, through any library
        return "oom", _words(error)
    return "failed", f"{type(error).__name__}: {_words(error)}"


def _words(error: BaseException) -> str:
    """The exception's own words, cut to what a table can hold."""
    return " ".join(str(error).split())[:REASON_CHARS]

"""Turns an exception into the status and the reason of the point that raised it."""

from __future__ import annotations

import errno

from orchestrator.storage.row import Status

MAX_REASON_CHARS = 600
HOST_FULL = "DefaultCPUAllocator: can't allocate memory"


def classify_exception(error: Exception) -> tuple[Status, str]:
    """Status and reason of a point that raised `error`: `oom` for device or host memory, `timeout` for a process that hung, else
    `failed`."""
    import torch

    from kernels.environment.process import ProcessDied, ProcessHung

    if isinstance(error, ProcessDied | ProcessHung):  # of another environment
        return "failed" if isinstance(error, ProcessDied) else "timeout", _message(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "oom", _message(error)
    # PyTorch's allocator of host memory raises RuntimeError; fork and mmap raise OSError.
    if isinstance(error, MemoryError) or HOST_FULL in str(error) or getattr(error, "errno", None) == errno.ENOMEM:
        return "oom", f"host memory: {_message(error) or type(error).__name__}"
    if isinstance(error, RuntimeError) and "out of memory" in str(error).lower():  # CUDA's own message, through any library
        return "oom", _message(error)
    return "failed", f"{type(error).__name__}: {_message(error)}"


def _message(error: BaseException) -> str:
    """The exception's own message on one line, cut to what a table can hold."""
    return " ".join(str(error).split())[:MAX_REASON_CHARS]

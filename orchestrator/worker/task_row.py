"""The row of a task, begun and finished alike by worker and driver. An exception becomes its point's status and reason."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from kernels.contract.runner import said
from kernels.device import Device
from kernels.lazy import torch
from orchestrator.storage.row import Row, Status, begin, finish, of_forced
from orchestrator.worker.messages import Task

Seconds = Literal["inputs_s", "check_s", "measure_s", "total_s"]
MAX_REASON_CHARS = 600
HOST_FULL = "DefaultCPUAllocator: can't allocate memory"


def begin_row(task: Task, common: Row, arch: str, node_id: str) -> Row:
    """What is known of a task before it runs; `arch` is the compiler architecture of its device."""
    about_task: Row = {"command": task.command, "attempt": task.attempt, "compile_s": task.compile_s.get(arch)}
    return {**begin(task.point, common), **about_task, "node_id": node_id}


def finish_row(row: Row, task: Task, status: Status, reason: str) -> Row:
    """The whole row. If the task's support rule was overridden, status and reason say what that showed."""
    finished = finish(row, status, reason)
    return {**finished, **of_forced(finished, task.forced_rule, task.not_passed)} if task.forced_rule else finished


@contextmanager
def seconds_into(row: Row, column: Seconds) -> Iterator[None]:
    """Adds the seconds of wall time that the block takes to a column of the row."""
    started = time.perf_counter()
    try:
        yield
    finally:
        add_seconds(row, column, time.perf_counter() - started)


@contextmanager
def peak_memory_into(row: Row, device: Device, others_bytes: int) -> Iterator[None]:
    """Writes the peak of allocated bytes into the row, less `others_bytes`, which other points of the group occupy."""
    if device.kind != "cuda":
        yield
        return
    torch.cuda.reset_peak_memory_stats()
    try:
        yield
    finally:
        row["peak_mem_bytes"] = torch.cuda.max_memory_allocated() - others_bytes


def add_seconds(row: Row, column: Seconds, seconds: float) -> None:
    row[column] = (row.get(column) or 0.0) + seconds


def classify_exception(error: Exception) -> tuple[Status, str]:
    """Status and reason of a point that raised `error`: `oom` for device or host memory, `timeout` for a process that hung, else
    `failed`."""
    try:
        return _classified(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # its words or its number raise themselves
        return "failed", said(error)


def _classified(error: Exception) -> tuple[Status, str]:
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

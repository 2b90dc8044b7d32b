"""Waits for the device, frees its memory and counts its bytes, through PyTorch. On a CPU these do nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from kernels.device import Device
from orchestrator.storage.row import Row


def synchronize(device: Device) -> None:
    """Waits for the device. Raises RuntimeError if one of its kernels has failed."""
    import torch

    if device.kind == "cuda":
        torch.cuda.synchronize()


def free_unused(device: Device) -> None:
    """Gives back the memory of tensors that nothing refers to any more."""
    import torch

    gc.collect()
    gc.freeze()  # what lives now lives long, so the next collection need not look at all of torch again
    if device.kind == "cuda":
        torch.cuda.empty_cache()


def give_back_unused(device: Device) -> None:
    """Gives back memory that PyTorch keeps for later tensors: another process is about to need it."""
    import torch

    if device.kind == "cuda":
        torch.cuda.empty_cache()


def allocated_bytes(device: Device) -> int:
    import torch

    return int(torch.cuda.memory_allocated()) if device.kind == "cuda" else 0


@contextmanager
def peak_memory_into(row: Row, device: Device, others_bytes: int) -> Iterator[None]:
    """Writes the peak of allocated bytes into the row, less `others_bytes`, which other points of the group occupy."""
    import torch

    if device.kind != "cuda":
        yield
        return
    torch.cuda.reset_peak_memory_stats()
    try:
        yield
    finally:
        row["peak_mem_bytes"] = torch.cuda.max_memory_allocated() - others_bytes

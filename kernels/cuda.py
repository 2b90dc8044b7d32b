"""Waits for the device of this process, asks whether it still answers, and frees its memory. A CPU needs none of it."""

from __future__ import annotations

import gc

from kernels.device import Device
from kernels.lazy import torch


def synchronize(device: Device) -> None:
    """Waits for the device, if this process has used it. Raises RuntimeError if one of its kernels has failed."""
    if device.kind == "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def answers(device: Device) -> bool:
    """Whether the device still answers. After an illegal memory access every later CUDA call of the process fails."""
    try:
        synchronize(device)
    except RuntimeError:
        return False
    return True


def free_unused(device: Device) -> None:
    """Gives back the memory of tensors that nothing refers to any more."""
    gc.collect()
    gc.freeze()  # what lives now lives long, so the next collection need not look at all of torch again
    if device.kind == "cuda":
        torch.cuda.empty_cache()


def allocated_bytes(device: Device) -> int:
    return int(torch.cuda.memory_allocated()) if device.kind == "cuda" else 0

"""Outputs with guards around them in memory, which show whether a backend wrote outside."""

from __future__ import annotations

import math

from kernels.lazy import Tensor, torch
from kernels.problem.dtypes import torch_dtype

GUARD_BYTES = 2**18  # before and behind an output: a tile of 16 query tokens of 64 heads of 128 elements in 16 bits
GUARD = 0xA5


def guarded_output(shape: tuple[int, ...], dtype: str, device: torch.device) -> Tensor:
    """A tensor full of NaN between two guards, which share its memory."""
    kind = torch_dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    memory = torch.full((GUARD_BYTES + size + GUARD_BYTES,), GUARD, dtype=torch.uint8, device=device)
    out = memory[GUARD_BYTES : GUARD_BYTES + size].view(kind).view(shape)
    out.copy_(torch.full((1,), math.nan, device=device).to(kind).expand(shape))
    return out


def guards_are_intact(*outputs: Tensor) -> Tensor:
    """Whether nobody wrote around outputs, as a bool [] on their device. True for those without guards."""
    around = []
    for out in outputs:
        start, size = out.storage_offset() * out.element_size(), out.numel() * out.element_size()
        if start == GUARD_BYTES and out.untyped_storage().nbytes() == size + 2 * GUARD_BYTES:
            memory = torch.empty(0, dtype=torch.uint8, device=out.device).set_(out.untyped_storage())
            around += [memory[:start], memory[start + size :]]
    return (torch.cat(around) == GUARD).all() if around else torch.ones((), dtype=torch.bool, device=outputs[0].device)

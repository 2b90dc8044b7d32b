"""Tensors as bytes, whatever version of torch is on either side."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def to_bytes(tensor: Tensor) -> tuple[dict[str, Any], bytes]:
    """What `from_bytes` needs to make the tensor again. It is copied to the host."""
    import torch

    here = tensor.detach().contiguous().cpu()
    plain = here.view(torch.uint8) if here.dim() else here.reshape(1).view(torch.uint8)
    content = ctypes.string_at(plain.data_ptr(), plain.numel()) if plain.numel() else b""
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}, content


def from_bytes(about: dict[str, Any], content: bytes, device: torch.device) -> Tensor:
    """The tensor on `device`, in memory of its own."""
    import torch

    dtype = getattr(torch, about["dtype"])
    if not content:
        return torch.empty(about["shape"], dtype=dtype, device=device)
    return torch.frombuffer(bytearray(content), dtype=dtype).view(about["shape"]).to(device)

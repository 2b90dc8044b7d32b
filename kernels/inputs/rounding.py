"""Numbers as a dtype stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """`values` in `dtype`. What is beyond the range of an 8-bit dtype becomes its largest number, as in a GPU's own conversion.

    Some releases of torch make NaN of it (2.11), and others the largest number (2.13).
    """
    import torch

    if dtype.itemsize == 1:
        largest = torch.finfo(dtype).max
        values = values.clamp(-largest, largest)
    return values.to(dtype)

"""Sets how exactly PyTorch multiplies fp32 matrices within a block, and restores the setting of the process after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial


@contextmanager
def _products(precision: str) -> Iterator[None]:
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


exact = partial(_products, "highest")  # full fp32 products
# TF32 products, about five times as fast: exact if both factors are stored in 16 bits or fewer, summed in fp32.
exact_for_16_bits = partial(_products, "high")

"""Whether Triton can run a kernel in this process. Checksums and the check use it where it can, and torch elsewhere."""

from __future__ import annotations

from functools import cache


@cache
def triton_works(device: int) -> bool:
    """Whether Triton can compile and run a kernel on this GPU. It needs a C compiler and a folder to write to; torch does not."""
    import torch

    try:
        from kernels.inputs.checksum_kernel import touch

        flag = torch.zeros(1, dtype=torch.int32, device=f"cuda:{device}")
        touch[(1,)](flag)
        return bool(flag.item() == 1)
    except Exception:  # no Triton, no compiler, no folder: torch gives the same sums, more slowly
        return False

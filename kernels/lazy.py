"""torch, loaded when something of it is first used: plans and reports import files that compute with it, and do without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            import torch

            self.__dict__ = torch.__dict__  # so it is asked once, and finds what a test puts there
            return getattr(torch, name)

    torch, Tensor = _Torch(), Any  # annotations alone name Tensor

__all__ = ["Tensor", "torch"]

"""What the check knows of the right output of a problem."""

# T = query tokens of all requests, H = num_qo_heads, D = head_dim

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from kernels.inputs.checksums import place_weights
from kernels.lazy import Tensor, torch

Made = TypeVar("Made")
# Elements of an output whose derived tensors are kept: three or four of its size. Those of a larger one are made for each backend:
# that takes memory which plans count as free, and a GPU that has so much to do does not wait for Python.
KEPT_ELEMENTS = 2**22
MAX_INPUTS = 16  # of one problem: more than this no check draws


@dataclass(frozen=True)
class Answer:
    """The right output of a problem, and what is needed to weigh its keys again.

    The probability of a key with logit x is exp(x - lse). `condition` is sqrt(sum of p^2 |v|^2) / |out|: by how much of its length
    independent relative errors of 1 in all weights p would move a row. It is near 1 for values v that do not cancel.
    """

    out: Tensor  # fp32 [T, H, D_vo]
    lse: Tensor  # fp32 [T, H]: natural logarithm of the sum over keys (and sink) of exp(logit); -inf in a row without either
    peak: Tensor  # fp32 [T, H]: the largest logit, 0 in a row without keys
    condition: Tensor  # fp32 [T, H]
    shift: Tensor | float = 0.0  # fp32 [T, H]: by how much all logits of a row are moved (`kernels/inputs/shifted_logits.py`)
    error: Tensor | float = 0.0  # fp32 [T, H]: by how much of its length a row of `out` itself may be off, if not by far less

    @property
    def finite_lse(self) -> Tensor:
        """`lse`, and 0 in a row without keys, whose tolerance needs a number."""
        return self.lse.nan_to_num(neginf=0.0)

    def kept(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` gives, kept for other backends: it follows from this answer, its inputs and `key`. Nobody writes into it."""
        if self.out.numel() > KEPT_ELEMENTS:
            return make()
        if key not in self._kept:
            self._kept[key] = make()
        found: Made = self._kept[key]
        return found

    def checksum(self) -> Tensor:
        """An int64 []: another one if somebody has written into this answer."""
        rows = torch.stack((self.lse, self.peak, self.condition)).view(torch.int32)
        words = torch.cat((self.out.view(torch.int32).sum(-1, dtype=torch.int64)[None], rows))
        return (words.flatten() * self._weights).sum()

    @cached_property
    def _weights(self) -> Tensor:
        return place_weights(0, 4 * self.lse.numel(), self.lse.device)

    def forget(self) -> None:
        """Forgets what was kept: the inputs had been damaged, and it may have been made from them."""
        self._kept.clear()

    @cached_property
    def _kept(self) -> dict[Hashable, Any]:
        return {}

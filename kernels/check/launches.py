"""Compares the outputs of many launches: whether all are equal, and which one differs most from the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


KEPT, KEPT_BYTES = 16, 2**23  # outputs that wait to be compared together, and their bytes at most, unless one alone has more


class LaunchLog:
    """Compares outputs with the first one, on the device and without waiting for it.

    A launch costs one copy of its output. Copies are compared many at a time, since each comparison is a few calls from Python.
    """

    def __init__(self, out: Tensor) -> None:
        self.out = out
        self.restart()

    def restart(self, out: Tensor | None = None) -> None:
        """Takes the output of now as the first; `out`, if it lies in other memory now."""
        import torch

        self.out = self.out if out is None else out
        self.count = 1
        self._first, self._furthest = self.out.to(torch.float32, copy=True), self.out.clone()
        self._kept = self.out.new_empty(max(1, min(KEPT, KEPT_BYTES // self.out.nbytes)), *self.out.shape)
        self._waiting = 0
        tiny = torch.finfo(torch.float32).tiny
        self._per_norm = 1 / self._first.norm(dim=-1).clamp_min(tiny)
        self._distance = torch.zeros((), device=self.out.device)

    def compare(self, out: Tensor | None = None) -> None:
        """Keeps the output of now for comparison; `out`, if it lies in other memory now."""
        self.out = self.out if out is None else out
        self.count += 1
        self._kept[self._waiting].copy_(self.out)
        self._waiting += 1
        if self._waiting == len(self._kept):
            self._compare_kept()

    def furthest(self) -> Tensor | None:
        """The output that differs most from the first; None if all are equal bit by bit."""
        if self._waiting:
            self._compare_kept()
        return self._furthest if float(self._distance) > 0 else None

    def _compare_kept(self) -> None:
        import torch

        kept, self._waiting = self._kept[: self._waiting], 0
        distances = ((kept.float() - self._first).norm(dim=-1) * self._per_norm).flatten(1).amax(1).nan_to_num(nan=torch.inf)
        distance, at = distances.max(0)
        self._furthest = torch.where(distance > self._distance, kept[at], self._furthest)
        self._distance = torch.maximum(distance, self._distance)

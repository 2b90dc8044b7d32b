"""Compares the outputs of many launches: whether all are equal, and which one differs most from the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class LaunchLog:
    """Compares outputs with the first one, on the device and without waiting for it."""

    def __init__(self, out: Tensor) -> None:
        self.out = out
        self.restart()

    def restart(self, out: Tensor | None = None) -> None:
        """Takes the output of now as the first; `out`, if it lies in other memory now."""
        import torch

        self.out = self.out if out is None else out
        self.count = 1
        self._first, self._furthest = self.out.to(torch.float32, copy=True), self.out.clone()
        tiny = torch.finfo(torch.float32).tiny
        self._per_norm = 1 / self._first.norm(dim=-1).clamp_min(tiny)
        self._distance = torch.zeros((), device=self.out.device)

    def compare(self, out: Tensor | None = None) -> None:
        """Compares the output of now; `out`, if it lies in other memory now. In few calls: they take the CPU's time."""
        import torch

        self.out = self.out if out is None else out
        self.count += 1
        distance = ((self.out.float() - self._first).norm(dim=-1) * self._per_norm).max().nan_to_num(nan=torch.inf)
        self._furthest = torch.where(distance > self._distance, self.out, self._furthest)
        self._distance = torch.maximum(distance, self._distance)

    def furthest(self) -> Tensor | None:
        """The output that differs most from the first; None if all are equal bit by bit."""
        return self._furthest if float(self._distance) > 0 else None

"""Compares the outputs of many launches: whether all are equal, and which one differs most from the first."""

from __future__ import annotations

from kernels.inputs.tensors import bits
from kernels.lazy import Tensor, torch

# At most so many outputs, of so many bytes, wait to be compared: all launches of a small problem (`output_check.LAUNCHES`).
KEPT, KEPT_BYTES = 72, 2**23


class LaunchLog:
    """Compares outputs with the first one on the device, many at a time; where two do not fit into `kept_bytes`, where they are."""

    def __init__(self, out: Tensor, kept_bytes: int = KEPT_BYTES) -> None:
        self.out = out
        room = min(KEPT, kept_bytes // max(1, out.nbytes))
        self._kept = out.new_empty(room if room > 1 else 0, *out.shape)
        self._places = self._kept.unbind()
        self.restart()

    def restart(self, out: Tensor | None = None) -> None:
        """Takes the output of now as the first; `out`, if it lies in other memory now."""
        self.out = self.out if out is None else out
        self.count = 1
        self._first, self._most_different = self.out.to(torch.float32, copy=True), self.out.clone()
        self._waiting = 0
        tiny = torch.finfo(torch.float32).tiny
        self._per_norm = 1 / self._first.norm(dim=-1).clamp_min(tiny)
        self._distance = torch.zeros((), device=self.out.device)

    def compare(self, out: Tensor | None = None) -> None:
        """Keeps the output of now for comparison; `out`, if it lies in other memory now."""
        self.out = self.out if out is None else out
        self.count += 1
        if not len(self._kept):
            self._compare(self.out[None])
            return
        self._places[self._waiting].copy_(self.out)
        self._waiting += 1
        if self._waiting == len(self._kept):
            self._compare_kept()

    def most_different(self) -> Tensor | None:
        """The output that differs most from the first; None if all are equal bit by bit."""
        if self._waiting:
            self._compare_kept()
        return self._most_different if float(self._distance) > 0 else None

    def _compare_kept(self) -> None:
        waiting, self._waiting = self._kept[: self._waiting], 0
        self._compare(waiting)

    def _compare(self, outs: Tensor) -> None:
        """Outputs [n, ...], of which the most different one is kept if it differs more than those before."""
        wide, tiny = outs.float(), torch.finfo(torch.float32).tiny
        distances = ((wide - self._first).norm(dim=-1) * self._per_norm).flatten(1).amax(1).nan_to_num(nan=torch.inf)
        distances = distances.clamp_min(tiny * (wide != self._first).flatten(1).any(1))  # the square of a small difference may be 0
        distance, at = distances.max(0)
        most_different = bits(outs).index_select(0, at.view(1))[0]  # `outs[at]` would wait for the device
        self._most_different = torch.where(distance > self._distance, most_different, bits(self._most_different)).view(outs.dtype)
        self._distance = torch.maximum(distance, self._distance)

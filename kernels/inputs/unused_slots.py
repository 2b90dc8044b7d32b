"""The slots of the cache that hold no token: they are filled before a check, and nobody may write to them."""

# n = slots that hold no token, K = stored KV heads, D = head_dim

from __future__ import annotations

import math
from collections.abc import Sequence

from kernels.inputs import Inputs
from kernels.inputs.generate import UNUSED_SLOT, poison_unused_slots
from kernels.inputs.nvfp4 import quantize
from kernels.inputs.tensors import as_integers, rounded, token_major
from kernels.lazy import Tensor, torch


class UnusedSlots:
    """What the slots that hold no token were filled with last, and whether that was still there whenever it was looked at."""

    def __init__(self, inputs: Sequence[Inputs]) -> None:
        """Of inputs as they were drawn: of one problem, or of all layers of a step."""
        self._inputs = [one for one in inputs if one.unused_slots[0].numel()]  # of whole pages alone there is nothing to look at
        self._problem, self._device, self._value = inputs[0].problem, inputs[0].device, UNUSED_SLOT
        self._intact: Tensor | None = None  # bool [], on the device: reading it waits. None before a look at some

    def fill(self, nan: bool) -> None:
        """Fills them with NaN, or with a large number. What somebody has written there since the last filling is noted first."""
        self.look()
        self._value = math.nan if nan and self._problem.kv_dtype != "nvfp4" else UNUSED_SLOT
        for inputs in self._inputs:
            poison_unused_slots(inputs, self._value)

    def look(self) -> None:
        """Notes whether all of them are as they were filled. To be called before they are overwritten."""
        found = [one for inputs in self._inputs for one in _are_filled(inputs, self._value)]
        found += [] if self._intact is None else [self._intact]
        if found:
            self._intact = torch.stack(found).all()

    def drawn_again(self) -> None:
        """To be called after values were drawn into the first of the inputs, which fills its own slots alone."""
        for inputs in self._inputs:
            poison_unused_slots(inputs, UNUSED_SLOT)
        self._value = UNUSED_SLOT

    def were_intact(self) -> Tensor:
        """Bool []: whether nobody had written there at any look since this was asked last. There was one: filling looks, too."""
        found, self._intact = self._intact, None
        return torch.ones((), dtype=torch.bool, device=self._device) if found is None else found


def _are_filled(inputs: Inputs, value: float) -> list[Tensor]:
    """Bool [] for each cache: whether all slots [n, K, D] that hold no token have the bits of this value. NaN has bits too."""
    p, found = inputs.problem, []
    for which in range(1 if p.latent else 2):
        caches = [inputs.kv[which], *(inputs.kv_scales[which : which + 1] if inputs.kv_scales else ())]
        for cache, vector in zip(caches, _stored(inputs, which, value), strict=True):
            wanted, _ = as_integers(inputs, vector)
            words, _ = as_integers(inputs, token_major(p, cache))
            found.append((words[inputs.unused_slots] == wanted).all())
    return found


def _stored(inputs: Inputs, which: int, value: float) -> tuple[Tensor, ...]:
    """This value as it is stored, [1]; of nvfp4 a vector [D] with its block scales. Bit for bit as `poison_unused_slots` does."""
    cache = inputs.kv[which]
    if inputs.kv_scales is not None:
        return quantize(torch.full((2 * cache.shape[-1],), value, device=inputs.device))
    return (rounded(torch.full((1,), value, device=inputs.device), cache.dtype),)

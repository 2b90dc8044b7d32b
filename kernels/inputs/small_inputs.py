"""The small tensors that backends share, such as page tables and lengths, kept a second time.

A wrong index in one of them makes another backend fail, or fault on a GPU. So they are compared after each turn of a backend,
before another one runs. That is cheap: they hold a few bytes for each page of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.inputs import Inputs
from kernels.problem.routine import by_routine


class SmallInputs:
    """All integers, masks and sinks of inputs as they were drawn: of one problem, or of all layers of a step."""

    def __init__(self, inputs: Sequence[Inputs]) -> None:
        self._inputs, self._shared = inputs, _by_dtype(inputs)
        self._drawn = [_together(tensors) for tensors in self._shared]

    def restore(self) -> bool:
        """Puts all of them back, and says whether somebody had changed one. Waits for all streams of the device."""
        if self._drawn[0].is_cuda:
            torch.cuda.synchronize()
        for inputs in self._inputs:  # where no tree needs a mask, each backend gets one of its own
            if inputs.problem.tree is None:
                for one in (inputs, inputs.padded):
                    vars(one or inputs).pop("visible", None)
        changed = False
        for tensors, drawn in zip(self._shared, self._drawn, strict=True):
            if not torch.equal(_together(tensors), drawn):
                changed = True
                for tensor, was in zip(tensors, torch.split(drawn, [one.numel() for one in tensors]), strict=True):
                    tensor.copy_(was.view(tensor.shape))
        return changed


def _by_dtype(inputs: Sequence[Inputs]) -> list[list[Tensor]]:
    """Each tensor once, those of a dtype together: the layers of a step have the same page table."""
    found: dict[torch.dtype, dict[int, Tensor]] = {}
    for one in inputs:
        for tensor in small_inputs(one):
            found.setdefault(tensor.dtype, {})[id(tensor)] = tensor
    return [list(tensors.values()) for tensors in found.values()]


@by_routine
def small_inputs(inputs: Inputs) -> list[Tensor]:
    """All but queries and cache, with the rows of padded requests."""
    whole = inputs.padded or inputs
    small = [whole.page_table, whole.q_lens, whole.qo_indptr, whole.kv_lens, whole.kv_indptr, whole.kv_indices, whole.last_page_len]
    small += [] if whole.sinks is None else [whole.sinks]
    small += [inputs.visible, whole.visible] if inputs.problem.tree is not None else []
    return [*small, *inputs.unused_slots]  # by which slots are filled that hold no token


def _together(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])

"""The small tensors that backends share, such as page tables and lengths, kept a second time.

A wrong index in one of them makes another backend fail, or fault on a GPU. So they are compared after each turn of a backend,
before another one runs. That is cheap: they hold a few bytes for each page of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.inputs import Inputs
from kernels.inputs.tensors import OwnInputs
from kernels.lazy import Tensor, torch
from kernels.problem.routine import by_routine


class SmallInputs:
    """All integers, masks and sinks of inputs as they were drawn: of one problem, or of all layers of a step."""

    def __init__(self, inputs: Sequence[Inputs]) -> None:
        self._inputs = inputs
        # Each once: the layers of a step have the same page table.
        each = {id(tensor): tensor for one in inputs for tensor in small_inputs(one)}
        self._bytes = [tensor.view(-1).view(torch.uint8) for tensor in each.values()]
        self._drawn = torch.cat(self._bytes)
        self._drawn_each = torch.split(self._drawn, [len(one) for one in self._bytes])

    def restore(self, wait: bool = False) -> Tensor:
        """Puts all of them back, and says whether somebody had changed one: bool [], on the device.

        With `wait` all streams of the device are done before. Without, what the current stream has to do.
        """
        if wait and self._drawn.is_cuda:
            torch.cuda.synchronize()
        for inputs in self._inputs:  # where no tree needs a mask, each backend gets one of its own
            if inputs.problem.tree is None:
                for one in (inputs, inputs.padded):
                    vars(one or inputs).pop("visible", None)
        changed = (torch.cat(self._bytes) != self._drawn).any()
        torch._foreach_copy_(self._bytes, self._drawn_each)  # without asking: a question would wait
        return changed


@by_routine
def small_inputs(inputs: Inputs | OwnInputs) -> list[Tensor]:
    """All but queries and cache, with the rows of padded requests."""
    if isinstance(inputs, OwnInputs):
        return [*(one for one in inputs.tensors() if not one.is_floating_point()), *inputs.unused_slots]
    whole = inputs.padded or inputs
    small = [whole.page_table, whole.q_lens, whole.qo_indptr, whole.kv_lens, whole.kv_indptr, whole.kv_indices, whole.last_page_len]
    small += [] if whole.sinks is None else [whole.sinks]
    small += [inputs.visible, whole.visible] if inputs.problem.tree is not None else []
    return [*small, *inputs.unused_slots]  # by which slots are filled that hold no token

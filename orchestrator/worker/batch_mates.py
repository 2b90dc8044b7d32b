"""Whether an answer depends on the other requests of its batch: the first requests run again in smaller batches."""

# T = query tokens of all requests, H = num_qo_heads

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.adapter import Adapter
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.split.adapter import Ordered, part_of
from kernels.split.batch import part_problem

if TYPE_CHECKING:
    from torch import Tensor


def is_invariant(adapter: Adapter, inputs: Inputs, out: Tensor, device: Device) -> bool | None:
    """Whether the first request alone, and the first half of the batch, get the bits that they have in `out` [T, H, D_vo].

    The smaller batches have the same queries, pages and cache, at the same addresses. None if nothing can be said: of one request,
    of requests that share a prefix or are padded, of a merge, and of a backend whose rule forbids the smaller batches.
    """
    import torch

    p, same = inputs.problem, []
    if p.batch_size == 1 or p.prefix_tokens or p.num_states is not None or inputs.padded is not None:
        return None
    for size in dict.fromkeys((1, p.batch_size // 2)):
        part = part_problem(p, tuple(range(size)), p.routine)
        if adapter.unmet(part, device):
            continue
        runner = adapter.prepared(part_of(inputs, part, range(size), Ordered(inputs.q, inputs.empty_output(), None), 0), device)
        runner.refresh()
        runner()
        ours, theirs = (rows.contiguous().view(torch.uint8) for rows in (runner.as_asked(runner.out), out[: part.num_q_tokens]))
        same.append(torch.equal(ours, theirs))
    return all(same) if same else None

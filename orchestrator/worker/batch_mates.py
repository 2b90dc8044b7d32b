"""Whether an answer depends on the other requests of its batch: the first requests run again in smaller batches."""

from __future__ import annotations

from kernels.device import Device
from kernels.environment.remote import RemoteTimer
from kernels.problem.routine import routine_of
from kernels.split.adapter import Ordered, part_of
from kernels.split.batch import part_problem
from orchestrator.worker.output_check import JudgedCall


def is_batch_invariant(call: JudgedCall, device: Device) -> bool | None:
    """Whether the first request alone, and the first half of the batch, get the bits that they have in the whole batch.

    The smaller batches have the same queries, pages and cache, at the same addresses. None if nothing can be said: of one request,
    of requests that share a prefix or are padded, of a merge, of a backend whose rule forbids the smaller batches or that runs in
    another process.
    """
    import torch

    adapter, inputs, p, same = call.adapter, call.shared.inputs, call.shared.inputs.problem, []
    alone = p.batch_size == 1 or p.prefix_tokens or p.num_states is not None or inputs.padded is not None
    if alone or routine_of(p.routine) or isinstance(call.timer, RemoteTimer):
        return None
    call.launch(poisoned=True)
    out, _ = call.outputs.now()
    for size in dict.fromkeys((1, p.batch_size // 2)):
        if not any(p.kv_lens[:size]):
            continue
        part = part_problem(p, tuple(range(size)), p.routine)
        if adapter.unmet(part, device):
            continue
        runner = adapter.prepared(part_of(inputs, part, range(size), Ordered(inputs.q, inputs.empty_output(), None), 0), device)
        runner.refresh()
        runner()
        ours, theirs = (rows.contiguous().view(torch.uint8) for rows in (runner.as_asked(runner.out), out[: part.num_q_tokens]))
        same.append(torch.equal(ours, theirs))
    return all(same) if same else None

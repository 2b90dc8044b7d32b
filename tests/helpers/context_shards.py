"""Decode context parallelism on one device: shards of a context, a kernel's answer over each, and the merge by their log-sum-exps.

Of `of` ranks, each has every so-many-th page of a request's context: single tokens, by which both engines interleave unless told
otherwise, where a page has one. A rank may have no key of a short request. Drafts are a part of their own, under their causal mask,
and see every key of the shards, as in vLLM's `_forward_with_dcp`. A sink is a logit of the whole softmax, so it counts in one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Literal

import torch

from kernels.adapter import Adapter
from kernels.check import oracle
from kernels.check.log_sum_exp import judge_with_lse
from kernels.check.oracle import Verdict, judge
from kernels.check.tolerance import row_tolerances
from kernels.conformance.checks import with_lengths
from kernels.cuda import synchronize
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.inputs.states import State, merged
from kernels.inputs.step_lengths import of_lengths
from kernels.problem import Problem
from kernels.problem.arithmetic import NATURAL

SinksIn = Literal["first", "each", "none"]  # of the parts
UNUSED = 2147480000  # as in inputs: far outside the cache


def parts(inputs: Inputs, of: int, sinks_in: SinksIn = "first") -> Iterator[Inputs]:
    """The shards of each request's context, and of causal drafts, whose context must be whole pages, the drafts themselves."""
    p, n = inputs.problem, inputs.problem.slots_per_page
    drafts = p.s_qo > 1 and p.mask == "causal"
    contexts = [kv - q if drafts else kv for q, kv in zip(p.q_lens, p.kv_lens, strict=True)]
    keys = {"mask": "full"} if drafts else {}
    for rank in range(of):
        pages = [range(rank, -(-context // n), of) for context in contexts]
        lens = tuple(sum(min(n, context - page * n) for page in own) for own, context in zip(pages, contexts, strict=True))
        yield part(inputs, pages, lens, p.sinks and (sinks_in == "each" or (sinks_in == "first" and not rank)), **keys)
    if drafts:
        assert not any(context % n for context in contexts)
        pages = [range(context // n, -(-kv // n)) for context, kv in zip(contexts, p.kv_lens, strict=True)]
        yield part(inputs, pages, p.q_lens, p.sinks and sinks_in == "each")


def part(inputs: Inputs, pages: list[range], lens: tuple[int, ...], sinks: bool, **keys: object) -> Inputs:
    """The inputs with these pages of each request alone. A request without one has page 0, as in engines."""
    p = inputs.problem
    table = torch.full((p.batch_size, max(1, *map(len, pages))), UNUSED, dtype=torch.int32, device=inputs.device)
    for row, own, listed in zip(table, pages, inputs.page_table, strict=True):
        row[: len(own)] = listed[torch.tensor(own, dtype=torch.int64, device=inputs.device)]
        row[:] = row if len(own) else 0
    problem = Problem.model_validate({**with_lengths(p, lens).model_dump(), "sinks": sinks, **keys})
    step = of_lengths(replace(inputs, page_table=table), lens)
    host = {"kv_lens": step.host.kv_lens, "kv_indptr": step.host.kv_indptr, "last_page_len": step.host.last_page_len}
    device = {name: tensor.to(inputs.device) for name, tensor in host.items()} | {"kv_indices": step.kv_indices}
    return replace(inputs, problem=problem, page_table=table, sinks=inputs.sinks if sinks else None, **device)


def lacking(adapter: Adapter, device: Device, inputs: Inputs, of: int) -> list[str]:
    """What the backend does not serve of the parts."""
    return [sentence for one in parts(inputs, of) for sentence in adapter.unmet(one.problem, device)]


def over_shards(
    adapter: Adapter,
    device: Device,
    inputs: Inputs,
    of: int = 3,
    *,
    sinks_in: SinksIn = "first",
    as_read: Callable[[torch.Tensor], torch.Tensor] = lambda lse: lse,
) -> Verdict:
    """The verdict on the answer that is merged from a call over each part, compared with that over the whole context.

    `as_read` is what becomes of a log-sum-exp before it is merged.
    """
    p, states = inputs.problem, []
    for one in parts(inputs, of, sinks_in):
        runner = adapter.prepared(one, device)
        runner.refresh()
        runner()
        synchronize(device)
        lse = runner.written_lse()
        assert lse is not None
        lse = lse.reshape(-1, p.num_qo_heads).clone() * NATURAL[runner.lse_base]
        states.append(State(runner.as_asked(runner.out).clone(), as_read(lse)))
        how = replace(runner.arithmetic, lse_base="e")
    whole, answer = reduce(merged, states), oracle.answer(inputs)
    verdict = judge(whole.out.to(runner.out.dtype), answer.out, p, how, row_tolerances(inputs, answer, how))
    return judge_with_lse(verdict, whole.lse, answer, p, how)

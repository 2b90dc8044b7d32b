"""Backends on padded graphs, one request after another: one that is right, and faulty ones. `adapters=[tests.backends.padding]`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.adapter import Adapter, Need, QueryLengths, Runner
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.problem import Problem
from kernels.problem.padded import PaddedBatch

if TYPE_CHECKING:
    from torch import Tensor

Step = Callable[[Inputs, "Tensor", int], None]  # what happens to a padded request: the inputs, the output and its number


@dataclass(frozen=True, kw_only=True)
class OneByOne(Adapter):
    """Attends for each request of the batch that has a token, and leaves padded requests to `padded`, which may be wrong."""

    padded: Step
    routine: str = "paged_decode"
    query_lengths: QueryLengths = "uniform"
    gives_lse: bool = True
    takes_empty: bool = True
    skips_unused: bool = True
    distributions: tuple[str, ...] = ("torch",)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (Need("fp32 and a full mask", problem.q_dtype == problem.kv_dtype == "fp32" and problem.mask == "full"),)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        p, out, lse = inputs.problem, inputs.empty_output(), inputs.empty_lse()
        assert isinstance(p, PaddedBatch)

        def launch() -> None:
            for request in range(p.real.batch_size):
                rows = inputs.queries(request)
                attended, sums = _attend(inputs, inputs.q[rows], request)
                out[rows] = attended
                if lse is not None:
                    lse[rows] = sums
            for request in range(p.real.batch_size, p.batch_size):
                self.padded(inputs, out, request)

        return Runner(launch, out, "one_by_one", "fp32", lse=lse)


def _attend(inputs: Inputs, q: Tensor, request: int) -> tuple[Tensor, Tensor]:
    """Output [Q, H, D] and log-sum-exp [Q, H] over all keys of a request."""
    p = inputs.problem
    k, v = (t.repeat_interleave(p.group_size, 1) for t in inputs.tokens(request, 0, p.kv_lens[request]))  # [L, H, D]
    scores = (q.transpose(0, 1) @ k.permute(1, 2, 0)) * inputs.sm_scale  # [H, Q, L]
    return (scores.softmax(-1) @ v.transpose(0, 1)).transpose(0, 1), scores.logsumexp(-1).T


def skips(inputs: Inputs, out: Tensor, request: int) -> None:
    """Right: writes nothing for it, so its rows stay NaN."""


def answers(inputs: Inputs, out: Tensor, request: int) -> None:
    """Right too: attends as for the others, to the null page, and to nothing if the request has no token."""
    rows = inputs.queries(request)
    out[rows] = _attend(inputs, inputs.q[rows], request)[0] if inputs.problem.kv_lens[request] else 0.0


def writes_to_request_0(inputs: Inputs, out: Tensor, request: int) -> None:
    """Its offset is what repeated query offsets make of it if they are counted from the batch of the graph."""
    rows = inputs.queries(request)
    out[: rows.stop - rows.start] = inputs.q[rows]


def writes_behind(inputs: Inputs, out: Tensor, request: int) -> None:
    """One request further than there are."""
    rows = inputs.queries(request).stop + inputs.problem.s_qo - 1
    out.as_strided((1,), (1,), out.storage_offset() + rows * out.stride(0)).fill_(0.0)


def reads_past_the_table(inputs: Inputs, out: Tensor, request: int) -> None:
    """Follows the entry behind the row of the last request: the length 0 minus one page, as an unsigned number, is not small."""
    table = inputs.page_table
    behind = table.as_strided((1,), (1,), table.storage_offset() + table.numel())
    out[inputs.queries(request)] = inputs.kv[1][behind.long()].mean()


def counts_the_null_page(inputs: Inputs, out: Tensor, request: int) -> None:
    """A merge that takes a part of the padded request's answer, times nought, for that of the last real request."""
    page = int(inputs.page_table[request, 0])
    out[inputs.queries(request - 1)] += 0.0 * inputs.kv[1][page].mean()


def mixes_queries(inputs: Inputs, out: Tensor, request: int) -> None:
    """A thousandth of the padded query gets into the row before it."""
    rows = inputs.queries(request)
    out[rows.start - 1] += 0.001 * inputs.q[rows].mean()


def counts_up(inputs: Inputs, out: Tensor, request: int) -> None:
    """Gives the padded request a token, as a kernel that appends one."""
    inputs.kv_lens[request] += 1


def races(inputs: Inputs, out: Tensor, request: int) -> None:
    """In one launch of 8 the padded request lands in request 0."""
    _calls.append(request)
    if len(_calls) % 8 == 7:
        out[0] = 0.0


_calls: list[int] = []

STEPS: tuple[Step, ...] = (
    skips,
    answers,
    writes_to_request_0,
    writes_behind,
    reads_past_the_table,
    counts_the_null_page,
    mixes_queries,
    counts_up,
    races,
)
ADAPTERS = tuple(OneByOne(name=step.__name__, padded=step) for step in STEPS)

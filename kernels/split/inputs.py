"""The inputs of one of the two calls: the same cache, and the request's own queries, lengths, page table and part of the output."""

# T = query tokens, H = num_qo_heads, D = head_dim, B = batch_size

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import TYPE_CHECKING

from kernels.inputs import Inputs
from kernels.inputs.tensors import bits

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.problem import Problem


@dataclass(frozen=True)
class PartInputs(Inputs):
    """Inputs of some requests of a batch. Their page table is as wide as the batch's, as when an engine passes rows of its own."""

    out: Tensor  # [T of these requests, H, D_vo], a view of the batch's output

    def empty_output(self) -> Tensor:
        """The part of the batch's output that belongs to these requests."""
        return self.out


@dataclass(frozen=True)
class Ordered:
    """The queries and the output of a batch as an engine lays them out: the requests of the decode call first.

    `source` [T] says which row of the problem each row holds; None if the problem has that order already, and `q` is then its own.
    """

    q: Tensor  # [T, H, D_qk]
    out: Tensor  # [T, H, D_vo]
    source: Tensor | None

    def bring_queries(self, inputs: Inputs) -> None:
        """Copies the problem's queries into this order. An engine orders requests before it computes their queries."""
        if self.source is not None:
            bits(self.q).copy_(bits(inputs.q)[self.source])

    def rows(self) -> Tensor | None:
        """[T]: where each row of the problem lies in this order; None if it lies where it did."""
        return None if self.source is None else self.source.argsort()


def ordered(inputs: Inputs, order: Sequence[int]) -> Ordered:
    """Memory for the batch in this order of its requests, with the queries in it."""
    import torch

    out, queries = inputs.empty_output(), (inputs.queries(request) for request in order)
    source = torch.tensor([row for rows in queries for row in range(rows.start, rows.stop)], device=inputs.device)
    if list(order) == sorted(order):
        return Ordered(inputs.q, out, None)
    batch = Ordered(torch.empty_like(inputs.q), out, source)
    batch.bring_queries(inputs)
    return batch


def part_of(inputs: Inputs, problem: Problem, requests: Sequence[int], batch: Ordered, first_row: int) -> PartInputs:
    """The inputs of `requests`, which are `problem`, and whose queries begin at `first_row` of the ordered batch.

    Keys, values and their scales are those of the batch, at the same addresses. Lengths and pages are the requests' own.
    """
    import torch

    at, rows = torch.tensor(requests, device=inputs.device), slice(first_row, first_row + problem.num_q_tokens)
    whole = inputs.problem
    pages_of = [-(-length // whole.slots_per_page) for length in whole.kv_lens]
    start = list(accumulate(pages_of, initial=0))
    own = {
        "problem": problem,
        "q": batch.q[rows],
        "page_table": inputs.page_table[at],
        "q_lens": inputs.q_lens[at],
        "qo_indptr": _indptr((whole.q_lens[i] for i in requests), inputs),
        "kv_lens": inputs.kv_lens[at],
        "kv_indptr": _indptr((pages_of[i] for i in requests), inputs),
        "kv_indices": torch.cat([inputs.kv_indices[start[i] : start[i + 1]] for i in requests]),
        "last_page_len": inputs.last_page_len[at],
    }
    shared = {field.name: getattr(inputs, field.name) for field in fields(Inputs)}
    return PartInputs(**{**shared, **own}, out=batch.out[rows])


def _indptr(counts: Iterable[int], inputs: Inputs) -> Tensor:
    import torch

    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=inputs.device)

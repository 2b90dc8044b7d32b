"""Wrong kernels of sparse MLA beside those of `kernels/mutants`: wrong index sets, wrong -1, wrong scales of fp8_ds_mla.

Each is wrong for one query token. A request of `ReferenceCase` is a query token here, and its keys are in the order of its indices.
"""

# L = tokens that the query token attends to, D = key_dim

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from kernels.mutants.faults import victim
from kernels.mutants.mutant import Mutant
from kernels.mutants.reference_case import ReferenceCase
from kernels.mutants.victims import Needs
from kernels.routines.sparse_mla.problem import DS_MLA, ROUTINE, QueryRows

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.problem import Problem
    from kernels.routines.sparse_mla.inputs import RowInputs

Slots = Callable[[ReferenceCase], "Tensor"]


def _rows(case: ReferenceCase) -> RowInputs:
    return cast("RowInputs", case.inputs)


def _place(problem: Problem, row: int) -> tuple[QueryRows, int, int]:
    """The rows, and of one its request and which of its query tokens it is."""
    rows = cast("QueryRows", problem)
    starts = rows.real.q_starts
    request = next(i for i, stop in enumerate(starts[1:]) if row < stop)
    return rows, request, row - starts[request]


def _slots(case: ReferenceCase) -> Tensor:
    """int64 [L]"""
    return case.inputs.page_table[case.request, : case.length].long()


def _slots_of(case: ReferenceCase, row: int) -> Tensor:
    """As many slots of another query token, or all that it has."""
    return case.inputs.page_table[row, : case.problem.kv_lens[row]].long()


def _at(case: ReferenceCase, positions: Tensor, request: int | None = None) -> Tensor:
    """Slots of positions in a request, by default the victim's."""
    from kernels.inputs.tensors import slots

    rows, own, _ = _place(case.problem, case.request)
    of = positions.new_full(positions.shape, own if request is None else request)
    page, slot = slots(_rows(case).stored, of, positions)
    return page * rows.real.page_size + slot


def _positions(case: ReferenceCase) -> Tensor:
    return _rows(case).positions[case.request, : case.length]


def _own(case: ReferenceCase) -> Tensor:
    """int64 [1]: the position of the query token itself."""
    rows, request, token = _place(case.problem, case.request)
    return _slots(case).new_full((1,), rows.real.kv_lens[request] - rows.real.q_lens[request] + token)


def _reading(slots: Slots) -> Callable[[ReferenceCase], Tensor]:
    """A kernel that reads the tokens of these slots instead, each as often as it is named."""

    def wrong(case: ReferenceCase) -> Tensor:
        from kernels.inputs.tensors import bits

        cache, at = case.inputs.kv[0], slots(case).clamp(0, case.problem.num_pages - 1)
        k = bits(cache)[at].view(cache.dtype).flatten(1, 2).float() * case.inputs.k_scale
        seen = case.seen.new_ones(len(case.q), len(k))
        return replace(case, k=k, v=k[..., : case.v.shape[-1]], seen=seen).answer()

    return wrong


def _and(slots: Slots) -> Slots:
    """The right slots, and others."""
    import torch

    return lambda case: torch.cat((_slots(case), slots(case)))


def _one_replaced(case: ReferenceCase) -> Tensor:
    """The heaviest key of the first head is that of the next slot."""
    slots = _slots(case).clone()
    heaviest = case.scores()[0, 0, -1].argmax()
    slots[heaviest] = (slots[heaviest] + 1) % case.problem.num_pages
    return slots


def _missing(case: ReferenceCase) -> int:
    rows, _, _ = _place(case.problem, case.request)
    return int(rows.real.axis("top_k") or 0) - case.length


def _scaled(factors: Callable[[Tensor], Tensor]) -> Callable[[ReferenceCase], Tensor]:
    """Each part of the latent times what `factors` makes of its scale [L, 4]."""

    def wrong(case: ReferenceCase) -> Tensor:
        from kernels.routines.sparse_mla.packed import parts_and_scales

        parts, scales = parts_and_scales(case.k)
        k = case.k.clone()
        k[..., : case.v.shape[-1]] = (parts * factors(scales)[..., None]).flatten(1)[:, None]
        return replace(case, k=k, v=k[..., : case.v.shape[-1]]).answer()

    return wrong


def _always(p: Problem) -> Needs:
    return {}


def _drafts(p: Problem) -> Needs:
    _, _, token = _place(p, victim(p))
    return {"a victim behind another query token of its request": token > 0}


def _before_others(p: Problem) -> Needs:
    rows, request, token = _place(p, victim(p))
    return {"a victim before another query token of its request": token + 1 < rows.real.q_lens[request]}


def _left_out(p: Problem) -> Needs:
    return {"a victim whose own token is not listed": _place(p, victim(p))[0].real.axis("newest") == "left_out"}


def _chooses(p: Problem) -> Needs:
    """Where all that it may see is listed there is nothing else to read."""
    rows, request, token = _place(p, victim(p))
    may_see = rows.real.kv_lens[request] - rows.real.q_lens[request] + token + 1
    return {"a victim that attends to half of its request at most": 2 * p.kv_lens[victim(p)] <= may_see}


def _padded(p: Problem) -> Needs:
    return {"a victim with fewer tokens than top_k": p.kv_lens[victim(p)] < int(_place(p, victim(p))[0].real.axis("top_k") or 0)}


def _two_requests(p: Problem) -> Needs:
    rows, request, _ = _place(p, victim(p))
    lens = rows.real.kv_lens
    return {"another request that is as long": any(i != request and length >= lens[request] for i, length in enumerate(lens))}


def _of_another(case: ReferenceCase) -> Tensor:
    rows, request, _ = _place(case.problem, case.request)
    lens = rows.real.kv_lens
    other = next(i for i, length in enumerate(lens) if i != request and length >= lens[request])
    return _at(case, _positions(case), other)


def _scattered(p: Problem) -> Needs:
    """In a cache whose pages lie in order the first request has its positions as slots."""
    rows, request, _ = _place(p, victim(p))
    return {"pages in random order, or a request behind the first": request > 0 or rows.real.page_order == "random"} | _chooses(p)


def _packed(p: Problem) -> Needs:
    return {f"a cache with scales in its rows ({DS_MLA})": _place(p, victim(p))[0].real.kv_dtype == DS_MLA}


WRONG = (
    ("index_one_too_high", "one index names the next slot", _reading(_one_replaced), _chooses),
    ("indices_one_too_high", "all indices name the next slot", _reading(lambda c: _slots(c) + 1), _chooses),
    ("index_doubled", "the heaviest key is listed twice",
     _reading(_and(lambda c: _slots(c)[c.scores()[0, 0, -1].argmax()][None])), _always),
    ("positions_as_slots", "positions in the request are taken for slots", _reading(_positions), _scattered),
    ("pages_of_another_request", "indices are looked up in the page table of another request",
     _reading(_of_another), _two_requests),
    ("indices_of_token_before", "the indices of the query token before are read",
     _reading(lambda c: _slots_of(c, c.request - 1)), _drafts),
    ("indices_of_first_token", "all query tokens of a request read the indices of the first",
     _reading(lambda c: _slots_of(c, c.request - _place(c.problem, c.request)[2])), _drafts),
    ("next_token_seen", "the query token behind is attended to", _reading(_and(lambda c: _at(c, _own(c) + 1))), _before_others),
    ("own_token_added", "a query token attends to itself although it is not listed",
     _reading(_and(lambda c: _at(c, _own(c)))), _left_out),
    ("indices_ignored", "the first tokens of the request are read instead of those that are listed",
     _reading(lambda c: _at(c, c.key)), _chooses),
    ("padding_as_first_slot", "-1 reads slot 0", _reading(_and(lambda c: _slots(c).new_zeros(_missing(c)))), _padded),
    ("padding_as_last_slot", "-1 reads the last slot of the cache",
     _reading(_and(lambda c: _slots(c).new_full((_missing(c),), c.problem.num_pages - 1))), _padded),
    ("half_of_indices", "the second half of the indices is not read",
     _reading(lambda c: _slots(c)[: -(-c.length // 2)]), lambda p: {"a victim of two tokens or more": p.kv_lens[victim(p)] > 1}),
    ("scales_missing", "the scales in the rows are not read", _scaled(lambda scales: scales * 0 + 1), _packed),
    ("scales_of_next_part", "each part of a row has the scale of the next one", _scaled(lambda scales: scales.roll(1, 1)), _packed),
    ("scales_as_powers_of_two", "scales are rounded up to powers of two",
     _scaled(lambda scales: scales.log2().ceil().exp2()), _packed),
)  # fmt: skip
ADAPTERS = tuple(
    Mutant(routine=ROUTINE.name, name=name, about=about, wrong=how, applies=applies) for name, about, how, applies in WRONG
)
DRAWN: tuple[Mutant, ...] = ()  # those of every routine that attends

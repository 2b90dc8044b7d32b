"""Wrong kernels of sparse MLA beside those of `kernels/mutants`: wrong index sets, wrong -1, wrong scales of fp8_ds_mla.

Each is wrong for one query token. A request of `ReferenceCase` is a query token here, and its keys are in the order of its indices.
"""

# L = tokens that the query token attends to, D = key_dim

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, cast

from kernels.inputs.tensors import bits, slots
from kernels.lazy import Tensor, torch
from kernels.mutants.faults import victim
from kernels.mutants.mutant import Mutant
from kernels.mutants.reference_case import ReferenceCase
from kernels.mutants.victims import Applies
from kernels.problem import Problem
from kernels.routines.sparse_mla.inputs import RowInputs
from kernels.routines.sparse_mla.packed import parts_and_scales
from kernels.routines.sparse_mla.problem import DS_MLA, ROUTINE, QueryRows

Wrong = Callable[[ReferenceCase], "Tensor"]


class _QueryToken(NamedTuple):
    """Where a query token stands: its problem by requests, its request, which of its tokens it is, and how many it attends to."""

    real: Problem
    request: int
    token: int
    attends: int

    @property
    def own(self) -> int:
        """Its position in the request."""
        return self.real.kv_lens[self.request] - self.real.q_lens[self.request] + self.token

    @property
    def missing(self) -> int:
        return int(self.real.axis("top_k") or 0) - self.attends

    @property
    def other(self) -> int | None:
        """Another request that is as long."""
        lens = self.real.kv_lens
        return next((i for i, length in enumerate(lens) if i != self.request and length >= lens[self.request]), None)


def _place(rows: Problem, row: int) -> _QueryToken:
    real = cast("QueryRows", rows).real
    request = next(i for i, stop in enumerate(real.q_starts[1:]) if row < stop)
    return _QueryToken(real, request, row - real.q_starts[request], rows.kv_lens[row])


def _of(case: ReferenceCase) -> _QueryToken:
    return _place(case.problem, case.request)


def _if(words: str, met: Callable[[_QueryToken], bool]) -> Applies:
    return lambda p: {words: met(_place(p, victim(p)))}


def _slots(case: ReferenceCase, row: int | None = None) -> Tensor:
    """int64 [L]: of the victim, or all that another query token has."""
    at = case.request if row is None else row
    return case.inputs.page_table[at, : case.problem.kv_lens[at]].long()


def _at(case: ReferenceCase, positions: Tensor | int, request: int | None = None) -> Tensor:
    """Slots of positions in a request, by default the victim's."""
    place, positions = _of(case), _slots(case).new_tensor([positions]) if isinstance(positions, int) else positions
    of = positions.new_full(positions.shape, place.request if request is None else request)
    page, slot = slots(cast("RowInputs", case.inputs).stored, of, positions)
    return page * place.real.page_size + slot


def _positions(case: ReferenceCase) -> Tensor:
    return cast("RowInputs", case.inputs).positions[case.request, : case.length]


def _heaviest(case: ReferenceCase) -> Tensor:
    """int64 [1]: where the heaviest key of the first head is listed."""
    return case.scores()[0, 0, -1].argmax()[None]


def _reading(wrong: Wrong, also: bool = False) -> Wrong:
    """A kernel that reads the tokens of these slots instead, or also, each as often as it is named."""

    def answer(case: ReferenceCase) -> Tensor:
        cache, at = case.inputs.kv[0], torch.cat((_slots(case)[: case.length * also], wrong(case)))
        k = bits(cache)[at.clamp(0, len(cache) - 1)].view(cache.dtype).flatten(1, 2).float() * case.inputs.k_scale
        return replace(case, k=k, v=k[..., : case.v.shape[-1]], seen=case.seen.new_ones(len(case.q), len(k))).answer()

    return answer


def _one_replaced(case: ReferenceCase) -> Tensor:
    heaviest = _heaviest(case)
    return _slots(case).index_add(0, heaviest, heaviest.new_ones(1))


def _scaled(factors: Callable[[Tensor], Tensor]) -> Wrong:
    """Each part of the latent times what `factors` makes of its scales [L, 4]."""

    def answer(case: ReferenceCase) -> Tensor:
        parts, scales = parts_and_scales(case.k)
        v = (parts * factors(scales)[..., None]).flatten(1)[:, None]
        k = case.k.clone()
        k[..., : v.shape[-1]] = v
        return replace(case, k=k, v=v).answer()

    return answer


_ANY = _if("a query token", lambda place: True)
_BEHIND = _if("a victim behind another query token of its request", lambda place: place.token > 0)
_BEFORE = _if("a victim before another one of its request", lambda place: place.token + 1 < place.real.q_lens[place.request])
_LEFT_OUT = _if("a victim whose own token is not listed", lambda place: place.real.axis("newest") == "left_out")
# Where all that it may see is listed there is nothing else to read.
_CHOOSES = _if("a victim that attends to half of its request at most", lambda place: 2 * place.attends <= place.own + 1)
_SHORT = _if("a victim with fewer tokens than top_k", lambda place: place.missing > 0)
_OTHERS = _if("another request that is as long", lambda place: place.other is not None)
_PACKED = _if(f"a cache with scales in its rows ({DS_MLA})", lambda place: place.real.kv_dtype == DS_MLA)
# In a cache whose pages lie in order the first request has its positions as slots.
_SCATTERED = _if(
    "pages in random order, or a request behind the first, and other tokens than it attends to",
    lambda place: (place.request > 0 or place.real.page_order == "random") and 2 * place.attends <= place.own + 1,
)
WRONG: tuple[tuple[str, str, Wrong, Applies], ...] = (
    ("index_one_too_high", "one index names the next slot", _reading(_one_replaced), _CHOOSES),
    ("indices_one_too_high", "all indices name the next slot", _reading(lambda c: _slots(c) + 1), _CHOOSES),
    ("index_doubled", "the heaviest key is listed twice", _reading(lambda c: _slots(c)[_heaviest(c)], also=True), _ANY),
    ("positions_as_slots", "positions in the request are taken for slots", _reading(_positions), _SCATTERED),
    ("pages_of_another_request", "indices are looked up in the page table of another request",
     _reading(lambda c: _at(c, _positions(c), _of(c).other)), _OTHERS),
    ("indices_of_token_before", "the indices of the query token before are read",
     _reading(lambda c: _slots(c, c.request - 1)), _BEHIND),
    ("indices_of_first_token", "all query tokens of a request read the indices of the first",
     _reading(lambda c: _slots(c, c.request - _of(c).token)), _BEHIND),
    ("next_token_seen", "the query token behind is attended to", _reading(lambda c: _at(c, _of(c).own + 1), also=True), _BEFORE),
    ("own_token_added", "a query token attends to itself although it is not listed",
     _reading(lambda c: _at(c, _of(c).own), also=True), _LEFT_OUT),
    ("indices_ignored", "the first tokens of the request are read instead of those that are listed",
     _reading(lambda c: _at(c, c.key)), _CHOOSES),
    ("padding_as_first_slot", "-1 reads slot 0", _reading(lambda c: _slots(c).new_zeros(_of(c).missing), also=True), _SHORT),
    ("padding_as_last_slot", "-1 reads the last slot of the cache",
     _reading(lambda c: _slots(c).new_full((_of(c).missing,), c.problem.num_pages - 1), also=True), _SHORT),
    ("half_of_indices", "the second half of the indices is not read", _reading(lambda c: _slots(c)[: -(-c.length // 2)]),
     _if("a victim of two tokens or more", lambda place: place.attends > 1)),
    ("scales_missing", "the scales in the rows are not read", _scaled(lambda scales: scales * 0 + 1), _PACKED),
    ("scales_of_next_part", "each part of a row has the scale of the next one", _scaled(lambda scales: scales.roll(1, 1)), _PACKED),
    ("scales_as_powers_of_two", "scales are rounded up to powers of two",
     _scaled(lambda scales: scales.log2().ceil().exp2()), _PACKED),
)  # fmt: skip
ADAPTERS = tuple(
    Mutant(routine=ROUTINE.name, name=name, about=about, wrong=how, applies=applies) for name, about, how, applies in WRONG
)
DRAWN: tuple[Mutant, ...] = ()  # those of every routine that attends

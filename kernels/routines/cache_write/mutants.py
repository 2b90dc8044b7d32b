"""Writes of a cache with one thing wrong: listed kinds, and faults that are drawn from a number. `mode=check_power` runs them.

Each computes the true rows rounded, makes one token or all of them wrong, and writes them.
"""

# T = new tokens, R = rows of a token, H = query heads, D = head_dim

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from kernels.adapter import Need, Runner
from kernels.routines.cache_write.adapters import Write

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.device import Device
    from kernels.problem import Problem
    from kernels.routines.cache_write.inputs import WriteInputs

DRAWS = 100
OTHER = {"neox": "interleaved", "interleaved": "neox"}


@dataclass
class WriteCase:
    """What a launch writes: bytes or numbers `rows` [T, R, D] into `slot` [T] of `cache`, and queries `q` [T, H, D].

    `token` and its `row` are wrong where not all are. `free` is a slot that gets no token.
    """

    inputs: WriteInputs
    cache: Tensor  # [P * N, R, D]
    token: int
    row: int
    free: int
    slot: Tensor
    rows: Tensor
    q: Tensor

    def again(self, of: Literal["rows", "q", "both"] = "both", **other: Any) -> None:
        """Rows and queries of other angles, style or scales."""
        rows, q = _rounded(self.inputs, **other)
        self.rows, self.q = self.rows if of == "q" else rows, self.q if of == "rows" else q

    def leave(self, row: int | slice) -> None:
        """The token's row stays as it was."""
        self.rows[self.token, row] = self.cache[self.slot[self.token], row]

    def move(self, tokens: int | slice, to: Any) -> None:
        self.slot[tokens] = to

    def angles(self, tokens: int = 0, first: int = 0, sines: float = 1.0) -> Tensor:
        """Those of positions so much later than from the first, with sines of another sign."""
        at = (self.inputs.position.long() - first + tokens).clamp(0, len(self.inputs.angles) - 1)
        found = self.inputs.angles[at]
        found[:, found.shape[1] // 2 :] *= sines
        return found

    def truth(self) -> tuple[Tensor, Tensor]:
        """True rows, and those that are stored, fp32 [T, R, D]."""
        from kernels.routines.cache_write.hooks import true_rows

        return true_rows(self.inputs)[0], self.rows.view(self.inputs.pool.dtype).float()


Wrong = Callable[[WriteCase], object]
Applies = Callable[["Problem"], dict[str, bool]]


def _rounded(inputs: WriteInputs, **other: Any) -> list[Tensor]:
    from kernels.inputs.tensors import bits, rounded
    from kernels.routines.cache_write.hooks import true_rows

    return [bits(rounded(one, inputs.pool.dtype)) for one in true_rows(inputs, **other)]


@dataclass(frozen=True, kw_only=True)
class WriteMutant(Write):
    """One way to be wrong, in a sentence, and where it is wrong at all; with a `number`, a fault that is drawn from it.

    `memory` says which writes are not computed again: all, or those whose first row it has seen.
    """

    about: str
    wrong: Wrong = lambda case: None
    applies: Applies = lambda problem: {}
    memory: Literal["none", "first", "all"] = "none"
    number: int | None = None
    distributions: tuple[str, ...] = ("torch",)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return tuple(Need(*pair) for pair in self.applies(problem).items())

    def drawn(self, problem: Problem) -> str:
        """The kind of its fault, the same for the same problem."""
        return self._coin(problem).choice(sorted(DRAWN_FAULTS))

    def _coin(self, problem: Problem) -> random.Random:
        return random.Random(zlib.crc32(f"{self.number} {problem.model_dump_json(exclude_defaults=True)}".encode()))

    def prepare(self, inputs: WriteInputs, device: Device) -> Runner:  # type: ignore[override]
        if self.number is None:
            name = "right output of oracle" if self.name == "no_fault" else "mutant of oracle"
            return replace(super().prepare(inputs, device), resolved_backend=name)
        kind = self.drawn(inputs.problem)
        own = replace(self, number=None, wrong=DRAWN_FAULTS[kind], memory="first" if kind == "kept" else "none")
        return replace(own.prepare(inputs, device), resolved_backend=f"mutant of oracle: {kind} 1")

    def call(self, inputs: WriteInputs, cache: Tensor, queries: Tensor | None) -> Callable[[], object]:
        from kernels.inputs.tensors import bits

        p, by_slot, coin = inputs.problem, inputs.by_slot(cache), self._coin(inputs.problem)
        known: list[tuple[Tensor, list[Tensor]]] = []
        token, row = coin.randrange(p.num_q_tokens), coin.randrange(inputs.new.shape[1])
        is_free = by_slot.new_ones(by_slot.shape[:2].numel()).index_fill_(0, inputs.slot, 0).bool()
        free = int(is_free.nonzero()[coin.randrange(8) % int(is_free.sum())])

        def launch() -> None:
            seen = inputs.new[0].float()
            found = next((kept for first, kept in known if self.memory == "all" or bool((first == seen).all())), None)
            written = found or _rounded(inputs)
            if self.memory != "none" and found is None:
                known.append((seen, written))
            flat, (rows, q) = by_slot.flatten(0, 1).flatten(1, 2).clone(), [one.clone() for one in written]
            case = WriteCase(inputs, flat, token, row, free, inputs.slot.clone(), rows, q)
            self.wrong(case)
            case.cache[case.slot] = case.rows
            by_slot.copy_(case.cache.view(by_slot.shape))
            if queries is not None:
                bits(queries).copy_(case.q)

        if self.memory == "all":
            launch()
        return (lambda: None) if self.name == "output_left" else launch


def _written_twice(case: WriteCase) -> None:
    case.cache[case.free] = case.rows[case.token]


def _off(case: WriteCase) -> None:
    """An element is two numbers of the cache's dtype further."""
    import torch

    row = case.rows[case.token, case.row].view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[case.rows.element_size()])
    row[case.token % len(row)] ^= 2


def _cut_off(case: WriteCase) -> None:
    true, stored = case.truth()
    case.rows -= (stored.abs() > true.abs()).to(case.rows.dtype)


def _values_turned(case: WriteCase) -> None:
    from kernels.inputs.tensors import bits, rounded
    from kernels.routines.cache_write.hooks import rotate

    p, (true, _) = case.inputs.problem, case.truth()
    rotate(true[:, p.num_kv_heads :], case.angles(), str(p.axis("rope")))
    case.rows = bits(rounded(true, case.inputs.pool.dtype))


def _order(**moves: Any) -> Wrong:
    """Rows in another order, of `shifts` along `dims`."""

    def wrong(case: WriteCase) -> None:
        case.rows = case.rows.roll(**moves)

    return wrong


def _halves(case: WriteCase) -> None:
    case.rows = case.rows.roll(case.rows.shape[1] // 2, 1)


def _quantised(p: Problem) -> dict[str, bool]:
    return {"keys that are quantised": p.q_dtype != p.kv_dtype}


def _apart(p: Problem) -> dict[str, bool]:
    return {"keys and values": p.head_dim_ckv is None}


def _turned(p: Problem) -> dict[str, bool]:
    return {"keys that are rotated": p.axis("rope") != "none"}


def _both(p: Problem) -> dict[str, bool]:
    return {**_quantised(p), **_apart(p), "two scales (rope=none)": p.axis("rope") == "none"}


def _heads(p: Problem) -> dict[str, bool]:
    return {**_apart(p), "several heads": p.num_kv_heads > 1}


WRONG: tuple[tuple[str, str, Wrong, Applies], ...] = (
    ("token_lost", "a token is not written", lambda c: c.leave(slice(None)), lambda p: {}),
    ("row_lost", "a head's key or value of a token is not written", lambda c: c.leave(c.row), lambda p: {}),
    ("slot_next", "all tokens lie one slot further", lambda c: c.move(slice(None), (c.slot + 1) % len(c.cache)), lambda p: {}),
    ("page_of_neighbour", "all tokens lie in the pages behind their own",
     lambda c: c.move(slice(None), (c.slot + c.inputs.problem.page_size) % len(c.cache)), lambda p: {}),
    ("table_ignored", "pages are taken in the order of memory",
     lambda c: c.move(slice(None), (c.inputs.position + c.inputs.request) % len(c.cache)), lambda p: {}),
    ("written_twice", "a token lies in another slot too", _written_twice, lambda p: {}),
    ("keys_as_values", "keys are written into the values too",
     lambda c: c.rows[:, c.rows.shape[1] // 2 :].copy_(c.rows[:, : c.rows.shape[1] // 2]), _apart),
    ("keys_for_values", "keys and values are exchanged", _halves, _apart),
    ("next_head", "each head gets the row of the next", _order(shifts=1, dims=1), _heads),
    ("next_token", "each token gets the row of the next", _order(shifts=1, dims=0),
     lambda p: {"several tokens": p.num_q_tokens > 1}),
    ("element_off", "an element is two numbers further", _off, lambda p: {}),
    ("scale_forgotten", "nothing is divided by a scale", lambda c: c.again(scale=c.inputs.scale**0, q_scale=1.0), _quantised),
    ("scale_inverted", "rows are multiplied by their scales", lambda c: c.again(scale=1 / c.inputs.scale), _quantised),
    ("scales_exchanged", "keys have the scale of values",
     lambda c: c.again(scale=c.inputs.scale.roll(len(c.inputs.scale) // 2)), _both),
    ("first_scale_for_all", "all heads have the scales of the first",
     lambda c: c.again(scale=c.inputs.scale.view(2, -1)[:, :1].repeat(1, len(c.inputs.scale) // 2).flatten()),
     lambda p: {**_heads(p), "scales of heads": p.axis("scales") == "head"}),
    ("cut_off", "elements are cut off and not rounded", _cut_off, _quantised),
    ("not_saturated", "what is too large becomes NaN", lambda c: c.rows.masked_fill_(c.truth()[0].abs() > 448, 0x7F),
     lambda p: {**_quantised(p), "fp8_e4m3": p.kv_dtype == "fp8_e4m3"}),
    ("rope_one_late", "rotated as the next position", lambda c: c.again(angles=c.angles(1)), _turned),
    ("rope_from_zero", "rotated as if the first new token were the first",
     lambda c: c.again(angles=c.angles(first=int(c.inputs.position.min()))),
     lambda p: {**_turned(p), "a context": all(q < kv for q, kv in zip(p.q_lens, p.kv_lens, strict=True))}),
    ("rope_mixed_up", "halves are rotated for neighbours, or neighbours for halves",
     lambda c: c.again(style=OTHER[str(c.inputs.problem.axis("rope"))]), _turned),
    ("rope_backwards", "rotated the other way", lambda c: c.again(angles=c.angles(sines=-1.0)), _turned),
    ("rope_forgotten", "keys are not rotated", lambda c: c.again("rows", style="none"), _turned),
    ("rope_of_values", "values are rotated too", _values_turned, lambda p: {**_turned(p), **_apart(p)}),
    ("rope_of_queries_forgotten", "queries are not rotated", lambda c: c.again("q", style="none"), _turned),
    ("query_scale_forgotten", "queries are not divided by their scale", lambda c: c.again("q", q_scale=1.0),
     lambda p: {**_turned(p), **_quantised(p)}),
)  # fmt: skip
DRAWN_FAULTS: dict[str, Wrong] = {
    "lost": lambda case: case.leave(case.row),
    "moved": lambda case: case.move(case.token, case.free),
    "stray": _written_twice,
    "off": _off,
    "kept": lambda case: None,
}
ADAPTERS = (
    *(WriteMutant(name=name, about=about, wrong=wrong, applies=applies) for name, about, wrong, applies in WRONG),
    WriteMutant(name="output_left", about="nothing is written"),
    WriteMutant(name="previous_run", about="what its preparation wrote is written again", memory="all"),
)
DRAWN = (
    *(WriteMutant(name=f"drawn_{number:03d}", about="a fault drawn from its number", number=number) for number in range(DRAWS)),
    WriteMutant(name="no_fault", about="nothing is wrong"),
)

"""Writes of a cache with one thing wrong: listed kinds, and faults that are drawn from a number. `mode=check_power` runs them.

Each is `torch_write` on inputs of which something was changed `before`, or with something changed `after` it.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kernels.adapter import Device, Need, Problem, Runner
from kernels.lazy import Tensor, torch
from kernels.routines.cache_write.adapters import TorchWrite
from kernels.routines.cache_write.inputs import WriteInputs
from kernels.routines.cache_write.problem import sizes

DRAWS = 100
OTHER = {"neox": "interleaved", "interleaved": "neox"}


class Written(NamedTuple):
    """What a launch wrote. A fault of one token is in its slot `at`, or in the `row` of one head there."""

    inputs: WriteInputs
    cache: Tensor  # integers by slot, [P, N, 2, K, D]
    at: tuple[int, int]
    row: tuple[int, ...]

    def leave(self, *row: int) -> None:
        """The token, or a row of it, is what it was."""
        self.cache[self.at + row] = self.inputs.by_slot(self.inputs.pool)[self.at + row]

    def move(self, leaves: bool) -> None:
        """The token is in a slot that gets none, and if it `leaves` not in its own."""
        n = self.inputs.problem.page_size
        free = self.inputs.slot.new_ones(n * len(self.cache)).index_fill_(0, self.inputs.slot, 0).nonzero().flatten()
        self.cache[divmod(int(free[self.at[0] % len(free)]), n)] = self.cache[self.at]
        if leaves:
            self.leave()

    def shift(self) -> None:
        """An element is two numbers of the cache's dtype further."""
        self.cache[(*self.at, *self.row, 7)] = self.cache[(*self.at, *self.row, 7)] ^ 2

    def change(self, of: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        """Other integers, of those that were written, of these as numbers and of the true ones, [T, 2, K, D] each."""
        written = self.cache[self.inputs.at]
        self.cache[self.inputs.at] = of(written, written.view(self.inputs.pool.dtype).float(), self.inputs.truth()[0])


Before = Callable[["WriteInputs"], dict[str, Any]]
After = Callable[[Written], object]
CONDITIONS: dict[str, tuple[str, Callable[[Problem], bool]]] = {
    "quantised": ("keys that are quantised", lambda p: p.q_dtype != p.kv_dtype),
    "apart": ("keys and values", lambda p: p.head_dim_ckv is None),
    "rope": ("keys that are rotated", lambda p: p.axis("rope") != "none"),
    "plain": ("two scales (rope=none)", lambda p: p.axis("rope") == "none"),
    "by_head": ("scales of heads", lambda p: p.axis("scales") == "head"),
    "heads": ("several heads", lambda p: p.num_kv_heads > 1),
    "tokens": ("several tokens", lambda p: p.num_q_tokens > 1),
    "e4m3": ("fp8_e4m3", lambda p: p.kv_dtype == "fp8_e4m3"),
    "context": ("a context", lambda p: all(q < kv for q, kv in zip(p.q_lens, p.kv_lens, strict=True))),
}


@dataclass(frozen=True, kw_only=True)
class WriteMutant(TorchWrite):
    """One way to be wrong, in a sentence, and where it is wrong at all; with a `number`, a fault that is drawn from it."""

    about: str
    before: Before = lambda inputs: {}
    after: After = lambda written: None
    where: str = ""  # of `CONDITIONS`
    remembers: Callable[[WriteInputs], bytes] | None = None  # what writes of equal ones are not computed again
    number: int | None = None

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return tuple(Need(sentence, met(problem)) for sentence, met in map(CONDITIONS.__getitem__, self.where.split()))

    def coin(self, problem: Problem) -> random.Random:
        return random.Random(zlib.crc32(f"{self.number} {problem.model_dump_json(exclude_defaults=True)}".encode()))

    def drawn(self, problem: Problem) -> str:
        """The kind of its fault, the same for the same problem. What remembers the only token of all is right."""
        return self.coin(problem).choice(sorted(DRAWN_FAULTS if problem.num_q_tokens > 1 else DRAWN_FAULTS.keys() - {"kept"}))

    def prepare(self, inputs: WriteInputs, device: Device) -> Runner:  # type: ignore[override]
        own, name = self, "right output of oracle" if self.name == "no_fault" else "mutant of oracle"
        if self.number is not None:
            kind = self.drawn(inputs.problem)
            own, name = replace(self, **DRAWN_FAULTS[kind]), f"mutant of oracle: {kind} 1: a token"
        return replace(super(WriteMutant, own).prepare(inputs, device), resolved_backend=name)

    def call(self, inputs: WriteInputs, cache: Tensor, queries: Tensor) -> Callable[[], object]:
        coin, known, write = self.coin(inputs.problem), dict[bytes, dict[str, Any]](), super().call
        token, row = coin.randrange(len(inputs.slot)), tuple(map(coin.randrange, sizes(inputs.problem).token[:-1]))

        def launch() -> None:
            own = replace(inputs, **self.before(inputs))
            if self.remembers is not None:
                own = replace(own, **known.setdefault(self.remembers(own), {"new": own.new.clone(), "q": own.q.clone()}))
            write(own, cache, queries)()
            at = divmod(int(inputs.slot[token]), inputs.problem.page_size)
            self.after(Written(inputs, inputs.by_slot(cache), at, row))

        if self.name == "previous_run":
            launch()
        return (lambda: None) if self.name == "output_left" else launch


def _moved(by: Callable[[WriteInputs], Any]) -> Before:
    """Slots that are so much further."""
    return lambda i: {"slot": (i.slot + by(i)) % (len(i.pool) * i.problem.page_size)}


def _other_style(i: WriteInputs) -> dict[str, Any]:
    axes = str(i.problem.routine_axes).replace(style := str(i.problem.axis("rope")), OTHER[style])
    return {"problem": i.problem.model_copy(update={"routine_axes": axes})}


BEFORE: tuple[tuple[str, str, Before, str], ...] = (
    ("slot_next", "all tokens lie one slot further", _moved(lambda i: 1), ""),
    ("page_of_neighbour", "all tokens lie in the pages behind their own", _moved(lambda i: i.problem.page_size), ""),
    ("table_ignored", "pages are taken in the order of memory", _moved(lambda i: i.position - i.slot), ""),
    ("keys_as_values", "keys are written into the values too", lambda i: {"new": i.new[:, [0, 0]]}, "apart"),
    ("keys_for_values", "keys and values are exchanged", lambda i: {"new": i.new.roll(1, 1)}, "apart"),
    ("next_head", "each head gets the row of the next", lambda i: {"new": i.new.roll(1, 2)}, "apart heads"),
    ("next_token", "each token gets the row of the next", lambda i: {"new": i.new.roll(1, 0)}, "tokens"),
    ("scale_forgotten", "rows are not divided by their scales", lambda i: {"scale": i.scale**0}, "quantised"),
    ("scale_inverted", "rows are multiplied by their scales", lambda i: {"scale": 1 / i.scale}, "quantised"),
    ("scales_exchanged", "keys have the scale of values", lambda i: {"scale": i.scale.roll(1, 0)}, "quantised apart plain"),
    ("scales_of_half", "heads have the scales of the first half of them in turns",
     lambda i: {"scale": i.scale[:, torch.arange(i.scale.shape[1]) % -(-i.scale.shape[1] // 2)]}, "by_head heads"),
    ("rope_one_late", "rotated as the next position", lambda i: {"position": i.position + 1}, "rope"),
    ("rope_from_zero", "rotated as if the first new token were the first of all",
     lambda i: {"position": i.position - i.position.min()}, "rope context"),
    ("rope_mixed_up", "halves are rotated for neighbours, or neighbours for halves", _other_style, "rope"),
    ("rope_backwards", "rotated the other way",
     lambda i: {"angles": i.angles.view(len(i.angles), 2, -1).mul(i.angles.new_tensor([[1.0], [-1.0]])).flatten(1)}, "rope"),
    ("rope_forgotten", "nothing is rotated", lambda i: {"angles": i.angles[:1].expand_as(i.angles)}, "rope"),
    ("query_scale_forgotten", "queries are not divided by their scale", lambda i: {"q_scale": 1.0}, "rope quantised"),
)  # fmt: skip
AFTER: tuple[tuple[str, str, After, str], ...] = (
    ("token_lost", "a token is not written", Written.leave, ""),
    ("row_lost", "a head's key or value of a token is not written", lambda w: w.leave(*w.row), ""),
    ("written_twice", "a token lies in another slot too", lambda w: w.move(leaves=False), ""),
    ("element_off", "an element is two numbers further", Written.shift, ""),
    ("cut_off", "elements are cut off and not rounded",
     lambda w: w.change(lambda bits, stored, true: bits - (stored.abs() > true.abs()).to(bits.dtype)), "quantised"),
    ("not_saturated", "what is too large becomes NaN",
     lambda w: w.change(lambda bits, stored, true: bits.masked_fill(true.abs() > 448, 0x7F)), "quantised e4m3"),
    ("values_not_saturated", "values that are too large become NaN",
     lambda w: w.change(lambda bits, _, v: bits.masked_fill(v > v.new_tensor([[[1e9]], [[448]]]), 0x7F)), "quantised e4m3 apart"),
)  # fmt: skip
DRAWN_FAULTS: dict[str, dict[str, Any]] = {
    "lost": {"after": lambda w: w.leave(*w.row)},
    "moved": {"after": lambda w: w.move(leaves=True)},
    "stray": {"after": lambda w: w.move(leaves=False)},
    "off": {"after": Written.shift},
    "kept": {"remembers": lambda i: i.new[0].float().cpu().numpy().tobytes()},
}
ADAPTERS = (
    *(WriteMutant(name=name, about=about, before=before, where=where) for name, about, before, where in BEFORE),
    *(WriteMutant(name=name, about=about, after=after, where=where) for name, about, after, where in AFTER),
    WriteMutant(name="output_left", about="nothing is written"),
    WriteMutant(name="previous_run", about="what its preparation wrote is written again", remembers=lambda i: b""),
)
DRAWN = (
    *(WriteMutant(name=f"drawn_{number:03d}", about="a fault drawn from its number", number=number) for number in range(DRAWS)),
    WriteMutant(name="no_fault", about="nothing is wrong"),
)

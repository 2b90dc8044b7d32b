"""Faults that are drawn, not listed: each mutant does one wrong thing to a few keys, drawn from its number and the problem.

`mode=check_power check.draws=N` runs the first N of them at every point, half as many of the kinds that came later, and
right outputs beside them (`no_fault.py`).
"""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kernels.adapter import Need, Runner
from kernels.inputs.sentinel_logit import PLANTED
from kernels.mutants import no_fault
from kernels.mutants.fault import KINDS, Fault, Kind, answer_with
from kernels.mutants.faults import victim
from kernels.mutants.mutant import Mutant
from kernels.mutants.reference_case import ReferenceCase
from kernels.problem import ROUTINES

if TYPE_CHECKING:
    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.problem import Problem

DRAWS, LATER_DRAWS = 200, 100  # mutants a routine: of the first kinds, and behind them of later ones, so that no number changes
FIRST_KINDS, LATER_KINDS = KINDS[:6], KINDS[6:]
FACTORS = (0.5, 0.8, 1.25, 2.0)  # of keys or values that are scaled
LATER_FIELDS = frozenset(
    {"shared_prefix", "return_lse", "max_seq_len", "enable_pdl", "graph_batch", "graph_fill", "num_states"}
)  # of a problem: at their defaults they change no draw of before


def numbers(draws: int) -> tuple[int, ...]:
    """The numbers of the faults that `check.draws` asks for: so many of the first kinds, and half as many of the later ones."""
    return (*range(draws), *range(DRAWS, DRAWS + (draws + 1) // 2))


def draw_fault(problem: Problem, number: int) -> Fault:
    """The fault of that number, the same for the same problem."""
    later = {name for name in LATER_FIELDS if getattr(problem, name) == type(problem).model_fields[name].default}
    choose = random.Random(zlib.crc32(f"{number} {problem.model_dump_json(exclude=later)}".encode()))
    if number >= DRAWS:
        return _draw_later(problem, choose)
    kind = choose.choice(FIRST_KINDS)
    return _of_kind(problem, choose, kind, choose.randrange(problem.stored_kv_heads))


def _of_kind(problem: Problem, choose: random.Random, kind: Kind, kv_head: int) -> Fault:
    request = victim(problem)
    q_len, length = problem.q_lens[request], problem.kv_lens[request]
    if kind == "pair":
        tail = min(q_len, PLANTED)
        return Fault(kind, 1, length - tail + choose.randrange(tail), kv_head, choose.randrange(tail))
    seen_from = 0 if problem.window is None else max(0, length - problem.window)
    room = length - q_len - seen_from  # keys that every query sees
    sizes = [2**i for i in range(int(math.log2(max(1, room // 4))) + 1)]
    size = choose.choice(sizes)
    aligned = choose.random() < 0.5
    start = seen_from + choose.randrange(max(1, room - size + 1))
    start = start // size * size if aligned and start // size * size >= seen_from else start
    fault = Fault(kind, size, start, kv_head)
    if kind == "scaled":
        return replace(fault, factor=choose.choice(FACTORS), of=choose.choice(("keys", "values")))
    if kind == "swapped":
        before, behind = max(0, start - size + 1 - seen_from), max(0, seen_from + room - 2 * size - start + 1)
        place = choose.randrange(max(1, before + behind))
        other = seen_from + place if place < before else start + size + place - before
        below = other // size * size
        return replace(fault, other=below if aligned and below >= seen_from and abs(below - start) >= size else other)
    return fault


def _draw_later(problem: Problem, choose: random.Random) -> Fault:
    """A fault of a later kind, or, in one of three draws, one of any kind in some rows of a KV head alone."""
    kv_head = choose.randrange(problem.stored_kv_heads)
    rows = {"heads": problem.group_size, "tokens": min(problem.q_lens[victim(problem)], PLANTED)}
    ways = [way for way, count in rows.items() if count > 1]
    if not ways or choose.random() > 1 / 3:
        return _of_kind(problem, choose, choose.choice(LATER_KINDS), kv_head)
    way = choose.choice(ways)
    kinds = [kind for kind in KINDS if kind != "pair" or way == "heads"]  # a pair is of one token anyway
    fault = _of_kind(problem, choose, choose.choice(kinds), kv_head)
    count = choose.randint(1, rows[way] - 1)
    first = choose.randint(0, rows[way] - count)
    span = first, first + count - 1
    return replace(fault, heads=span) if way == "heads" else replace(fault, tokens=span)


@dataclass(frozen=True, kw_only=True)
class Drawn(Mutant):
    """The wrong kernel of one number. `resolved_backend` says what is wrong with it, and of which backend it is a mutant."""

    number: int

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        fault = draw_fault(problem, self.number)
        wrapped = Mutant.needs(self, problem, device)
        if fault.kind == "pair":
            return wrapped
        return (
            *wrapped,
            Need(
                "a fault among the keys that every query sees", max(fault.start, fault.other) + fault.size <= _context_end(problem)
            ),
        )

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        fault = draw_fault(inputs.problem, self.number)
        drawn = replace(self, wrong=lambda case: answer_with(case, fault))
        runner = Mutant.prepare(drawn, inputs, device)
        return replace(runner, resolved_backend=f"{runner.resolved_backend}: {fault}")


def _context_end(problem: Problem) -> int:
    request = victim(problem)
    return problem.kv_lens[request] - problem.q_lens[request]


def _of_routine(routine: str) -> tuple[Drawn, ...]:
    common: dict[str, Any] = {
        "routine": routine,
        "about": "a fault drawn from its number",
        "wrong": ReferenceCase.answer,
        "applies": _everywhere,
    }
    return tuple(Drawn(name=f"drawn_{number:03d}", number=number, **common) for number in range(DRAWS + LATER_DRAWS))


def _everywhere(problem: Problem) -> dict[str, bool]:
    return {}


ADAPTERS: tuple[Mutant, ...] = (*(drawn for routine in ROUTINES for drawn in _of_routine(routine)), *no_fault.ADAPTERS)

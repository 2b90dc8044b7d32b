"""Faults that are drawn, not listed: each mutant does one wrong thing to a few keys, drawn from its number and the problem.

`mode=check_power check.draws=N` runs the first N of them at every point, and right outputs beside them (`no_fault.py`).
"""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from kernels.adapter import Need, Runner
from kernels.mutants import no_fault
from kernels.mutants.faults import victim
from kernels.mutants.mutant import Mutant
from kernels.mutants.reference_case import ReferenceCase
from kernels.problem import ROUTINES

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.problem import Problem

DRAWS = 200  # mutants a routine
Kind = Literal["lost", "doubled", "halved", "shifted", "stale", "pair"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LATER_FIELDS = frozenset(
    {"shared_prefix", "return_lse", "max_seq_len", "enable_pdl", "graph_batch", "graph_fill", "num_states"}
)  # of a problem: at their defaults they change no draw of before


@dataclass(frozen=True)
class Fault:
    """What is wrong in one request: `size` keys from `start` on in one KV head, or one (query, draft key) pair in all heads.

    lost: not counted. doubled: counted twice. halved: counted with half their weight, as by a wrong merge of splits. shifted: each
    key meets the value of the key before it. stale: keys and values are those of the `size` keys before. pair: the mask is turned
    over for query `query` of the last ones and key `start`.
    """

    kind: Kind
    size: int
    start: int
    kv_head: int
    query: int = 0

    def __str__(self) -> str:
        if self.kind == "pair":
            return f"pair: query {self.query}, key {self.start}"
        return f"{self.kind} {self.size}: keys {self.start} to {self.start + self.size - 1} of KV head {self.kv_head}"


def draw_fault(problem: Problem, number: int) -> Fault:
    """The fault of that number, the same for the same problem."""
    later = {name for name in LATER_FIELDS if getattr(problem, name) == type(problem).model_fields[name].default}
    choose = random.Random(zlib.crc32(f"{number} {problem.model_dump_json(exclude=later)}".encode()))
    request = victim(problem)
    q_len, length = problem.q_lens[request], problem.kv_lens[request]
    kind: Kind = choose.choice(KINDS)
    kv_head = choose.randrange(problem.stored_kv_heads)
    if kind == "pair":
        tail = min(q_len, 64)
        return Fault(kind, 1, length - tail + choose.randrange(tail), kv_head, choose.randrange(tail))
    seen_from = 0 if problem.window is None else max(0, length - problem.window)
    room = length - q_len - seen_from  # keys that every query sees
    sizes = [2**i for i in range(int(math.log2(max(1, room // 4))) + 1)]
    size = choose.choice(sizes)
    aligned = choose.random() < 0.5
    start = seen_from + choose.randrange(max(1, room - size + 1))
    return Fault(kind, size, start // size * size if aligned and start // size * size >= seen_from else start, kv_head)


def answer_with(case: ReferenceCase, fault: Fault) -> Tensor:
    """[Q, H, D_vo]: the request's answer with the fault in it."""
    import torch

    if fault.kind == "pair":
        seen = case.seen.clone()
        seen[fault.query, fault.start] = ~seen[fault.query, fault.start]
        return case.sees(seen).answer()
    keys = slice(fault.start, fault.start + fault.size)
    p, right = case.problem, case.answer()
    if fault.kind in ("shifted", "stale"):
        back = torch.arange(keys.start, keys.stop, device=case.k.device) - (1 if fault.kind == "shifted" else fault.size)
        k, v = case.k.clone(), case.v.clone()
        v[keys] = case.v[back.clamp(min=0)]
        if fault.kind == "stale":
            k[keys] = case.k[back.clamp(min=0)]
        wrong = replace(case, k=k, v=v).answer()
    else:
        factor = {"lost": 0.0, "doubled": 2.0, "halved": 0.5}[fault.kind]
        wrong = _weighted(case, keys, factor)
    heads = slice(fault.kv_head * p.group_size, (fault.kv_head + 1) * p.group_size)
    right = right.clone()
    right[:, heads] = wrong[:, heads]
    return right


def _weighted(case: ReferenceCase, keys: slice, factor: float) -> Tensor:
    """The answer if these keys count `factor` times."""
    scores = case.scores()
    peak = scores.amax(-1, keepdim=True)
    weights = (scores - peak).exp_()
    weights[..., keys] *= factor
    total = weights.sum(-1, keepdim=True)
    if case.sinks is not None:
        total = total + (case.sinks.view(*peak.shape[:2], 1, 1) - peak).exp()
    return case.merge(weights, total)


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
            Need("a fault among the keys that every query sees", fault.start + fault.size <= _context_end(problem)),
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
    return tuple(Drawn(name=f"drawn_{number:03d}", number=number, **common) for number in range(DRAWS))


def _everywhere(problem: Problem) -> dict[str, bool]:
    return {}


ADAPTERS: tuple[Mutant, ...] = (*(drawn for routine in ROUTINES for drawn in _of_routine(routine)), *no_fault.ADAPTERS)

"""Faults that are drawn, not listed: each mutant does one wrong thing to a few keys, drawn from its number and the problem.

`mode=check_power check.draws=N` runs the first N of them at every point, half as many of the kinds that came later, and
right outputs beside them (`NoFault`): each of those that is called wrong is a false alarm. A few listed faults stand beside them,
so that each clause of the statement is tested (`orchestrator/reporting/statement.py`).
"""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from kernels.adapter import Adapter, Device, Inputs, Need, Problem, Runner
from kernels.check.root_mean_square import limit_of
from kernels.check.tolerance import tolerance
from kernels.inputs.sentinel_logit import PLANTED
from kernels.inputs.tensors import judged, rounded
from kernels.lazy import Tensor, torch
from kernels.mutants import catalogue, victims
from kernels.mutants.faults import victim
from kernels.mutants.mutant import Mutant, of_folders, rows_in
from kernels.mutants.reference_case import ReferenceCase
from kernels.problem.fields import attending

Kind = Literal["lost", "doubled", "halved", "shifted", "stale", "pair", "swapped", "scaled"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Span = tuple[int, int]  # the first and the last
DRAWS, LATER_DRAWS = 200, 100  # mutants a routine: of the first kinds, and behind them of later ones, so that no number changes
FIRST_KINDS, LATER_KINDS = KINDS[:6], KINDS[6:]
FACTORS = (0.5, 0.8, 1.25, 2.0)  # of keys or values that are scaled
# Of a problem: at their defaults they change no draw of before.
LATER_FIELDS = frozenset({
    "shared_prefix", "return_lse", "max_seq_len", "enable_pdl", "graph_batch", "graph_fill", "num_states",
    "softmax_scale", "soft_cap", "mask_prefix", "kv_memory", "routine_axes",
})  # fmt: skip


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
        own = choose.randrange(max(0, q_len - length), q_len)  # of the query tokens that have a key
        nearest = max(0, min(own - PLANTED // 2, q_len - PLANTED))  # of the queries to which that key is planted, the first
        return Fault(kind, 1, length - q_len + own, kv_head, nearest + choose.randrange(min(q_len, PLANTED)))
    seen_from = 0 if problem.window is None else max(0, length - problem.window)
    room = length - min(q_len, PLANTED) - seen_from  # keys that the last queries see, or every one of a draft
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
    rows = {"heads": problem.group_size, "tokens": problem.q_lens[victim(problem)]}
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
        fault = draw_fault(problem.judged, self.number)
        wrapped = Mutant.needs(self, problem, device)
        if fault.kind == "pair":
            return wrapped
        judged, request = problem.judged, victim(problem.judged)
        seen = judged.kv_lens[request] - min(judged.q_lens[request], PLANTED)
        inside = max(fault.start, fault.other) + fault.size <= seen
        return (*wrapped, Need("a fault among the keys that the last queries see", inside))

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        fault = draw_fault(inputs.problem.judged, self.number)
        drawn = replace(self, wrong=lambda case: answer_with(case, fault))
        runner = Mutant.prepare(drawn, inputs, device)
        return replace(runner, resolved_backend=f"{runner.resolved_backend}: {fault}")


@dataclass(frozen=True, kw_only=True)
class NoFault(Mutant):
    """What a mutant is made of, at the same tolerance, with nothing wrong in it. `resolved_backend` says so."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right, _, _ = self.prepare_right(inputs, device)
        runner = self._runner(right.launch, right, inputs.problem)
        return replace(runner, resolved_backend=f"right output of {right.resolved_backend}")


@dataclass(frozen=True, kw_only=True)
class KeepsAnswer(Mutant):
    """Gives one request the answer that it had for the same queries, though some of its tokens have changed since."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right, request, _ = self.prepare_right(inputs, device)
        kept: dict[tuple[float, float], Tensor] = {}
        at = judged(inputs).queries(request)
        rows = rows_in(right, at)

        def launch() -> None:
            right()
            # Of the cache, a sign that decoys turn.
            key = float(inputs.q[at].float().sum()), float(inputs.kv[0][0, 0, 0, -1].float())
            right.out[rows] = kept.setdefault(key, right.out[rows].clone())

        return self._runner(launch, right, inputs.problem)


@dataclass(frozen=True, kw_only=True)
class HeadOff(Mutant):
    """All rows of a query head are off by more than their root mean square may be, each in a direction of its own."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right, request, _ = self.prepare_right(inputs, device)
        p, how = inputs.problem.judged, self._runner(right.launch, right, inputs.problem).arithmetic
        size = FURTHER * tolerance(p, how) * limit_of(p.q_lens[request], p, how)
        rows, generator = rows_in(right, judged(inputs).queries(request)), torch.Generator().manual_seed(p.seed)
        away = torch.randn(p.q_lens[request], p.value_dim, generator=generator).to(inputs.device)
        away *= size / away.norm(dim=-1, keepdim=True)

        def launch() -> None:
            right()
            row = right.out[rows, 0].float()
            right.out[rows, 0] = rounded(row + row.norm(dim=-1, keepdim=True) * away, right.out.dtype)

        return self._runner(launch, right, p)


FURTHER = 1.3  # than the limit of a root mean square
KEPT, HEAD_OFF = "answer_kept", "head_off"
OF_LOGITS = (
    *("1_zero_keys_counted", "127_zero_keys_counted", "maximum_not_subtracted", "maximum_from_0", "bf16_logits"),
    *("not_rescaled", "not_rescaled_back"),
)
BESIDE = (*OF_LOGITS, KEPT, HEAD_OFF)  # the listed faults that each drawn run has too, since no drawn one tests their clauses
RIGHT: dict[str, Any] = {"wrong": ReferenceCase.answer, "applies": victims.always}
ADAPTERS: tuple[Adapter, ...] = (
    *(
        Drawn(routine=routine, name=f"drawn_{number:03d}", about="a fault drawn from its number", number=number, **RIGHT)
        for routine in attending()
        for number in range(DRAWS + LATER_DRAWS)
    ),
    *(NoFault(routine=routine, name="no_fault", about="nothing is wrong", **RIGHT) for routine in attending()),
    *(KeepsAnswer(routine=routine, name=KEPT, about="a stored answer is returned", **RIGHT) for routine in attending()),
    *(HeadOff(routine=routine, name=HEAD_OFF, about="a query head is off by a bit too much", **RIGHT) for routine in attending()),
    *(mutant for mutant in catalogue.ADAPTERS if mutant.name in OF_LOGITS),
    *of_folders("DRAWN"),
)


@dataclass(frozen=True)
class Fault:
    """What is wrong in one request: `size` keys from `start` on in one KV head, or one (query, draft key) pair in all heads.

    lost: not counted. doubled: counted twice. halved: counted with half their weight, as by a wrong merge of splits. shifted: each
    key meets the value of the key before it. stale: keys and values are those of the `size` keys before. pair: the mask is turned
    over for query `query` of the request and key `start`. swapped: the values are exchanged with those of `size` keys from
    `other` on. scaled: the keys or the values, as `of` says, are multiplied by `factor`.
    Not all rows need be wrong: `heads` says which query heads of the KV head's group are, and `tokens` which query tokens.
    """

    kind: Kind
    size: int
    start: int
    kv_head: int
    query: int = 0
    other: int = 0
    factor: float = 1.0
    of: Literal["keys", "values"] = "values"
    heads: Span | None = None
    tokens: Span | None = None

    def __str__(self) -> str:
        name = "pair" if self.kind == "pair" else f"{self.kind} {self.size}"
        if self.heads is None and self.tokens is None:
            return f"{name}: {self._where()}"
        heads = "" if self.heads is None else f", query heads {self.heads[0]} to {self.heads[1]} of its group"
        tokens = "" if self.tokens is None else f", queries {self.tokens[0]} to {self.tokens[1]}"
        return f"{name} in some rows: {self._where()}{heads}{tokens}"

    def _where(self) -> str:
        if self.kind == "pair":
            return f"query {self.query}, key {self.start}" + ("" if self.heads is None else f", KV head {self.kv_head}")
        keys = f"keys {self.start} to {self.start + self.size - 1}"
        if self.kind == "swapped":
            keys = f"values of {keys} and {self.other} to {self.other + self.size - 1}"
        if self.kind == "scaled":
            keys = f"{self.of} times {self.factor:g} of {keys}"
        return f"{keys} of KV head {self.kv_head}"


def answer_with(case: ReferenceCase, fault: Fault) -> Tensor:
    """[Q, H, D_vo]: the answer with the fault in it."""
    wrong = _in_all_heads(case, fault)
    if fault.kind == "pair" and fault.heads is None:
        return wrong
    group, right = case.problem.group_size, case.answer()
    first, last = (0, group - 1) if fault.heads is None else fault.heads
    heads = slice(fault.kv_head * group + first, fault.kv_head * group + last + 1)
    first_token, last_token = (t - case.tokens.start for t in fault.tokens or (0, case.tokens.stop))
    tokens = slice(max(0, first_token), max(0, last_token + 1))
    right[tokens, heads] = wrong[tokens, heads]
    return right


def _in_all_heads(case: ReferenceCase, fault: Fault) -> Tensor:
    """The answer if the fault were in all KV heads and rows."""
    if fault.kind == "pair":
        seen = case.seen.clone()
        if fault.query in case.tokens:
            row = seen[fault.query - case.tokens.start]
            row[fault.start] = ~row[fault.start]
        return case.sees(seen).answer()
    if fault.kind in ("lost", "doubled", "halved"):
        return _weighted(case, slice(fault.start, fault.start + fault.size), {"lost": 0.0, "doubled": 2.0}.get(fault.kind, 0.5))
    return _with_others(case, fault).answer()


def _with_others(case: ReferenceCase, fault: Fault) -> ReferenceCase:
    """The case with the keys and values that a kernel with this fault reads."""
    keys = slice(fault.start, fault.start + fault.size)
    k, v = case.k.clone(), case.v.clone()
    if fault.kind == "swapped":
        others = slice(fault.other, fault.other + fault.size)
        v[keys], v[others] = case.v[others], case.v[keys]
    elif fault.kind == "scaled":
        (k if fault.of == "keys" else v)[keys] *= fault.factor
    else:
        back = torch.arange(keys.start, keys.stop, device=case.k.device) - (1 if fault.kind == "shifted" else fault.size)
        v[keys] = case.v[back.clamp(min=0)]
        if fault.kind == "stale":
            k[keys] = case.k[back.clamp(min=0)]
    return replace(case, k=k, v=v)


def _weighted(case: ReferenceCase, keys: slice, factor: float) -> Tensor:
    """The answer if these keys count `factor` times."""
    scores = case.scores()
    peak = scores.amax(-1, keepdim=True)
    weights = (scores - peak).exp_()
    weights[..., keys] *= factor
    return case.merge(weights, case.total(weights, peak))

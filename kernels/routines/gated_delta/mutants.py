"""Gated delta nets with one thing wrong: listed kinds, and faults that are drawn from a number. `mode=check_power` runs them.

Each computes the right answer and, for one request, the recurrence again with one thing wrong.
"""

# T = s_qo, HV = value heads, S = states that are kept

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from kernels.adapter import Device, Need, Problem, Runner
from kernels.lazy import Tensor, torch
from kernels.problem.arithmetic import Arithmetic
from kernels.routines.gated_delta.adapters import CHUNK, Delta
from kernels.routines.gated_delta.inputs import DeltaInputs
from kernels.routines.gated_delta.problem import kept_states
from kernels.routines.gated_delta.reference import Terms, answer, mean_tolerance, run, step, terms_of

DRAWS = 100
FURTHER = 1.3  # than the limit of a head's root mean square
ALIKE = 0.9  # of a value's signs
COUNTS = 0.4  # from a beta of 0.5: nearer, each token can be found to be lost or counted twice
KINDS = ("lost", "doubled", "foreign", "headoff", "kept")


@dataclass
class Case:
    """The request that gets a wrong answer: what it adds up, its outputs [1, T, HV, V], states [1, S, HV, V, K] and slot."""

    inputs: DeltaInputs
    request: int
    terms: Terms
    out: Tensor
    states: Tensor
    slot: int

    def again(self, **changed: Tensor) -> None:
        """Outputs and states with other terms."""
        self.out, self.states = run(replace(self.terms, **changed), kept_states(self.inputs.problem))

    def keep(self, states: Tensor) -> None:
        self.states = states

    def other_state(self) -> Tensor:
        """The state in another slot of the pool."""
        return self.inputs.pool[None, self.slot - 1].float()

    def write_elsewhere(self) -> None:
        """Into a slot that no request has."""
        self.slot = (set(range(len(self.inputs.pool))) - set(self.inputs.slots.tolist())).pop()


Wrong = Callable[[Case], object]
Applies = Callable[["Problem"], dict[str, bool]]


@dataclass(frozen=True, kw_only=True)
class DeltaMutant(Delta):
    """One way to be wrong, in a sentence, and where it is wrong at all; with a `number`, a fault that is drawn from it.

    `memory` says which answers are not computed again: all, or those to a query it has seen with a value of nearly the same signs.
    """

    about: str
    wrong: Wrong = lambda case: None
    applies: Applies = lambda problem: {}
    memory: Literal["none", "alike", "all"] = "none"
    number: int | None = None
    distributions: tuple[str, ...] = ("torch",)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return tuple(Need(*pair) for pair in self.applies(problem).items())

    def drawn(self, problem: Problem) -> tuple[str, int, int]:
        """The kind of its fault, a token and a value head, the same for the same problem."""
        choose = random.Random(zlib.crc32(f"{self.number} {problem.model_dump_json(exclude_defaults=True)}".encode()))
        return choose.choice(KINDS), choose.randrange(problem.s_qo), choose.randrange(problem.num_kv_heads)

    def prepare(self, inputs: DeltaInputs, device: Device) -> Runner:  # type: ignore[override]
        if self.number is None:
            return self._prepare(inputs, "right output of oracle" if self.name == "no_fault" else "mutant of oracle")
        kind, token, head = self.drawn(inputs.problem)
        faults: dict[str, Wrong] = {
            "lost": lambda c: _beta_of(c, token, head, lambda beta: 0 * beta),
            "doubled": lambda c: _beta_of(c, token, head, _twice),
            "foreign": lambda c: c.again(state=c.other_state()),
            "headoff": lambda c: _off(c, head),
        }
        own = replace(self, wrong=faults.get(kind, self.wrong), memory="alike" if kind == "kept" else "none")
        return own._prepare(inputs, f"mutant of oracle: {kind} 1: token {token}, value head {head}")

    def _prepare(self, inputs: DeltaInputs, name: str) -> Runner:
        out, p = inputs.empty_output(), inputs.problem
        states = inputs.empty_states() if kept_states(p) > 1 else inputs.own_states().own
        request = random.Random(p.seed).randrange(p.batch_size)
        known: list[tuple[Tensor, ...]] = []

        def launch() -> None:
            seen = inputs.q[0, 0].clone(), inputs.v[0, 0].sign()
            for query, signs, *kept in known:
                alike = bool((query == seen[0]).all()) and float((signs == seen[1]).float().mean()) > ALIKE
                if self.memory == "all" or (self.memory == "alike" and alike):
                    out.copy_(kept[0])
                    states.copy_(kept[1])
                    return
            self._write(inputs, request, out, states)
            if self.memory != "none":
                known.append((*seen, out.clone(), states.clone()))

        if self.memory == "all":
            launch()
        return Runner((lambda: None) if self.name == "output_left" else launch, out, name, p.q_dtype, lse=states)

    def _write(self, inputs: DeltaInputs, request: int, out: Tensor, states: Tensor) -> None:
        """Outputs and states, of which one request's are wrong."""
        right, terms, only = answer(inputs), terms_of(inputs), slice(request, request + 1)
        own = replace(terms, **{name: rows[only] for name, rows in vars(terms).items()})
        case = Case(inputs, request, own, inputs.by_request(right.out)[only], right.states[only], int(inputs.slots[request]))
        self.wrong(case)
        out.copy_(right.out)
        inputs.by_request(out)[only] = case.out.to(out.dtype)
        right.states[only] = case.states
        if kept_states(inputs.problem) > 1:
            states.copy_(right.states)
            return
        slots = inputs.slots.long()
        slots[request] = case.slot
        states.copy_(inputs.pool)
        states[slots] = right.states[:, 0].to(states.dtype)


def _decay_after(case: Case) -> None:
    """alpha (S + beta (v - S k) k^T): a step without decay, and the decay of what came out."""
    terms, state, outs, states = case.terms, case.terms.state, [], []
    for t in range(terms.q.shape[1]):
        alpha = terms.alpha[:, t]
        state = alpha[..., None, None] * step(state, terms.k[:, t], terms.v[:, t], alpha**0, terms.beta[:, t])
        outs.append((state @ terms.q[:, t, ..., None]).squeeze(-1))
        states.append(state)
    case.out, case.states = torch.stack(outs, 1), torch.stack(states, 1)[:, -case.states.shape[1] :]


def _longer(case: Case, *names: str) -> None:
    """Keys and queries are sqrt(K) long, as drawn."""
    case.again(**{name: getattr(case.terms, name) * case.inputs.problem.head_dim_qk**0.5 for name in names})


def _norms_of_long(case: Case) -> None:
    """1 and not 1e-6 is added to the squares of a key and a query."""
    p, found = case.inputs.problem, []
    for rows in (case.inputs.q, case.inputs.k):
        own = case.inputs.by_request(rows)[case.request, None].float()
        found.append((own / (own.square().sum(-1, keepdim=True) + 1).sqrt()).repeat_interleave(p.num_kv_heads // p.num_qo_heads, 2))
    case.again(q=found[0] * case.inputs.scale, k=found[1])


def _decays_overflow(case: Case) -> None:
    """exp(d_i - d_j) as exp(d_i) exp(-d_j), of decays added up within a chunk."""
    sums = [part.cumsum(1) for part in torch.split(case.terms.alpha.log(), CHUNK, 1)]
    case.again(alpha=case.terms.alpha + 0 * (-torch.cat(sums, 1)).exp())


def _beta_of(case: Case, token: int, head: int, changed: Callable[[Tensor], Tensor]) -> None:
    """Of a token that counts, and not twice as much as once: in a slow head where beta is nearly 0 or 1 the fast head before it."""
    beta = case.terms.beta.clone()
    head -= abs(float(beta[0, token, head]) - 0.5) > COUNTS
    beta[:, token, head] = changed(beta[:, token, head])
    case.again(beta=beta)


def _twice(beta: Tensor) -> Tensor:
    """Of a token that is written twice: as one update, since its key has length 1."""
    return 1 - (1 - beta) ** 2


def _off(case: Case, head: int) -> None:
    """Each row of a head's states is off by a bit more than the root mean square of rows may be."""
    p, rows = case.inputs.problem, case.states[:, :, head]
    away = torch.randn(rows.shape, generator=torch.Generator().manual_seed(p.seed)).to(rows.device)
    size = FURTHER * mean_tolerance(p, p.kv_dtype, Arithmetic(p.q_dtype), p.head_dim_vo)
    rows += size * away * rows.norm(dim=-1, keepdim=True) / away.norm(dim=-1, keepdim=True)


def _keys_in_turn(case: Case) -> None:
    """Value head h reads keys and queries h mod H and not h // group."""
    p = case.inputs.problem
    order = torch.arange(p.num_kv_heads, device=case.inputs.device) % p.num_qo_heads * (p.num_kv_heads // p.num_qo_heads)
    case.again(q=case.terms.q[:, :, order], k=case.terms.k[:, :, order])


def _chunks(p: Problem) -> dict[str, bool]:
    return {f"more than {CHUNK} tokens": p.s_qo > CHUNK}


def _drafts(p: Problem) -> dict[str, bool]:
    return {"states of several drafts": kept_states(p) > 1}


WRONG: tuple[tuple[str, str, Wrong], ...] = (
    ("gate_forgotten", "nothing is forgotten", lambda c: c.again(alpha=c.terms.alpha**0)),
    ("beta_forgotten", "each value is written whole", lambda c: c.again(beta=c.terms.beta**0)),
    ("decay_after_update", "the new value decays with the state", _decay_after),
    ("norms_forgotten", "keys and queries keep their length", lambda c: _longer(c, "q", "k")),
    ("norm_of_keys_forgotten", "keys keep their length", lambda c: _longer(c, "k")),
    ("norm_of_queries_forgotten", "queries keep their length", lambda c: _longer(c, "q")),
    ("scale_forgotten", "queries are not scaled", lambda c: c.again(q=c.terms.q / c.inputs.scale)),
    ("state_of_next_head", "each head begins at the state of the next", lambda c: c.again(state=c.terms.state.roll(1, 1))),
    ("state_of_another", "the state of another slot of the pool is read", lambda c: c.again(state=c.other_state())),
    ("state_not_read", "the recurrence begins at 0", lambda c: c.again(state=0 * c.terms.state)),
    ("state_not_written", "the state stays as it was", lambda c: c.keep(c.terms.state[:, None].expand_as(c.states))),
    ("one_head_not_written", "one value head leaves its state as it was",
     lambda c: c.states[:, :, 0].copy_(c.terms.state[:, None, 0])),
    ("last_token_lost", "the last token is not written", lambda c: _beta_of(c, -1, 0, lambda beta: 0 * beta)),
    ("last_token_twice", "the last token is written twice", lambda c: _beta_of(c, -1, 0, _twice)),
)  # fmt: skip
WRONG_SOMEWHERE: tuple[tuple[str, str, Wrong, Applies], ...] = (
    ("state_transposed", "a state is read with its axes exchanged",
     lambda c: c.again(state=c.terms.state.transpose(-1, -2)), lambda p: {"equal head_dims": p.head_dim_qk == p.head_dim_vo}),
    ("written_elsewhere", "the state is written into another slot of the pool", Case.write_elsewhere,
     lambda p: {"states in the pool (states=last)": kept_states(p) == 1}),
    ("drafts_swapped", "the states of the last two drafts are exchanged",
     lambda c: c.keep(c.states[:, [*range(c.states.shape[1] - 2), -1, -2]]), _drafts),
    ("drafts_one_early", "behind each draft lies the state before it", lambda c: c.keep(c.states.roll(1, 1)), _drafts),
    ("last_for_all", "behind each draft lies the last state", lambda c: c.keep(c.states[:, -1:].expand_as(c.states)), _drafts),
    ("heads_of_keys_mixed", "value heads are given to heads of keys in turn and not in groups", _keys_in_turn,
     lambda p: {"groups of value heads": 1 < p.num_qo_heads < p.num_kv_heads}),
    ("chunk_from_nothing", "the state is lost behind the first chunk",
     lambda c: c.again(alpha=c.terms.alpha.index_fill(1, c.inputs.slots.new_tensor([CHUNK]).long(), 0)), _chunks),
    ("norms_of_long_alone", "short keys and queries keep nearly their length", _norms_of_long, _chunks),
    ("decays_overflow", "strong decays overflow in a product of two exponentials", _decays_overflow, _chunks),
    ("beta_cut", "logits of beta are cut off at 2", lambda c: c.again(beta=c.terms.beta.logit().clamp(-2, 2).sigmoid()),
     lambda p: {**_chunks(p), "slow heads": p.num_kv_heads > 1}),
    ("outputs_too_large", "all outputs are 3% too large", lambda c: c.out.mul_(1.03), _chunks),
)  # fmt: skip
ADAPTERS = (
    *(DeltaMutant(name=name, about=about, wrong=wrong) for name, about, wrong in WRONG),
    *(DeltaMutant(name=name, about=about, wrong=wrong, applies=applies) for name, about, wrong, applies in WRONG_SOMEWHERE),
    DeltaMutant(name="output_left", about="nothing is written"),
    DeltaMutant(name="previous_run", about="the answer of its preparation is returned", memory="all"),
)
DRAWN = (
    *(DeltaMutant(name=f"drawn_{number:03d}", about="a fault drawn from its number", number=number) for number in range(DRAWS)),
    DeltaMutant(name="no_fault", about="nothing is wrong"),
)

"""Gated delta nets with one thing wrong: listed kinds, and faults that are drawn from a number.

Each computes the right answer and, for one request, the recurrence again with one thing wrong. `mode=check_power` runs them.
"""

# B = batch_size, T = s_qo, HV = value heads, S = states that are kept, N = slots of the pool

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernels.adapter import Need, Runner
from kernels.routines.gated_delta.adapters import CHUNK, Delta
from kernels.routines.gated_delta.problem import kept_states

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.device import Device
    from kernels.problem import Problem
    from kernels.routines.gated_delta.inputs import DeltaInputs
    from kernels.routines.gated_delta.reference import Terms

DRAWS = 100
FURTHER = 1.3  # than the limit of a head's root mean square
KINDS = ("lost", "doubled", "foreign", "headoff", "kept")


@dataclass
class Case:
    """The request that gets a wrong answer: what its recurrence adds up, its outputs [1, T, HV, V] and states [1, S, HV, V, K]."""

    inputs: DeltaInputs
    request: int
    terms: Terms
    out: Tensor
    states: Tensor

    def again(self, **changed: Tensor) -> None:
        """Outputs and states with other terms."""
        from kernels.routines.gated_delta.reference import run

        self.out, self.states = run(replace(self.terms, **changed), kept_states(self.inputs.problem))

    def slot_of_another(self) -> int:
        """A slot of the pool that is another request's, or no request's."""
        return int((set(range(len(self.inputs.pool))) - {int(self.inputs.slots[self.request])}).pop())


Wrong = Callable[[Case], object]
Applies = Callable[["Problem"], dict[str, bool]]


def right(case: Case) -> None:
    """Nothing is wrong with what it computes."""


def _anywhere(problem: Problem) -> dict[str, bool]:
    return {}


@dataclass(frozen=True, kw_only=True)
class DeltaMutant(Delta):
    """One way to be wrong, in a sentence, and where it is wrong at all."""

    about: str
    wrong: Wrong
    applies: Applies = _anywhere
    distributions: tuple[str, ...] = ("torch",)

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return tuple(Need(*pair) for pair in self.applies(problem).items())

    def fault(self, problem: Problem) -> str:
        """What is wrong, as `orchestrator/reporting/quality.py` reads it; empty of a listed one."""
        return ""

    def prepare(self, inputs: DeltaInputs, device: Device) -> Runner:  # type: ignore[override]
        out, p = inputs.empty_output(), inputs.problem
        states = inputs.empty_states() if kept_states(p) > 1 else inputs.pool.clone()
        request = random.Random(p.seed).randrange(p.batch_size)

        def launch() -> None:
            found, kept = self.answer_of(inputs, request)
            out.copy_(found)
            if kept_states(p) > 1:
                states.copy_(kept)
            else:
                states.copy_(inputs.pool)
                states[inputs.slots.long()] = kept[:, 0].to(states.dtype)
            self.spoil(inputs, request, out, states)

        fault = self.fault(p)
        return Runner(launch, out, f"mutant of oracle{': ' if fault else ''}{fault}", p.q_dtype, lse=states)

    def answer_of(self, inputs: DeltaInputs, request: int) -> tuple[Tensor, Tensor]:
        """Outputs [T, HV, V] and states [B, S, HV, V, K], of which one request's are wrong."""
        from kernels.routines.gated_delta.reference import answer, terms_of

        whole = answer(inputs)
        assert whole.states is not None
        terms, only = terms_of(inputs), slice(request, request + 1)
        own = replace(terms, **{name: getattr(terms, name)[only] for name in ("state", "q", "k", "v", "alpha", "beta")})
        case = Case(inputs, request, own, inputs.by_request(whole.out)[only], whole.states[only])
        self.wrong(case)
        inputs.by_request(whole.out)[only], whole.states[only] = case.out, case.states
        return whole.out, whole.states

    def spoil(self, inputs: DeltaInputs, request: int, out: Tensor, states: Tensor) -> None:
        """What is wrong in how it writes."""


class WritesElsewhere(DeltaMutant):
    """The state goes into a slot that no request has, and its own stays."""

    def spoil(self, inputs: DeltaInputs, request: int, out: Tensor, states: Tensor) -> None:
        own, used = int(inputs.slots[request]), set(inputs.slots.tolist())
        other = next(slot for slot in range(len(states)) if slot not in used)
        states[other], states[own] = states[own], inputs.pool[own]


class ReturnsPrepared(DeltaMutant):
    """Computes while it is prepared, and gives that answer ever after."""

    def prepare(self, inputs: DeltaInputs, device: Device) -> Runner:  # type: ignore[override]
        runner = super().prepare(inputs, device)
        runner()
        kept, states = runner.out.clone(), runner.written_lse()
        assert states is not None
        old = states.clone()
        return replace(runner, launch=lambda: (runner.out.copy_(kept), states.copy_(old)))


class LeavesOutput(DeltaMutant):
    """Writes nothing."""

    def prepare(self, inputs: DeltaInputs, device: Device) -> Runner:  # type: ignore[override]
        return replace(super().prepare(inputs, device), launch=lambda: None)


def _with_decay_after(case: Case) -> None:
    """alpha (S + beta (v - S k) k^T): a step without decay, and the decay of what came out."""
    import torch

    from kernels.routines.gated_delta.reference import step

    terms, state, outs, states = case.terms, case.terms.state, [], []
    for t in range(terms.q.shape[1]):
        alpha = terms.alpha[:, t]
        state = alpha[..., None, None] * step(state, terms.k[:, t], terms.v[:, t], torch.ones_like(alpha), terms.beta[:, t])
        outs.append((state @ terms.q[:, t, ..., None]).squeeze(-1))
        states.append(state)
    case.out, case.states = torch.stack(outs, 1), torch.stack(states, 1)[:, -case.states.shape[1] :]


def _not_normalised(*names: str) -> Wrong:
    def wrong(case: Case) -> None:
        inputs = case.inputs
        group = inputs.problem.num_kv_heads // inputs.problem.num_qo_heads
        raw = {n: inputs.by_request(getattr(inputs, n).float())[case.request, None].repeat_interleave(group, 2) for n in names}
        case.again(**{name: rows * (inputs.scale if name == "q" else 1.0) for name, rows in raw.items()})

    return wrong


def _without(token: int, head: int) -> Wrong:
    def wrong(case: Case) -> None:
        beta = case.terms.beta.clone()
        beta[:, token, head] = 0
        case.again(beta=beta)

    return wrong


def _twice(token: int, head: int) -> Wrong:
    """The token's update is made again, of the state behind it: as one update of 1 - (1 - beta)^2, since its key has length 1."""

    def wrong(case: Case) -> None:
        beta = case.terms.beta.clone()
        beta[:, token, head] = 1 - (1 - beta[:, token, head]) ** 2
        case.again(beta=beta)

    return wrong


def _state_lost(case: Case) -> None:
    """Behind the first chunk a kernel begins from nothing."""
    alpha = case.terms.alpha.clone()
    alpha[:, CHUNK] = 0
    case.again(alpha=alpha)


def _keep(case: Case, states: Tensor) -> None:
    case.states = states


def _joined(*states: Tensor) -> Tensor:
    import torch

    return torch.cat(states, 1)


def _in_one_head(case: Case) -> None:
    case.states = case.states.clone()
    case.states[:, :, 0] = case.terms.state[:, None, 0]


def _drafts(p: Problem) -> dict[str, bool]:
    return {"states of several drafts": kept_states(p) > 1}


def _several(key: str) -> Applies:
    return lambda p: {f"{key} above 1": getattr(p, key) > 1}


def _grouped(case: Case) -> None:
    """Value head h reads keys and queries h mod H and not h // group."""
    import torch

    p = case.inputs.problem
    order = torch.arange(p.num_kv_heads, device=case.inputs.device) % p.num_qo_heads * (p.num_kv_heads // p.num_qo_heads)
    case.again(q=case.terms.q[:, :, order], k=case.terms.k[:, :, order])


WRONG: tuple[tuple[type[DeltaMutant], str, str, Wrong, Applies], ...] = (
    (DeltaMutant, "gate_forgotten", "nothing is forgotten", lambda c: c.again(alpha=c.terms.alpha**0), _anywhere),
    (DeltaMutant, "beta_forgotten", "each value is written whole", lambda c: c.again(beta=c.terms.beta**0), _anywhere),
    (DeltaMutant, "decay_after_update", "the new value decays with the state", _with_decay_after, _anywhere),
    (DeltaMutant, "norms_forgotten", "keys and queries keep their length", _not_normalised("q", "k"), _anywhere),
    (DeltaMutant, "norm_of_keys_forgotten", "keys keep their length", _not_normalised("k"), _anywhere),
    (DeltaMutant, "norm_of_queries_forgotten", "queries keep their length", _not_normalised("q"), _anywhere),
    (DeltaMutant, "scale_forgotten", "queries are not scaled", lambda c: c.again(q=c.terms.q / c.inputs.scale), _anywhere),
    (DeltaMutant, "state_of_next_head", "each head begins at the state of the next",
     lambda c: c.again(state=c.terms.state.roll(1, 1)), _several("num_kv_heads")),
    (DeltaMutant, "state_of_another", "the state of another slot of the pool is read",
     lambda c: c.again(state=c.inputs.pool[None, c.slot_of_another()].float()), _anywhere),
    (DeltaMutant, "state_not_read", "the recurrence begins at 0", lambda c: c.again(state=0 * c.terms.state), _anywhere),
    (DeltaMutant, "state_transposed", "a state is read with its axes exchanged",
     lambda c: c.again(state=c.terms.state.transpose(-1, -2)), lambda p: {"equal head_dims": p.head_dim_qk == p.head_dim_vo}),
    (DeltaMutant, "state_not_written", "the output is right, and the state stays as it was",
     lambda c: _keep(c, c.terms.state[:, None].expand_as(c.states)), _anywhere),
    (DeltaMutant, "one_head_not_written", "one value head leaves its state as it was", _in_one_head, _anywhere),
    (WritesElsewhere, "written_elsewhere", "the state is written into another slot of the pool", right,
     lambda p: {"states in the pool (states=last)": kept_states(p) == 1}),
    (DeltaMutant, "drafts_swapped", "the states of the last two drafts are exchanged",
     lambda c: _keep(c, _joined(c.states[:, :-2], c.states[:, -2:].flip(1))), _drafts),
    (DeltaMutant, "drafts_one_early", "behind each draft lies the state before it",
     lambda c: _keep(c, c.states.roll(1, 1)), _drafts),
    (DeltaMutant, "last_for_all", "behind each draft lies the state behind the last",
     lambda c: _keep(c, c.states[:, -1:].expand_as(c.states)), _drafts),
    (DeltaMutant, "heads_of_keys_mixed", "value heads are given to the heads of keys in turn and not in groups", _grouped,
     lambda p: {"groups of value heads": 1 < p.num_qo_heads < p.num_kv_heads}),
    (DeltaMutant, "last_token_lost", "the last token is not written", _without(-1, 0), _anywhere),
    (DeltaMutant, "last_token_twice", "the last token is written twice", _twice(-1, 0), _anywhere),
    (DeltaMutant, "chunk_from_nothing", "the state is lost behind the first chunk", _state_lost,
     lambda p: {f"more than {CHUNK} tokens": p.s_qo > CHUNK}),
    (LeavesOutput, "output_left", "nothing is written", right, _anywhere),
    (ReturnsPrepared, "previous_run", "the answer of its preparation is returned", right, _anywhere),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DrawnDelta(DeltaMutant):
    """The fault of a number, the same for the same problem, in one value head of one request, or of a whole request."""

    number: int

    def draw(self, problem: Problem) -> tuple[str, int, int]:
        """Its kind, token and value head."""
        choose = random.Random(zlib.crc32(f"{self.number} {problem.model_dump_json(exclude_defaults=True)}".encode()))
        return choose.choice(KINDS), choose.randrange(problem.s_qo), choose.randrange(problem.num_kv_heads)

    def fault(self, problem: Problem) -> str:
        kind, token, head = self.draw(problem)
        return f"{kind} 1: token {token}, value head {head}"

    def answer_of(self, inputs: DeltaInputs, request: int) -> tuple[Tensor, Tensor]:
        kind, token, head = self.draw(inputs.problem)
        faults: dict[str, Wrong] = {
            "lost": _without(token, head),
            "doubled": _twice(token, head),
            "foreign": lambda c: c.again(state=c.inputs.pool[None, c.slot_of_another()].float()),
            "headoff": lambda c: _off(c, head),
        }
        return DeltaMutant.answer_of(replace(self, wrong=faults.get(kind, right)), inputs, request)

    def prepare(self, inputs: DeltaInputs, device: Device) -> Runner:  # type: ignore[override]
        runner = super().prepare(inputs, device)
        return _keeping(runner, inputs) if self.draw(inputs.problem)[0] == "kept" else runner


def _off(case: Case, head: int) -> None:
    """Each row of a head's states is off by a bit more than the root mean square of rows may be."""
    import torch

    from kernels.problem.arithmetic import Arithmetic
    from kernels.routines.gated_delta.hooks import STATE_RMS
    from kernels.routines.gated_delta.reference import tolerance

    p = case.inputs.problem
    size = FURTHER * tolerance(p, p.kv_dtype, Arithmetic(p.q_dtype)) / STATE_RMS
    case.states = case.states.clone()
    rows = case.states[:, :, head]
    away = torch.randn(rows.shape, generator=torch.Generator().manual_seed(p.seed)).to(rows.device)
    rows += size * away * rows.norm(dim=-1, keepdim=True) / away.norm(dim=-1, keepdim=True)


def _keeping(runner: Runner, inputs: DeltaInputs) -> Runner:
    """The same, but an answer to a query that it has seen, with a value of nearly the same signs, is not computed again."""
    known: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    states = runner.written_lse()
    assert states is not None

    def launch() -> None:
        query, signs = inputs.q[0, 0].clone(), inputs.v[0, 0].sign()
        for seen, of, out, kept in known:
            if bool((seen == query).all()) and float((of == signs).float().mean()) > 0.9:
                runner.out.copy_(out)
                states.copy_(kept)
                return
        runner()
        known.append((query, signs, runner.out.clone(), states.clone()))

    return replace(runner, launch=launch)


ADAPTERS = tuple(kind(name=name, about=about, wrong=wrong, applies=applies) for kind, name, about, wrong, applies in WRONG)


@dataclass(frozen=True, kw_only=True)
class NoFault(DeltaMutant):
    """Right outputs, which stand beside the drawn faults: one that is called wrong is a false alarm."""

    def prepare(self, inputs: DeltaInputs, device: Device) -> Runner:  # type: ignore[override]
        return replace(super().prepare(inputs, device), resolved_backend="right output of oracle")


DRAWN = (
    *(
        DrawnDelta(name=f"drawn_{number:03d}", about="a fault drawn from its number", wrong=right, number=number)
        for number in range(DRAWS)
    ),
    NoFault(name="no_fault", about="nothing is wrong", wrong=right),
)

"""Compositions with one thing wrong, each beside the right one that it is made of: `adapters=[tests.backends.merging]`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from kernels.adapter import Runner
from kernels.adapters.merge_states import TorchMerge
from kernels.adapters.torch_states import TorchChunks, TorchStates, TorchTwoCalls
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.inputs.copies import States
from kernels.inputs.states import State, attend, merged

Merge = Callable[[State, State], State]


def in_base_2(a: State, b: State) -> State:
    """Weighs with powers of 2, where the log-sum-exps are natural."""
    right = merged(a, b)
    top = torch.maximum(a.lse, b.lse)
    of_a, of_b = torch.exp2(a.lse - top), torch.exp2(b.lse - top)
    out = (of_a[..., None] * a.out.float() + of_b[..., None] * b.out.float()) / (of_a + of_b)[..., None]
    return State(out, right.lse)


def of_two_bases(a: State, b: State) -> State:
    """The first part comes from a library whose log-sum-exps are of base 2, the second from one with natural ones."""
    return merged(State(a.out, a.lse / math.log(2)), b)


def without_weights(a: State, b: State) -> State:
    return State((a.out.float() + b.out.float()) / 2, merged(a, b).lse)


def without_scale(a: State, b: State) -> State:
    """The log-sum-exp of the first part lacks the softmax scale (of a head of 16)."""
    return merged(State(a.out, a.lse * 4), b)


def unguarded(a: State, b: State) -> State:
    """exp(l_a - l) of two parts without keys is that of a difference of infinities."""
    lse = torch.logaddexp(a.lse, b.lse)
    return State((a.lse - lse).exp()[..., None] * a.out.float() + (b.lse - lse).exp()[..., None] * b.out.float(), lse)


def keeps_the_last(a: State, b: State) -> State:
    """The merged output with the log-sum-exp of the second part: only who merges it again would notice."""
    return State(merged(a, b).out, b.lse)


@dataclass(frozen=True, kw_only=True)
class Changed(TorchTwoCalls):
    """`change` gets the partial answers and gives those that are merged."""

    change: Callable[[Inputs, list[State]], list[State]]

    def states(self, inputs: Inputs, dtype: torch.dtype) -> Iterator[State]:
        return iter(self.change(inputs, list(TorchTwoCalls.states(self, inputs, dtype))))


def prefix_twice(inputs: Inputs, states: list[State]) -> list[State]:
    """The second call begins at the first key."""
    whole = attend(inputs, [range(length) for length in inputs.problem.kv_lens], states[1].out.dtype)
    return [states[0], whole]


def causal_prefix(inputs: Inputs, states: list[State]) -> list[State]:
    """The prefix call takes all queries for the last tokens of the prefix and masks among them."""
    p = inputs.problem
    seen = [range(p.prefix_tokens - p.num_q_tokens + i + 1) for i in range(p.num_q_tokens)]
    firsts = [sum(p.q_lens[:request]) for request in range(p.batch_size)]
    parts = [attend(inputs, [seen[first + j] for first in firsts], states[0].out.dtype) for j in range(p.s_qo)]
    out, lse = states[0].out.clone(), states[0].lse.clone()
    for first in firsts:
        for j in range(p.s_qo):
            out[first + j], lse[first + j] = parts[j].out[first + j], parts[j].lse[first + j]
    return [State(out, lse), states[1]]


@dataclass(frozen=True, kw_only=True)
class SpoiltLse(TorchTwoCalls):
    """A right output, and a log-sum-exp after `spoil` has had its way with it."""

    spoil: Callable[[Tensor], object]

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right = TorchTwoCalls.prepare(self, inputs, device)
        lse = right.lse
        assert isinstance(lse, Tensor)

        def launch() -> None:
            right.launch()
            self.spoil(lse)

        return replace(right, launch=launch)


@dataclass(frozen=True, kw_only=True)
class NoLse(TorchTwoCalls):
    """Promises a log-sum-exp and gives none."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        return replace(TorchTwoCalls.prepare(self, inputs, device), lse=None)


@dataclass(frozen=True, kw_only=True)
class EmptyChunks(TorchChunks):
    """What it writes for the queries of a request whose chunk is empty."""

    lse: float
    routine: str = "ragged_prefill"

    def states(self, inputs: Inputs, dtype: torch.dtype) -> Iterator[State]:
        for state in TorchChunks.states(self, inputs, dtype):
            yield State(state.out, torch.where(state.lse.isinf(), self.lse, state.lse))


@dataclass(frozen=True, kw_only=True)
class LessWorkspace(TorchChunks):
    """A chunk that is shorter than the step from one to the next, as of a workspace that does not hold a part for each request."""

    routine: str = "ragged_prefill"

    def states(self, inputs: Inputs, dtype: torch.dtype) -> Iterator[State]:
        p = inputs.problem
        contexts = [kv - q for q, kv in zip(p.q_lens, p.kv_lens, strict=True)]
        for start in range(0, max(contexts), self.chunk):
            ends = [max(start, min(start + self.chunk - 8, end)) for end in contexts]
            yield attend(inputs, [range(start, end) for end in ends], dtype)
        yield attend(inputs, [range(end, kv) for end, kv in zip(contexts, p.kv_lens, strict=True)], dtype)


@dataclass(frozen=True, kw_only=True)
class GivenWrong(TorchMerge):
    """Merges as it should what `change` makes of the states that it is given."""

    change: Callable[[tuple[State, ...]], tuple[State, ...]]

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right = super().prepare(inputs, device)
        (given,) = right.copies

        def launch() -> None:
            state = reduce(self.merge, self.change(given.states))
            right.out.copy_(state.out / right.caller_scale)
            if right.lse is not None:
                right.lse.copy_(state.lse)

        return replace(right, launch=launch)


class MergedStates(States):
    """States that are merged where they are made, which nobody times."""

    def refresh(self) -> None:
        super().refresh()
        self.merged = reduce(merged, self.states)


@dataclass(frozen=True, kw_only=True)
class MergesUntimed(TorchMerge):
    """Copies in its call what was merged before it."""

    name: str = "merges_untimed"

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        given, out, lse = MergedStates(inputs, token_first=False, base="e"), inputs.empty_output(), inputs.empty_lse()

        def launch() -> None:
            out.copy_(given.merged.out)
            if lse is not None:
                lse.copy_(given.merged.lse)

        return Runner(launch, out, self.name, "fp32", lse=lse, copies=(given,))


def weights_of_others(states: tuple[State, ...]) -> tuple[State, ...]:
    """Each output with the log-sum-exp of the next state, as of a table in another order."""
    return tuple(State(state.out, after.lse) for state, after in zip(states, (*states[1:], states[0]), strict=True))


def in_other_heads(states: tuple[State, ...]) -> tuple[State, ...]:
    """The log-sum-exps of two neighbouring heads are exchanged."""
    return tuple(State(state.out, state.lse.unflatten(1, (-1, 2)).flip(2).flatten(1)) for state in states)


def _wrong_merge(right: TorchStates | TorchMerge, merge: Merge) -> TorchStates | TorchMerge:
    return replace(right, name=merge.__name__, merge=merge)


CHUNK = 32
chunks = TorchChunks(routine="ragged_prefill", name="chunks", chunk=CHUNK)
OUTPUT_WRONG = (
    *(_wrong_merge(TorchTwoCalls(), merge) for merge in (in_base_2, of_two_bases, without_weights, without_scale)),
    Changed(name="prefix_twice", change=prefix_twice),
    Changed(name="prefix_lost", change=lambda _inputs, states: states[1:]),
    Changed(name="rest_lost", change=lambda _inputs, states: states[:1]),
    Changed(name="causal_prefix", change=causal_prefix),
)
LSE_WRONG = (
    _wrong_merge(TorchTwoCalls(), keeps_the_last),
    SpoiltLse(name="in_the_other_base", spoil=lambda lse: lse.div_(math.log(2))),
    SpoiltLse(name="off_by_the_scale", spoil=lambda lse: lse.mul_(4)),
    SpoiltLse(name="sum_without_log", spoil=lambda lse: lse.exp_()),
    SpoiltLse(name="one_row_off", spoil=lambda lse: lse.view(-1)[5].add_(0.01)),
    SpoiltLse(name="unwritten", spoil=lambda lse: lse[-1].fill_(math.nan)),
    NoLse(name="no_lse"),
)
CHUNKS_WRONG = (
    EmptyChunks(name="empty_counts", lse=0.0, chunk=CHUNK),  # exp(0) is a weight of 1
    EmptyChunks(name="empty_is_plus_infinity", lse=math.inf, chunk=CHUNK),  # FlashAttention-2's value for a row without keys
    LessWorkspace(name="less_workspace", chunk=CHUNK),
    *(_wrong_merge(chunks, merge) for merge in (unguarded,)),
)

MERGE_WRONG = (
    *(_wrong_merge(TorchMerge(), merge) for merge in (in_base_2, of_two_bases, without_weights, without_scale)),
    GivenWrong(name="first_forgotten", change=lambda states: states[1:]),
    GivenWrong(name="last_forgotten", change=lambda states: states[:-1]),
    GivenWrong(name="middle_forgotten", change=lambda states: (*states[:2], *states[3:])),
    GivenWrong(name="first_twice", change=lambda states: (states[0], *states)),
    GivenWrong(name="weights_of_others", change=weights_of_others),
    GivenWrong(name="in_other_heads", change=in_other_heads),
)
MERGE_LSE_WRONG = _wrong_merge(TorchMerge(), keeps_the_last)
MERGE_UNGUARDED = _wrong_merge(TorchMerge(), unguarded)

ADAPTERS = (MergesUntimed(), *MERGE_WRONG, MERGE_LSE_WRONG, MERGE_UNGUARDED, *OUTPUT_WRONG, *LSE_WRONG, chunks, *CHUNKS_WRONG)

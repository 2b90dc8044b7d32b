"""Judges the estimates of key weights: finds the clearest fault of an output, and the smallest faults that would have shown."""

# M = requests of equal lengths times stored KV heads

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING

from kernels.check.estimates import OF_FAULT, TINY, KeyWeights, Kind, Levels, weighed_parts

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.problem import Problem

FALSE_ALARMS = 1e-5  # right outputs that are called wrong, if their noise is as assumed
MISS_SIGMAS = NormalDist().inv_cdf(0.99)  # a fault that is this far beyond its limit is missed once in 100
# An estimate of a smaller b says nothing: the standard error of its c is above 1, and that of a lost key has to be far below.
# Behind logits above 100 a key's weight may be so small that its square, which b is made of, is 0 in fp32 while `a` is not.
MIN_B = 1.0
LOST = 0.9  # |c| of a fault: 1 for a lost key; 1 / (1 + p) for a doubled or revealed one of weight p, seldom over a tenth


PAGE = 64  # tokens: the least N that is aimed at
MAX_INPUTS = 16  # more than this no check draws


@dataclass(frozen=True)
class _Worst:
    """The estimate of one kind that exceeds its limit most, and where it is from. Tensors have no dimensions."""

    excess: Tensor  # |c| in limits
    c: Tensor
    index: Tensor  # in the flattened estimates
    kind: Kind
    requests: tuple[int, ...]
    shape: tuple[int, ...]
    start: int
    query: int
    levels: Levels


@dataclass
class WeightTest:
    """Takes the estimates of one output. Everything stays on the device until the end, when one transfer brings the numbers.

    `bias` is the largest systematic relative error of a key's weight, `gain_limit` that of a whole output.
    The estimates are sums over `inputs` different inputs.
    """

    problem: Problem
    bias: float
    gain_limit: float
    inputs: int = 1
    _worst: list[_Worst] = field(default_factory=list)
    _most_variance: dict[int, list[Tensor]] = field(default_factory=lambda: defaultdict(list))  # of c, by block size
    _pairs: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=dict)  # as in `_note_pairs`, by drafts
    _rows: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # as in `_rows_by_key`, by lengths
    _paired: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # KV heads of requests in these sums, by drafts

    @cached_property
    def sigmas(self) -> float:
        """Standard errors that all estimates of a right output keep within, but for one output in 1 / FALSE_ALARMS."""
        candidates = 3 * self.problem.stored_kv_heads * self.problem.num_kv_tokens
        return -NormalDist().inv_cdf(FALSE_ALARMS / 2 / candidates)

    def add(self, weights: KeyWeights) -> None:
        """Takes the estimates of one kind for some requests."""
        self._note_worst(weights)
        if weights.kind == "block":
            self._note_block(weights)
        elif weights.kind == "pair" and weights.start == self.problem.kv_lens[weights.requests[0]] - weights.a.shape[1]:
            self._note_pairs(weights)

    def _note_worst(self, weights: KeyWeights) -> None:
        a, b = weights.a.flatten(), weights.b.flatten()
        limit = self.gain_limit if weights.kind == "gain" else self.bias
        limits = weights.variance.flatten().sqrt().mul_(self.sigmas).add_(b, alpha=limit)  # 0 only where b is 0, which says nothing
        excess, index = a.abs().div_(limits).masked_fill_(b < MIN_B, 0.0).max(0)
        c = a.take(index) / b.take(index).clamp_min(TINY)  # `a[index]` would wait for the device
        place = (weights.requests, tuple(weights.a.shape), weights.start, weights.query, weights.levels)
        self._worst.append(_Worst(excess, c, index, weights.kind, *place))

    def _note_pairs(self, weights: KeyWeights) -> None:
        """Sums over heads, [Q, Q] each: a, b, its variance, and its variance if there is a fault."""
        with_fault = weights.variance if weights.of_fault is None else weights.variance + weights.of_fault
        new = [t.sum(0) for t in (weights.a, weights.b, weights.variance, with_fault)]
        a, b, variance, most = self._pairs.get(weights.a.shape[1], (0.0, 0.0, 0.0, 0.0))
        self._pairs[weights.a.shape[1]] = (a + new[0], b + new[1], variance + new[2], most + new[3])
        self._paired[weights.a.shape[1]] += weights.a.shape[0]

    def _note_block(self, weights: KeyWeights) -> None:
        """Whole blocks count that the request's last query sees in full. What is kept is the variance of c, if there is a fault.

        The fault itself adds to the noise of the rows that see the block: as much as it moves each of their elements. It is the
        same for all KV heads. So the largest variance of these is found first, in few passes over the estimates.
        """
        length = self.problem.kv_lens[weights.requests[0]]
        seen_from = 0 if self.problem.window is None else max(0, length - self.problem.window)
        variance = weights.variance.clone() if weights.of_fault is None else weights.variance + weights.of_fault
        most = variance.clamp_min_(TINY).div_(weights.b.square()).amax(0)  # of c = a / b; infinite where b is 0
        rows, at = self._rows_by_key(weights.requests[0], most.device), 0
        for size, count in weights.levels:
            level, at = most[at : at + count], at + count
            first = -(-max(0, seen_from - weights.start) // size)
            stop = min((length - weights.start) // size, count)
            if first < stop:
                half_seen = rows[weights.start + size * first + size // 2 :: size][: stop - first]  # of at least half a block
                fault = OF_FAULT / (self.inputs * self.problem.group_size * self.problem.value_dim)
                self._most_variance[size].append(level[first:stop].add(fault / half_seen).amax())

    def _rows_by_key(self, request: int, device: torch.device) -> Tensor:
        """[keys]: how many weighed query tokens of a request see a key, at least: all of a full mask, later ones of any other."""
        import torch

        p, lengths = self.problem, (self.problem.q_lens[request], self.problem.kv_lens[request])
        if lengths not in self._rows:
            (q_len, length), tokens = lengths, [token for part in weighed_parts(p, lengths[0]) for token in part]
            positions = torch.tensor(tokens, device=device) + length - q_len
            later = len(tokens) - torch.searchsorted(positions, torch.arange(length, device=device))
            seen = torch.full((length,), len(tokens), device=device) if p.mask == "full" else later.clamp_min(1)
            self._rows[lengths] = seen.float()
        return self._rows[lengths]

    def clearest(self) -> tuple[float, str]:
        """The estimate that is furthest from the right one, in limits, and what it says in words if that is above 1."""
        import torch

        for a, b, variance, _ in self._pairs.values():
            self._note_worst(KeyWeights("pair", (), a[None], b[None], variance[None]))
        excesses = torch.stack([one.excess for one in self._worst]).cpu()  # one wait for the device
        at = int(excesses.argmax())
        worst, excess = self._worst[at], float(excesses[at])
        return excess, self._in_words(worst, float(worst.c)) if excess > 1 else ""

    def _in_words(self, worst: _Worst, c: float) -> str:
        index, where = int(worst.index), list[int]()
        for size in reversed(worst.shape):
            where.insert(0, index % size)
            index //= size
        if not worst.requests:
            return f"the mask is wrong in all heads: query {where[1]} and draft key {where[2]} of the last {worst.shape[2]}"
        heads = self.problem.stored_kv_heads
        head = f"KV head {where[0] % heads} of request {worst.requests[where[0] // heads]}"
        if worst.kind == "gain":
            return f"the output of {head} is {1 + c:.3g} times what it should be, off by more than {self.gain_limit:.2g}"
        if worst.kind == "block":
            size, start = _block_of(worst, where[1])
            keys = f"key {start}" if size == 1 else f"keys {start} to {start + size - 1}"
            return f"{keys} of {head} count {1 + c:.2g} times instead of once"
        length = self.problem.kv_lens[worst.requests[0]]
        key, query = worst.start + where[2], worst.query + where[1]
        return f"the mask is wrong for {head}: query {query} and key {key} of {length}"

    def min_tokens(self, times: int = 1) -> int | None:
        """The least N such that any N neighbouring keys, lost or doubled for one KV head of one request, would be called wrong.

        N keys hold an aligned block of N / 2. None if not even the largest blocks suffice. `times` as many inputs are assumed,
        each as telling as these.
        """
        for size, certainty in sorted(self._certainty.items()):
            if self._suffices(certainty, times):
                return 1 if size == 1 else 2 * size
        return None

    def inputs_needed(self) -> int | None:
        """How many times as many inputs would show a lost page; 1 if these do, None if `MAX_INPUTS` would not."""
        reach = ((times, self.min_tokens(times)) for times in range(1, MAX_INPUTS + 1))
        return next((times for times, tokens in reach if tokens is not None and tokens <= PAGE), None)

    @cached_property
    def _certainty(self) -> dict[int, float]:
        """1 / variance of c of the least certain block, by the size of blocks. Read once, after all estimates were added."""
        import torch

        if not self._most_variance:
            return {}
        most = torch.stack([torch.stack(found).amax() for found in self._most_variance.values()])
        return dict(zip(self._most_variance, (1 / most).tolist(), strict=True))

    def pairs_covered(self) -> float | None:
        """The share of (query, draft key) pairs whose mask, wrong in all heads and requests, would be called wrong."""
        elements = self.inputs * self.problem.group_size * self.problem.value_dim  # that show a pair, in a KV head of a request
        certain = [
            1 / (1 / (b.square() / most.clamp_min(TINY)).nan_to_num(nan=math.inf) + OF_FAULT / (elements * self._paired[drafts]))
            for drafts, (_, b, _, most) in self._pairs.items()
        ]
        found = [self._suffices(one) for pairs in certain for one in pairs.flatten().tolist()]
        return sum(found) / len(found) if found else None

    def _suffices(self, certainty: float, times: int = 1) -> bool:
        """Whether a fault is found with probability 0.99 by an estimate of variance 1 / `certainty`, on `times` as many inputs."""
        return certainty > 0 and self.bias + (self.sigmas + MISS_SIGMAS) / math.sqrt(certainty * times) <= LOST


def _block_of(worst: _Worst, index: int) -> tuple[int, int]:
    """How many keys a block has, and the position of its first."""
    for size, count in worst.levels:
        if index < count:
            return size, worst.start + size * index
        index -= count
    raise IndexError(index)

"""Judges the estimates of key weights: finds the clearest fault of an output, and the smallest faults that would have shown."""

# M = requests of equal lengths times stored KV heads
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from statistics import NormalDist
from typing import NamedTuple

from kernels.check.answer import MAX_INPUTS, Answer
from kernels.check.estimates import OF_FAULT, TINY, KeyWeights, Kind, Levels, weighed_parts
from kernels.check.mask_pairs import near
from kernels.inputs.sentinel_logit import PLANTED
from kernels.lazy import Tensor, torch
from kernels.problem import Problem

FALSE_ALARMS = 1e-5  # right outputs that are called wrong, if their noise is as assumed
MISS_SIGMAS = NormalDist().inv_cdf(0.99)  # a fault that is this far beyond its limit is missed once in 100
# An estimate of a smaller b says nothing: the standard error of its c is above 1, and that of a lost key has to be far below.
# Behind logits above 100 a key's weight may be so small that its square, which b is made of, is 0 in fp32 while `a` is not.
MIN_B = 1.0
LOST = 0.9  # |c| of a fault: 1 for a lost key; 1 / (1 + p) for a doubled or revealed one of weight p, seldom over a tenth
PAGE = 64  # tokens: the least N that is aimed at
FEW = 2**20  # estimates that wait together, at 16 bytes each; keys of different requests whose blocks are kept, at 36 bytes each
LEVELS_SIDE_BY_SIDE = 4  # a level of single keys is cut into so many rows, which are then as wide as the next level


class _Place(NamedTuple):
    """Where estimates are from."""

    kind: Kind
    requests: tuple[int, ...]
    shape: tuple[int, ...]
    start: int
    query: int
    levels: Levels


class _Part(NamedTuple):
    """Query tokens of a draft or prompt of so many, and the draft keys near them, counted from the first."""

    q_len: int
    query: int
    start: int


@dataclass(frozen=True)
class _Worst:
    """The estimate that exceeds its limit most, of some that lie side by side, flattened. Tensors have no dimensions."""

    excess: Tensor  # |c| in limits
    a: Tensor
    b: Tensor
    index: Tensor
    places: tuple[_Place, ...]


@dataclass(frozen=True)
class _Reading:
    """What the estimates say."""

    worst: _Worst
    excess: float
    # By the number of keys of a request, and by the size of its blocks: 1 / variance of c of the least certain block.
    certainty: dict[int, dict[int, float]]
    pairs_covered: float | None  # the share of pairs of the mask, over all heads, that are certain enough


@dataclass
class WeightTest:
    """Takes the estimates of one output. Everything stays on the device until the end, when one transfer brings the numbers.

    `bias` is the largest systematic relative error of a key's weight, `gain_limit` that of a whole output.
    The estimates are sums over `inputs` different inputs. With `answer`, what is the same for all backends is made once.
    """

    problem: Problem
    bias: float
    gain_limit: float
    inputs: int = 1
    answer: Answer | None = None
    _worst: list[_Worst] = field(default_factory=list)
    # The worst of few estimates is found together, since a search costs ten small kernels.
    _waiting: dict[Kind, list[KeyWeights]] = field(default_factory=lambda: defaultdict(list))
    _num_waiting: int = 0
    # The largest of c, in requests of this length, by size of blocks.
    _most_variance: list[tuple[int, tuple[int, ...], Tensor]] = field(default_factory=list)
    _pairs: dict[_Part, list[Tensor]] = field(default_factory=dict)  # as in `_note_pairs`
    _paired: dict[_Part, int] = field(default_factory=lambda: defaultdict(int))  # KV heads of requests in these sums

    @cached_property
    def sigmas(self) -> float:
        """Standard errors that all estimates of a right output keep within, but for one output in 1 / FALSE_ALARMS."""
        p = self.problem
        candidates = p.stored_kv_heads * (3 * p.num_kv_tokens + sum(q * min(q, 2 * PLANTED) for q in p.q_lens))
        return -NormalDist().inv_cdf(FALSE_ALARMS / 2 / candidates)

    def add(self, weights: KeyWeights) -> None:
        """Takes the estimates of one kind for some requests."""
        if (many := weights.a.numel()) > FEW:
            self._note_worst([weights])
        else:
            self._waiting[weights.kind].append(weights)
            self._num_waiting += many
        if self._num_waiting > FEW:
            self._note_waiting()
        if weights.kind == "block":
            self._note_block(weights)
        elif weights.kind == "pair":
            self._note_pairs(weights)

    def _note_waiting(self) -> None:
        self._note_worst([one for some in self._waiting.values() for one in some])
        self._waiting.clear()
        self._num_waiting = 0

    def _note_worst(self, found: Sequence[KeyWeights]) -> None:
        """The worst of some estimates, those of one kind side by side."""
        a, b, variance = (side_by_side([getattr(one, name) for one in found]) for name in ("a", "b", "variance"))
        limits, at = variance.sqrt().mul_(self.sigmas), 0  # with b below, 0 only where b is 0, which says nothing
        for is_gain, some in groupby(found, lambda one: one.kind == "gain"):
            stop = at + sum(one.b.numel() for one in some)
            limits[at:stop].add_(b[at:stop], alpha=self.gain_limit if is_gain else self.bias)
            at = stop
        excess, index = a.abs().div_(limits).masked_fill_(b < MIN_B, 0.0).max(0)
        places = (_Place(one.kind, one.requests, tuple(one.a.shape), one.start, one.query, one.levels) for one in found)
        self._worst.append(_Worst(excess, a.take(index), b.take(index), index, tuple(places)))  # `a[index]` would wait

    def _note_pairs(self, weights: KeyWeights) -> None:
        """Sums over heads, [Q, keys] each: a, b, its variance, and its variance if there is a fault."""
        with_fault = weights.variance if weights.of_fault is None else weights.variance + weights.of_fault
        new = [t.sum(0) for t in (weights.a, weights.b, weights.variance, with_fault)]
        q_len, length = self.problem.q_lens[weights.requests[0]], self.problem.kv_lens[weights.requests[0]]
        part = _Part(q_len, weights.query, weights.start - (length - q_len))
        old = self._pairs.get(part)
        self._pairs[part] = new if old is None else [one + other for one, other in zip(old, new, strict=True)]
        self._paired[part] += weights.a.shape[0]

    def _note_block(self, weights: KeyWeights) -> None:
        """Whole blocks count that the request's last query sees in full. What is kept is the variance of c, if there is a fault.

        The fault itself adds to the noise of the rows that see the block: as much as it moves each of their elements. It is the
        same for all KV heads. So the largest variance of these is found first, in few passes over the estimates.
        """
        variance = weights.variance.clone() if weights.of_fault is None else weights.variance + weights.of_fault
        most = variance.clamp_min_(TINY).div_(weights.b.square()).amax(0)  # of c = a / b; infinite where b is 0
        q_len, length = self.problem.q_lens[weights.requests[0]], self.problem.kv_lens[weights.requests[0]]

        def make() -> WholeBlocks | None:
            return whole_blocks(self.problem, (q_len, length), weights.start, weights.levels, most.device)

        key = ("whole blocks", q_len, length, weights.start, weights.levels)
        few = sum(keys for _, keys in self.problem.requests_by_lengths) <= FEW
        blocks = self.answer.kept(key, make) if self.answer is not None and few else make()
        if blocks is not None:
            fault = OF_FAULT / (self.inputs * self.problem.group_size * self.problem.value_dim)
            of_blocks = most.index_select(0, blocks.index).view(len(blocks.sizes), -1)
            self._most_variance.append((length, blocks.sizes, of_blocks.add_(fault / blocks.seen).amax(1)))

    @cached_property
    def _found(self) -> _Reading:
        """Everything, after all estimates were added, in one transfer."""
        for part, (a, b, variance, _) in self._pairs.items():
            self._waiting["pair"].append(KeyWeights("pair", (), a[None], b[None], variance[None], part.start, part.query))
        if self._waiting:
            self._note_waiting()
        excesses, variances = [one.excess for one in self._worst], [of_sizes for *_, of_sizes in self._most_variance]
        pairs = [torch.stack([self._covered(part) for part in self._pairs]).sum(0)] if self._pairs else []
        read = torch.cat((torch.stack(excesses), *(1 / one for one in variances), *pairs)).tolist()
        blocks = [(length, size) for length, sizes, _ in self._most_variance for size in sizes]
        of_pairs, certainty = len(excesses) + len(blocks), defaultdict[int, dict[int, float]](dict)
        for (length, size), one in zip(blocks, read[len(excesses) : of_pairs], strict=True):
            certainty[length][size] = min(one, certainty[length].get(size, math.inf))
        at = max(range(len(excesses)), key=read.__getitem__)
        return _Reading(self._worst[at], read[at], certainty, read[of_pairs] / read[of_pairs + 1] if pairs else None)

    def clearest(self) -> tuple[float, str]:
        """The estimate that is furthest from the right one, in limits, and what it says in words if that is above 1."""
        found = self._found
        return found.excess, self._in_words(found.worst) if found.excess > 1 else ""

    def _in_words(self, worst: _Worst) -> str:
        c, index, where = float(worst.a / worst.b.clamp_min(TINY)), int(worst.index), list[int]()
        number, index = _part_of((math.prod(one.shape) for one in worst.places), index)
        place = worst.places[number]
        for size in reversed(place.shape):
            where.insert(0, index % size)
            index //= size
        if not place.requests:
            return f"the mask is wrong in all heads: query {place.query + where[1]} and draft key {place.start + where[2]}"
        heads = self.problem.stored_kv_heads
        head = f"KV head {where[0] % heads} of request {place.requests[where[0] // heads]}"
        if place.kind == "gain":
            return f"the output of {head} is {1 + c:.3g} times what it should be, off by more than {self.gain_limit:.2g}"
        if place.kind == "block":
            number, block = _part_of((count for _, count in place.levels), where[1])
            size = place.levels[number][0]
            start = place.start + size * block
            keys = f"key {start}" if size == 1 else f"keys {start} to {start + size - 1}"
            return f"{keys} of {head} count {1 + c:.2g} times instead of once"
        length = self.problem.kv_lens[place.requests[0]]
        key, query = place.start + where[2], place.query + where[1]
        return f"the mask is wrong for {head}: query {query} and key {key} of {length}"

    def min_tokens(self, times: int = 1) -> int | None:
        """The least N such that any N neighbouring keys, lost or doubled for one KV head of one request, would be called wrong.

        N keys hold an aligned block of N / 2, and that holds all smaller ones. Nobody can lose more keys of a request than it has,
        so a request of which no block shows asks for more than that. None if the longest is such a request. `times` as many inputs
        are assumed, each as telling as these.
        """
        found = self._found.certainty.items()
        least = {length: [size for size, one in of.items() if one * times >= self._needed] for length, of in found}
        tokens = max((min(sizes) if sizes else length + 1 for length, sizes in least.items()), default=0)
        if not least or tokens > max(least):
            return None
        largest = max((min(sizes) for sizes in least.values() if sizes), default=1)
        return max(tokens, 2 * largest if largest > 1 else 1)

    def inputs_needed(self) -> int | None:
        """How many times as many inputs would show a lost page; 1 if these do, None if `MAX_INPUTS` would not."""
        reach = ((times, self.min_tokens(times)) for times in range(1, MAX_INPUTS + 1))
        return next((times for times, tokens in reach if tokens is not None and tokens <= PAGE), None)

    def _covered(self, part: _Part) -> Tensor:
        """[2]: how many pairs of the mask would be called wrong, and how many there are. Those further away are no promise."""
        elements = self.inputs * self.problem.group_size * self.problem.value_dim  # that show a pair, in a KV head of a request
        _, b, _, most = self._pairs[part]
        tokens, keys = (range(first, first + size) for first, size in zip(part[1:], b.shape, strict=True))
        by_chance = (most.clamp_min(TINY) / b.square()).nan_to_num(nan=0.0)  # b and its variance are infinite where any error shows
        variance = by_chance + OF_FAULT / (elements * self._paired[part])
        looked_at = near(part.q_len, tokens, keys, b.device)
        return torch.stack(((1 / variance >= self._needed) & looked_at, looked_at)).sum((1, 2), dtype=torch.float32)

    def pairs_covered(self) -> float | None:
        """The share of pairs of a query with the draft keys near it whose mask, wrong in all heads, would be called wrong."""
        return self._found.pairs_covered

    @property
    def _needed(self) -> float:
        """1 / variance of an estimate that finds a fault with probability 0.99."""
        return ((self.sigmas + MISS_SIGMAS) / (LOST - self.bias)) ** 2 if self.bias < LOST else math.inf


def _part_of(counts: Iterable[int], index: int) -> tuple[int, int]:
    """Which of some parts that lie side by side, of so many elements each, holds the one at this index, and its index there."""
    for number, count in enumerate(counts):
        if index < count:
            return number, index
        index -= count
    raise IndexError(index)


@dataclass(frozen=True)
class WholeBlocks:
    """Whole blocks in rows of one size each, so that few small kernels find the worst. A short row repeats its last block."""

    sizes: tuple[int, ...]  # keys of the blocks in each row
    index: Tensor  # int32 [rows * width]: where the blocks lie among all
    seen: Tensor  # fp32 [rows, width]: how many weighed query tokens see at least half of a block, at least


def whole_blocks(p: Problem, lengths: tuple[int, int], start: int, levels: Levels, device: torch.device) -> WholeBlocks | None:
    """Of requests with these numbers of query tokens and keys. Blocks begin behind key `start`. None if no block is whole."""
    length, at = lengths[1], 0
    found: list[tuple[int, int, int, int]] = []  # of each row: the size of its blocks, the first's place and middle key, how many
    seen_from = 0 if p.window is None else max(0, length - p.window)
    width = max(-(-count // (LEVELS_SIDE_BY_SIDE if size == 1 else 1)) for size, count in levels)
    for size, count in levels:
        first, stop = -(-max(0, seen_from - start) // size), min((length - start) // size, count)
        begins = range(first, stop, width)
        found += [(size, at + begin, start + size * begin + size // 2, min(width, stop - begin)) for begin in begins]
        at += count
    if not found:
        return None
    sizes, places, middles, counts = torch.tensor(found).to(device, non_blocking=True).T[:, :, None]  # [rows, 1] each
    block = torch.arange(width, device=device).minimum(counts - 1)
    seen = _rows_by_key(p, lengths, device)[middles + sizes * block]
    return WholeBlocks(tuple(size for size, *_ in found), (places + block).flatten().int(), seen)


def _rows_by_key(p: Problem, lengths: tuple[int, int], device: torch.device) -> Tensor:
    """[keys]: how many weighed query tokens of a request see a key, at least: all of a full mask, later ones of any other."""
    (q_len, length), tokens = lengths, [token for part in weighed_parts(p, lengths[0]) for token in part]
    if p.mask == "full":
        return torch.full((length,), float(min(len(tokens), p.window or len(tokens))), device=device)
    positions = torch.tensor(tokens).to(device, non_blocking=True) + length - q_len
    later = len(tokens) - torch.searchsorted(positions, torch.arange(length, device=device))
    return later.clamp_min(1).float()


def side_by_side(tensors: Sequence[Tensor]) -> Tensor:
    """All elements of some tensors, [n]."""
    return tensors[0].flatten() if len(tensors) == 1 else torch.cat([one.flatten() for one in tensors])

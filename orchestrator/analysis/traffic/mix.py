"""Traffic as weighted lengths, its quantile points, and the weights of measured shapes. Pure Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import NamedTuple

MAX_BATCHES = 4  # batch sizes among the points; more are put together
FAR = log(2)  # a shape stands for contexts from half its own to twice
FINE = 64  # points of a batch size that are given to the nearest shape


class TrafficPoint(NamedTuple):
    """A batch size, or None where the traffic does not say one; KV tokens of a request; and a weight."""

    batch_size: int | None
    s_kv: float
    weight: float


@dataclass(frozen=True)
class Mix:
    """`decode`: an entry for each context that decode steps see, weighted by the number of steps. `prompts`: lengths of prompts.

    A request of P prompt and O output tokens is decoded in O steps, over P + 1 to P + O KV tokens. `notes` say what was assumed.
    """

    decode: tuple[TrafficPoint, ...]
    prompts: tuple[TrafficPoint, ...]
    notes: tuple[str, ...] = ()


class ShapeWeights(NamedTuple):
    """`by_shape`: the share of the traffic that each shape stands for, which add up to 1. `far`: the share of it whose context is
    less than half or more than twice that of the nearest shape, and about which the shapes say little.
    """

    by_shape: dict[tuple[int, int], float]
    far: float


def points(mix: Mix, count: int, *, prompts: bool = False) -> list[TrafficPoint]:
    """Traffic as `count` points for each batch size, of equal weight; the weights of all add up to 1.

    Each stands for a quantile: it lies at the mean of its part. The time of attention grows with the KV tokens nearly in
    proportion, so the weighted mean of the points' times is close to that of the traffic.
    """
    entries = mix.prompts if prompts else mix.decode
    whole = sum(entry.weight for entry in entries)
    found: dict[tuple[int | None, int], float] = defaultdict(float)
    for batch, part in _by_batch(entries):
        for context, weight in _quantiles([(e.s_kv, e.weight) for e in part], count):
            found[batch, max(1, round(context))] += weight / whole
    return [
        TrafficPoint(batch, s_kv, weight) for (batch, s_kv), weight in sorted(found.items(), key=lambda p: (p[0][0] or 0, p[0][1]))
    ]


def weights(mix: Mix, shapes: Iterable[tuple[int, int]], *, prompts: bool = False) -> ShapeWeights:
    """The share of the traffic that each shape `(batch_size, s_kv)` stands for: that to which it is nearest.

    Nearest by the ratio of batch sizes first, then by that of KV tokens. Traffic without batch sizes is spread evenly over those of
    the shapes. Raises ValueError if there are no shapes.
    """
    by_batch: dict[int, list[int]] = defaultdict(list)
    for batch, s_kv in dict.fromkeys(shapes):
        by_batch[batch].append(s_kv)
    if not by_batch:
        raise ValueError("weights of no shapes; give the (batch_size, s_kv) of those that were measured")
    found = dict.fromkeys(((batch, s_kv) for batch, contexts in by_batch.items() for s_kv in contexts), 0.0)
    far = 0.0
    for point in points(mix, FINE, prompts=prompts):
        batches = list(by_batch) if point.batch_size is None else [_nearest(by_batch, point.batch_size)]
        for batch in batches:
            nearest = _nearest(by_batch[batch], point.s_kv)
            found[batch, nearest] += point.weight / len(batches)
            far += point.weight / len(batches) if _distance(nearest, point.s_kv) > FAR else 0.0
    return ShapeWeights(found, far)


def _nearest(choices: Iterable[int], wanted: float) -> int:
    """The nearest choice; of two that are as near the smaller, whatever their order."""
    return min(choices, key=lambda choice: (round(_distance(choice, wanted), 9), choice))


def _distance(a: float, b: float) -> float:
    return abs(log(a / b))


def _by_batch(entries: Sequence[TrafficPoint]) -> Iterator[tuple[int | None, list[TrafficPoint]]]:
    """Entries by batch size, of which at most MAX_BATCHES stay: each the mean of a quantile of the others."""
    sizes = sorted({entry.batch_size for entry in entries if entry.batch_size is not None})
    if not sizes:
        yield None, list(entries)
        return
    if len(sizes) <= MAX_BATCHES:
        nearest = dict(zip(sizes, sizes, strict=True))
    else:
        parts = _quantiles([(entry.batch_size or 1, entry.weight) for entry in entries], MAX_BATCHES)
        means = sorted({max(1, round(mean)) for mean, _ in parts})
        nearest = {size: _nearest(means, size) for size in sizes}
    grouped: dict[int, list[TrafficPoint]] = defaultdict(list)
    for entry in entries:
        if entry.batch_size is not None:
            grouped[nearest[entry.batch_size]].append(entry)
    yield from sorted(grouped.items())


def _quantiles(values: Sequence[tuple[float, float]], count: int) -> list[tuple[float, float]]:
    """`count` parts of equal weight of weighted values: the mean of each, and its weight. An entry may be divided between two."""
    ordered = sorted(values)
    share = sum(weight for _, weight in ordered) / count
    found: list[tuple[float, float]] = []
    summed = filled = 0.0
    for value, given in ordered:
        left = given
        while left > 0:
            taken = min(left, share - filled)
            summed, filled, left = summed + taken * value, filled + taken, left - taken
            if filled >= share * (1 - 1e-9):
                found.append((summed / filled, filled))
                summed = filled = 0.0
            if taken <= share * 1e-12:
                break
    if filled > share * 1e-6:
        found.append((summed / filled, filled))
    return found

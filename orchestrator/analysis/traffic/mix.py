"""Traffic as weighted lengths, its quantile points, and the weights of measured workloads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log
from typing import NamedTuple

from orchestrator.grouped import grouped

MAX_BATCHES = 4  # batch sizes among the points; more are put together
NEAR = 2  # a workload stands for batch sizes and contexts from half its own to twice
STEPS = 8  # contexts that stand for the steps of one request
FINE = 64  # points of a batch size that are given to the nearest workload


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

    @cached_property
    def fine_decode(self) -> list[TrafficPoint]:
        """Many points of each batch size of `decode`, which are given to the nearest workloads."""
        return points(self, FINE, batches=len(self.decode))

    @cached_property
    def fine_prompts(self) -> list[TrafficPoint]:
        """As `fine_decode`, of `prompts`."""
        return points(self, FINE, prompts=True)


class WorkloadWeights(NamedTuple):
    """`by_workload`: the share of the traffic that each workload stands for, which add up to 1.

    `far` are the points whose batch size or context is less than half or more than twice that of the nearest workload, with their
    shares as weights: the workloads say little about them. `lacking` are the contexts among them of each measured batch, of traffic
    that has no batch sizes.
    """

    by_workload: dict[tuple[int, int], float]
    far: tuple[TrafficPoint, ...]
    lacking: dict[int, list[float]]

    @property
    def far_share(self) -> float:
        """The share whose batch size or context is far from that of the nearest workload."""
        return sum(point.weight for point in self.far)


def steps(prompt: float, output: float, weight: float) -> list[TrafficPoint]:
    """The contexts of a request's decode steps, prompt + 1 to prompt + output, as at most STEPS of equal weight."""
    count = min(ceil(output), STEPS)
    return [TrafficPoint(None, prompt + 0.5 + output * (i + 0.5) / count, weight * output / count) for i in range(count)]


def points(mix: Mix, count: int, *, prompts: bool = False, batches: int = MAX_BATCHES) -> list[TrafficPoint]:
    """Traffic as `count` points for each batch size, of equal weight; the weights of all add up to 1.

    A batch size with so few contexts, or fewer, keeps them and their weights. Otherwise each point stands for a quantile: it lies
    at the mean of its part. The time of attention grows with the KV tokens nearly in proportion, so the weighted mean of the times
    of the points is close to that of the traffic. More than `batches` sizes are put together to as many.
    """
    entries = mix.prompts if prompts else mix.decode
    whole = sum(entry.weight for entry in entries)
    found: dict[tuple[int | None, int], float] = defaultdict(float)
    for batch, part in _by_batch(entries, batches):
        contexts = [(e.s_kv, e.weight) for e in part]
        for context, weight in contexts if len({s_kv for s_kv, _ in contexts}) <= count else _quantiles(contexts, count):
            found[batch, max(1, round(context))] += weight / whole
    made = (TrafficPoint(batch, s_kv, weight) for (batch, s_kv), weight in found.items())
    return sorted(made, key=lambda point: (point.batch_size or 0, point.s_kv))


def weights(mix: Mix, workloads: Iterable[tuple[int, int]], *, prompts: bool = False) -> WorkloadWeights:
    """The share of the traffic that each workload `(batch_size, s_kv)` stands for: that to which it is nearest.

    Nearest by the ratio of batch sizes first, then by that of KV tokens. Traffic without batch sizes is spread evenly over those of
    the workloads. Raises ValueError if there are no workloads.
    """
    by_batch = grouped(dict.fromkeys(workloads))
    if not by_batch:
        raise ValueError("weights of no workloads; give the (batch_size, s_kv) of those that were measured")
    found = dict.fromkeys(((batch, s_kv) for batch, contexts in by_batch.items() for s_kv in contexts), 0.0)
    far: list[TrafficPoint] = []
    lacking: dict[int, list[float]] = {batch: [] for batch in sorted(by_batch)}
    for point in mix.fine_prompts if prompts else mix.fine_decode:
        batches = list(by_batch) if point.batch_size is None else [_nearest(by_batch, point.batch_size)]
        share = point.weight / len(batches)
        for batch in batches:
            nearest = _nearest(by_batch[batch], point.s_kv)
            found[batch, nearest] += share
            if not (is_near(batch, point.batch_size or batch) and is_near(nearest, point.s_kv)):
                far.append(point._replace(weight=share))
                lacking[batch] += [point.s_kv] if point.batch_size is None else []
    return WorkloadWeights(found, tuple(far), lacking)


def is_near(workload: float, wanted: float) -> bool:
    """Whether a workload's batch size or context stands for another: from half of it to twice."""
    return _distance(workload, wanted) <= log(NEAR) + 1e-9


def axes_to_measure(found: WorkloadWeights) -> str:
    """The axes of a sweep with a workload near each far point: `sweep.batch_size=[100,400] sweep.s_kv=[512]`. Measured batches that
    lack other contexts than the rest are named, with `;` between their sweeps."""
    batches = _few(point.batch_size for point in found.far if point.batch_size is not None)
    parts = grouped((tuple(_few(contexts)), batch) for batch, contexts in found.lacking.items())
    if len(parts) == 1:
        parts = {tuple(_few(point.s_kv for point in found.far)): batches}
    axes = ({"batch_size": of, "s_kv": contexts} for contexts, of in parts.items() if contexts)
    named = ((f"sweep.{name}=[{','.join(map(str, of))}]" for name, of in one.items() if of) for one in axes)
    return "; ".join(map(" ".join, named))


def _few(values: Iterable[float]) -> list[int]:
    """A few of some batch sizes or contexts, of which one is near each."""
    left = sorted({max(1, round(value)) for value in values})
    found: list[int] = []
    while left:
        found.append(max(value for value in left if is_near(value, left[0])))
        left = [value for value in left if value > found[-1] and not is_near(found[-1], value)]
    return found


def _nearest(choices: Iterable[int], wanted: float) -> int:
    """The nearest choice; of two that are as near the smaller, whatever their order."""
    return min(choices, key=lambda choice: (round(_distance(choice, wanted), 9), choice))


def _distance(a: float, b: float) -> float:
    return abs(log(a / b))


def _by_batch(entries: Sequence[TrafficPoint], most: int) -> Iterator[tuple[int | None, list[TrafficPoint]]]:
    """Entries by batch size, of which at most `most` stay: each the mean of a quantile of the others."""
    sizes = sorted({entry.batch_size for entry in entries if entry.batch_size is not None})
    if not sizes:
        yield None, list(entries)
        return
    nearest = {size: size for size in sizes}
    if len(sizes) > most:
        parts = _quantiles([(entry.batch_size or 1, entry.weight) for entry in entries], most)
        means = sorted({max(1, round(mean)) for mean, _ in parts})
        nearest = {size: _nearest(means, size) for size in sizes}
    yield from sorted(grouped((nearest[one.batch_size], one) for one in entries if one.batch_size is not None).items())


def _quantiles(values: Sequence[tuple[float, float]], count: int) -> list[tuple[float, float]]:
    """`count` parts of equal weight of weighted values: the mean of each, and its weight. An entry may be divided between two."""
    import numpy as np

    value, weight = np.array(sorted(values)).T
    weights, sums = (np.concatenate(([0.0], np.cumsum(part))) for part in (weight, weight * value))
    share = float(weights[-1]) / count
    means = np.diff(np.interp(np.linspace(0, weights[-1], count + 1), weights, sums)) / share
    return [(mean, share) for mean in means.round(6).tolist()]  # halves stay halves

"""When a measurement has enough samples: our criterion, and nvbench's two for comparison. Pure Python.

Samples are microseconds in the order they were taken.
"""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from kernels.timing.stats import ci95_of_median

CriterionName = Literal["ci95", "stdrel", "entropy"]
# decided and uncontested: with timing.precision=decide, `racing.py`.
StopReason = Literal[CriterionName, "max_samples", "max_seconds", "throttled", "decided", "uncontested"]


class Criterion(ABC):
    """Decides whether samples are enough. `limit` is in the criterion's own unit. The caller bounds their number and time."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    @abstractmethod
    def enough(self, samples_us: Sequence[float]) -> bool: ...


class MedianInterval(Criterion):
    """Enough if the 95% confidence interval of the median is within +- `limit` of it, relative."""

    def enough(self, samples_us: Sequence[float]) -> bool:
        return ci95_of_median(sorted(samples_us)) <= self.limit


class RelativeDeviation(Criterion):
    """nvbench's `stdrel`: enough if the standard deviation over the mean is below `limit`, or has settled above it.

    It has settled if the last `WINDOW` deviations, checked every `EVERY` samples, have a relative standard deviation below
    `SETTLED` (nvbench, `stdrel_criterion.cxx`).
    """

    FIRST, WINDOW, EVERY, SETTLED = 5, 64, 16, 0.05

    def enough(self, samples_us: Sequence[float]) -> bool:
        noises = _running_deviations(samples_us)[self.FIRST - 1 :]
        return bool(noises) and (noises[-1] < self.limit or self._has_settled(noises, len(samples_us)))

    def _has_settled(self, noises: Sequence[float], count: int) -> bool:
        window = noises[: len(noises) - count % self.EVERY][-self.WINDOW :]
        if len(window) < self.WINDOW:
            return False
        mean = statistics.fmean(window)
        return mean > 0 and statistics.stdev(window) / mean < self.SETTLED


def _running_deviations(samples_us: Sequence[float]) -> list[float]:
    """Relative standard deviation of the first n samples, for every n (Welford 1962)."""
    found, mean, scatter = [], 0.0, 0.0
    for n, sample in enumerate(samples_us, start=1):
        off = sample - mean
        mean += off / n
        scatter += off * (sample - mean)
        found.append(math.sqrt(scatter / (n - 1)) / mean if n > 1 else 0.0)
    return found


class Entropy(Criterion):
    """nvbench's `entropy`: enough if the entropy of the samples' histogram no longer grows.

    H = log2(n) - sum(c * log2(c)) / n over the counts c of equal samples. A line through the last `WINDOW` entropies must rise
    by at most `limit` degrees a sample, with a coefficient of determination of at least `MIN_R2`. Checked if n is even (nvbench,
    `entropy_criterion.cxx`).
    """

    WINDOW, MIN_R2 = 299, 0.36

    def enough(self, samples_us: Sequence[float]) -> bool:
        entropies = _running_entropies(samples_us[: len(samples_us) // 2 * 2])[-self.WINDOW :]
        if len(entropies) < 2:
            return False
        slope, r2 = _line(entropies)
        return math.degrees(math.atan(slope)) <= self.limit and r2 >= self.MIN_R2


def _running_entropies(samples_us: Sequence[float]) -> list[float]:
    """Entropy in bits of the first n samples, for every n."""
    counts: Counter[float] = Counter()
    found, weight = [], 0.0  # weight: sum of c * log2(c)
    for n, sample in enumerate(samples_us, start=1):
        c = counts[sample]
        weight += (c + 1) * math.log2(c + 1) - (c * math.log2(c) if c else 0.0)
        counts[sample] = c + 1
        found.append(max(0.0, math.log2(n) - weight / n))
    return found


def _line(values: Sequence[float]) -> tuple[float, float]:
    """Slope and coefficient of determination of the least-squares line. Equal values fit their line perfectly."""
    mean = statistics.fmean(values)
    scatter = sum((v - mean) ** 2 for v in values)
    slope, intercept = statistics.linear_regression(range(len(values)), values)
    rest = sum((v - intercept - slope * i) ** 2 for i, v in enumerate(values))
    return slope, 1 - rest / scatter if scatter else 1.0


CRITERIA: dict[CriterionName, type[Criterion]] = {"ci95": MedianInterval, "stdrel": RelativeDeviation, "entropy": Entropy}

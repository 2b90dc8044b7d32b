"""When a measurement has enough samples: our criterion, and nvbench's two for comparison. Pure Python."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from typing import Literal

from kernels.stats import ci95_of_median

CriterionName = Literal["ci95", "stdrel", "entropy"]


class Criterion(ABC):
    """Takes samples as they come and says whether they are enough. Bounds on count and time are the caller's."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    @abstractmethod
    def add(self, samples_us: Sequence[float]) -> None: ...

    @abstractmethod
    def enough(self) -> bool: ...


class MedianInterval(Criterion):
    """The 95% confidence interval of the median is within +- `limit` of it."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self.samples: list[float] = []

    def add(self, samples_us: Sequence[float]) -> None:
        self.samples += samples_us

    def enough(self) -> bool:
        return ci95_of_median(sorted(self.samples)) <= self.limit


class RelativeDeviation(Criterion):
    """nvbench's `stdrel`: the standard deviation over the mean is below `limit`, or has settled above it.

    Settled: of the last `WINDOW` deviations, looked at every `EVERY` samples, the relative deviation is below `SETTLED`.
    So many deviations in a row without a finite value end it too (nvbench, `stdrel_criterion.cxx`).
    """

    FIRST, WINDOW, EVERY, SETTLED = 5, 64, 16, 0.05

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self.count, self.mean, self.scatter = 0, 0.0, 0.0
        self.noises: deque[float] = deque(maxlen=self.WINDOW)
        self.not_finite, self.settled = 0, False

    def add(self, samples_us: Sequence[float]) -> None:
        for sample in samples_us:
            self.count += 1
            before = sample - self.mean
            self.mean += before / self.count
            self.scatter += before * (sample - self.mean)  # Welford 1962
            if self.count >= self.FIRST:
                self._note(math.sqrt(self.scatter / (self.count - 1)) / self.mean if self.mean else math.inf)

    def _note(self, noise: float) -> None:
        if math.isfinite(noise):
            self.noises.append(noise)
            self.not_finite = 0
        else:
            self.not_finite += 1
        if self.count % self.EVERY == 0:
            self.settled = self._has_settled()

    def enough(self) -> bool:
        low = bool(self.noises) and self.noises[-1] < self.limit
        return low or self.settled or self.not_finite >= self.WINDOW

    def _has_settled(self) -> bool:
        if len(self.noises) < self.WINDOW:
            return False
        mean = statistics.fmean(self.noises)
        return mean > 0 and statistics.stdev(self.noises) / mean < self.SETTLED


class Entropy(Criterion):
    """nvbench's `entropy`: the entropy of the samples' histogram no longer grows.

    H = log2(n) - sum(c * log2(c)) / n over the counts c of equal samples; a line through the last `WINDOW` entropies must
    rise by at most `limit` degrees a sample with a coefficient of determination of at least `LEAST_R2`. Looked at when n
    is even (nvbench, `entropy_criterion.cxx`).
    """

    WINDOW, LEAST_R2 = 299, 0.36

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self.counts: Counter[float] = Counter()
        self.count, self.weight = 0, 0.0  # weight: sum of c * log2(c)
        self.entropies: deque[float] = deque(maxlen=self.WINDOW)

    def add(self, samples_us: Sequence[float]) -> None:
        for sample in samples_us:
            c = self.counts[sample]
            self.weight += (c + 1) * math.log2(c + 1) - (c * math.log2(c) if c else 0.0)
            self.counts[sample] = c + 1
            self.count += 1
            self.entropies.append(max(0.0, math.log2(self.count) - self.weight / self.count))

    def enough(self) -> bool:
        even = list(self.entropies)[: len(self.entropies) - self.count % 2]
        if len(even) < 2:
            return False
        slope, r2 = _line(even)
        return math.degrees(math.atan(slope)) <= self.limit and r2 >= self.LEAST_R2


def _line(values: Sequence[float]) -> tuple[float, float]:
    """Slope and coefficient of determination of the least-squares line; a line without any rise fits itself."""
    mean = statistics.fmean(values)
    scatter = sum((v - mean) ** 2 for v in values)
    slope, intercept = statistics.linear_regression(range(len(values)), values)
    rest = sum((v - intercept - slope * i) ** 2 for i, v in enumerate(values))
    return slope, 1 - rest / scatter if scatter else 1.0


CRITERIA: dict[str, type[Criterion]] = {"ci95": MedianInterval, "stdrel": RelativeDeviation, "entropy": Entropy}

"""When a measurement has enough samples: our criterion, and nvbench's two for comparison. Pure Python.

Samples are microseconds in the order they were taken, in blocks.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Literal

from kernels.timing.stats import ci95_of_blocks

CriterionName = Literal["ci95", "stdrel", "entropy"]
# decided and uncontested: with timing.precision=decide, `racing.py`.
StopReason = Literal[CriterionName, "max_samples", "max_seconds", "throttled", "decided", "uncontested"]


# Decides whether samples are enough, by a limit in the criterion's own unit. The caller bounds their number and time.
Criterion = Callable[[Sequence[Sequence[float]], float], bool]


def relative_deviation(samples_us: Sequence[float], limit: float) -> bool:
    """nvbench's `stdrel`: enough if the standard deviation over the mean is below `limit`, or has settled above it.

    It has settled if the last 64 deviations, checked every 16 samples, have a relative standard deviation below 0.05 (nvbench,
    `stdrel_criterion.cxx`).
    """
    first, window, every, settled = 5, 64, 16, 0.05
    noises = _running_deviations(samples_us)[first - 1 :]
    if not noises or noises[-1] < limit:
        return bool(noises)
    last = noises[: len(noises) - len(samples_us) % every][-window:]
    mean = statistics.fmean(last) if len(last) == window else 0.0
    return mean > 0 and statistics.stdev(last) / mean < settled


def _running_deviations(samples_us: Sequence[float]) -> list[float]:
    """Relative standard deviation of the first n samples, for every n (Welford 1962)."""
    found, mean, scatter = [], 0.0, 0.0
    for n, sample in enumerate(samples_us, start=1):
        off = sample - mean
        mean += off / n
        scatter += off * (sample - mean)
        found.append(math.sqrt(scatter / (n - 1)) / mean if n > 1 else 0.0)
    return found


def entropy(samples_us: Sequence[float], limit: float) -> bool:
    """nvbench's `entropy`: enough if the entropy of the samples' histogram no longer grows.

    H = log2(n) - sum(c * log2(c)) / n over the counts c of equal samples. A line through the last 299 entropies must rise by at
    most `limit` degrees a sample, with a coefficient of determination of at least 0.36. Checked if n is even (nvbench,
    `entropy_criterion.cxx`).
    """
    window, min_r2 = 299, 0.36
    entropies = _running_entropies(samples_us[: len(samples_us) // 2 * 2])[-window:]
    if len(entropies) < 2:
        return False
    slope, r2 = _line(entropies)
    return math.degrees(math.atan(slope)) <= limit and r2 >= min_r2


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


CRITERIA: dict[CriterionName, Criterion] = {
    "ci95": lambda blocks_us, limit: ci95_of_blocks(blocks_us) <= limit,  # the median's interval, relative
    "stdrel": lambda blocks_us, limit: relative_deviation([*chain(*blocks_us)], limit),
    "entropy": lambda blocks_us, limit: entropy([*chain(*blocks_us)], limit),
}

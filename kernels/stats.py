"""Statistics of one point's samples. Pure Python; no sample is ever left out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Z95 = 1.96  # two-sided 95% quantile of the normal distribution


@dataclass(frozen=True)
class Summary:
    """Times in microseconds. `ci95_rel` is the half-width of the median's 95% confidence interval over the median."""

    median_us: float
    mean_us: float
    std_us: float
    min_us: float
    p05_us: float
    p95_us: float
    ci95_rel: float
    num_samples: int


def summarize(samples_us: Sequence[float]) -> Summary:
    """The row's time columns from at least one sample; `std_us` is Bessel-corrected, 0 for a single sample."""
    ordered = sorted(samples_us)
    return Summary(
        median_us=statistics.median(ordered),
        mean_us=statistics.fmean(ordered),
        std_us=statistics.stdev(ordered) if len(ordered) > 1 else 0.0,
        min_us=ordered[0],
        p05_us=_quantile(ordered, 0.05),
        p95_us=_quantile(ordered, 0.95),
        ci95_rel=ci95_of_median(ordered),
        num_samples=len(ordered),
    )


def ci95_of_median(ordered: Sequence[float]) -> float:
    """Relative half-width of the median's 95% interval from order statistics; infinite below 6 samples.

    The number of samples under the true median is Binomial(n, 1/2), so the ranks n/2 - 1.96 * sqrt(n)/2 and
    1 + n/2 + 1.96 * sqrt(n)/2 enclose it (Conover, Practical Nonparametric Statistics, section 3.2). Assumes nothing of
    the samples' distribution.
    """
    n = len(ordered)
    if n < 6:  # the widest interval, minimum to maximum, then covers less than 95%
        return math.inf
    reach = Z95 * math.sqrt(n) / 2
    low = max(0, math.floor(n / 2 - reach) - 1)
    high = min(n - 1, math.ceil(n / 2 + reach))
    return (ordered[high] - ordered[low]) / 2 / statistics.median(ordered)


def _quantile(ordered: Sequence[float], q: float) -> float:
    """Linear interpolation between closest ranks, as numpy and pandas do by default."""
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)

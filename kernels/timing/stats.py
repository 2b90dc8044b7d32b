"""Statistics of one point's samples, which come in blocks. Pure Python. Every sample given is used."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

Z95 = 1.96  # two-sided 95% quantile of the normal distribution
MIN_EFFECT = 2.0  # few blocks tell little of how they differ; with less, intervals of A/A pairs hold 90% (docs/timing.md)
LARGE = 1000  # samples from which on the normal distribution approximates the binomial well

# Two modes: each side of the best cut has a tenth of the samples, their means differ by a hundredth of the median, and Ashman's D
# exceeds 5. One mode cut in two reaches 2.7 if it is normal, 3.5 if it is uniform, and 4 with a long tail.
MIN_MODE_SHARE, MIN_MODE_DISTANCE_REL, MIN_ASHMAN_D = 0.1, 0.01, 5.0


@dataclass(frozen=True)
class Summary:
    """Times in microseconds. `ci95_rel` is the distance of the farther end of the median's 95% interval, over the median."""

    median_us: float
    mean_us: float
    std_us: float
    min_us: float
    p05_us: float
    p95_us: float
    ci95_rel: float
    num_samples: int
    within_block_rel: float | None  # interquartile range of a block over its median, of the median block; None in blocks of one
    between_blocks_rel: float  # from the lowest block median to the highest, over the median of all samples
    lag1_autocorr: float  # of neighbours in time: 0 if they are independent or all equal
    bimodal: bool


def summarize(blocks_us: Sequence[Sequence[float]]) -> Summary:
    """The row's time columns, from blocks of samples (µs), one or more, as they were taken. `std_us` is Bessel-corrected."""
    blocks = [block for block in blocks_us if block]
    in_time = [sample for block in blocks for sample in block]
    ordered = sorted(in_time)
    medians = [statistics.median(block) for block in blocks]
    several = [sorted(block) for block in blocks if len(block) > 1]
    spreads = [(quantile(block, 0.75) - quantile(block, 0.25)) / statistics.median(block) for block in several]
    return Summary(
        median_us=statistics.median(ordered),
        mean_us=statistics.fmean(ordered),
        std_us=statistics.stdev(ordered) if len(ordered) > 1 else 0.0,
        min_us=ordered[0],
        p05_us=quantile(ordered, 0.05),
        p95_us=quantile(ordered, 0.95),
        ci95_rel=ci95_of_blocks(blocks),
        num_samples=len(ordered),
        within_block_rel=statistics.median(spreads) if spreads else None,
        between_blocks_rel=(max(medians) - min(medians)) / statistics.median(ordered),
        lag1_autocorr=lag1_autocorrelation(in_time),
        bimodal=is_bimodal(ordered),
    )


def ci95_of_median(ordered: Sequence[float]) -> float:
    """The distance from the median to the farther end of its 95% interval, over the median. Infinite for fewer than 6 samples.

    The interval comes from order statistics. The number of independent samples below the true median is Binomial(n, 1/2), so the
    k-th samples from either end miss it with probability 2 P(fewer than k) (Conover, Practical Nonparametric Statistics, section
    3.2). k is the largest for which that is at most 5%. Samples must be independent; their distribution does not matter.
    """
    if len(ordered) < 6:  # the widest interval, minimum to maximum, then covers less than 95%
        return math.inf
    (low, high), median = interval_of_median(ordered), statistics.median(ordered)
    return max(high - median, median - low) / median


def ci95_of_blocks(blocks: Sequence[Sequence[float]]) -> float:
    """As `ci95_of_median`, of samples in blocks, those of a block resembling each other."""
    (low, high), median = interval_of_blocks(blocks), statistics.median(sample for block in blocks for sample in block)
    return max(high - median, median - low) / median


def interval_of_blocks(blocks: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Both ends of the median's 95% interval. Infinite for fewer than 6 samples; all samples if they count for fewer than 4.

    n samples count for n / effect independent ones, whose interval are the quantiles 1/2 -+ 1.96 / (2 sqrt(n / effect)). The effect
    is `design_effect`, and at least `MIN_EFFECT` in blocks of so many samples.
    """
    ordered = sorted(sample for block in blocks for sample in block)
    n = len(ordered)
    effect = max(design_effect(blocks), min(MIN_EFFECT, n / max(1, len(blocks))))
    if n < 6 or effect <= 1:
        return interval_of_median(ordered)
    reach = min(0.5, Z95 / 2 * math.sqrt(effect / n))
    return quantile(ordered, 0.5 - reach), quantile(ordered, 0.5 + reach)


def design_effect(blocks: Sequence[Sequence[float]]) -> float:
    """How many samples count as one, since those of a block resemble each other (Kish, Survey Sampling, section 8.2).

    By how much more the number of a block's samples above the median varies than if they were independent. A single block says
    nothing about how blocks differ, so it counts as one sample. `analysis/noise.py` has the same for many rows at once.
    """
    n, median = sum(map(len, blocks)), statistics.median(sample for block in blocks for sample in block)
    if len(blocks) == 1:
        return n
    sums = (sum((sample > median) - (sample < median) for sample in block) for block in blocks)
    return sum(d * d for d in sums) / n * len(blocks) / (len(blocks) - 1)


def interval_of_median(ordered: Sequence[float]) -> tuple[float, float]:
    """Both ends of the median's 95% interval, as `ci95_of_median` has it. Infinite for fewer than 6 samples."""
    n = len(ordered)
    if n < 6:
        return -math.inf, math.inf
    k = _rank_of_interval(n)
    return ordered[k - 1], ordered[n - k]


@cache
def _rank_of_interval(n: int) -> int:
    """The largest k with P(Binomial(n, 1/2) < k) <= 2.5%, at least 1; by the normal approximation if n is large."""
    if n > LARGE:
        return math.floor(n / 2 - Z95 * math.sqrt(n) / 2)
    below, k = 0, 0
    while (below := below + math.comb(n, k)) <= 0.025 * 2**n:
        k += 1
    return max(k, 1)


def lag1_autocorrelation(in_time: Sequence[float]) -> float:
    """Correlation of each sample with the next (Box and Jenkins, Time Series Analysis, section 2.1.5); 0 if all are equal."""
    mean = statistics.fmean(in_time)
    off = [sample - mean for sample in in_time]
    variance = sum(d * d for d in off)
    return sum(a * b for a, b in itertools.pairwise(off)) / variance if variance > 0 else 0.0


def is_bimodal(ordered: Sequence[float]) -> bool:
    """Whether sorted samples have two modes, such as two clock rates or two placements of a kernel.

    Cuts them so that the spread within the two sides is least (Otsu 1979), and tests whether the sides are separate:
    Ashman's D = sqrt(2) * |m1 - m2| / sqrt(s1^2 + s2^2) (Ashman, Bird and Zepf 1994).
    """
    n, least = len(ordered), max(2, math.ceil(len(ordered) * MIN_MODE_SHARE))
    cuts = range(least, n - least + 1)
    if not cuts:
        return False
    sums = list(itertools.accumulate(ordered, initial=0.0))
    squares = list(itertools.accumulate((sample * sample for sample in ordered), initial=0.0))

    def side(start: int, stop: int) -> tuple[float, float]:
        mean = (sums[stop] - sums[start]) / (stop - start)
        return mean, max(0.0, (squares[stop] - squares[start]) / (stop - start) - mean * mean)

    def scatter(cut: int) -> float:
        return cut * side(0, cut)[1] + (n - cut) * side(cut, n)[1]

    cut = min(cuts, key=scatter)
    (low, low_var), (high, high_var) = side(0, cut), side(cut, n)
    distance = high - low
    # Sums of squares lose differences below 1e-7 of a sample.
    noise = math.sqrt(low_var + high_var) + 1e-7 * high
    return distance > MIN_MODE_DISTANCE_REL * statistics.median(ordered) and math.sqrt(2) * distance / noise > MIN_ASHMAN_D


def quantile(ordered: Sequence[float], q: float) -> float:
    """Linear interpolation between closest ranks, as numpy and pandas do by default."""
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)

"""How large a rate may be of which a few cases were counted. Pure."""

from __future__ import annotations

import math

CONFIDENCE = 0.95


def upper_bound(cases: int, count: int) -> float:
    """The rate of which so few cases, or fewer, would come in 5 of 100 counts: Clopper and Pearson's one-sided bound."""
    if cases >= count:
        return 1.0
    low, high = cases / count, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if _at_most(cases, count, rate) > 1 - CONFIDENCE else (low, rate)
    return high


def count_needed(cases: int, rate: float) -> int:
    """The smallest count in which so many cases show that their rate is at most `rate`."""
    low, high = cases, math.ceil((cases + 1) / rate)
    while upper_bound(cases, high) > rate:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if upper_bound(cases, middle) > rate else (low, middle)
    return high


def _at_most(cases: int, count: int, rate: float) -> float:
    """The probability of so many cases or fewer."""

    def log_of(k: int) -> float:
        choices = math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        return choices + k * math.log(rate) + (count - k) * math.log1p(-rate)

    return math.fsum(math.exp(log_of(k)) for k in range(cases + 1))

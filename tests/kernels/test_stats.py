"""Statistics against numpy, and what the confidence interval promises."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.stats import ci95_of_median, summarize

times = st.lists(st.floats(0.5, 1e6), min_size=1, max_size=200)


@given(times)
def test_a_summary_is_what_numpy_says(samples: list[float]):
    s = summarize(samples)

    assert s.median_us == pytest.approx(np.median(samples))
    assert s.mean_us == pytest.approx(np.mean(samples))
    assert s.std_us == pytest.approx(np.std(samples, ddof=1) if len(samples) > 1 else 0.0, abs=1e-6)
    assert (s.p05_us, s.p95_us) == pytest.approx(tuple(np.quantile(samples, [0.05, 0.95])))
    assert (s.min_us, s.num_samples) == (min(samples), len(samples))


@pytest.mark.parametrize("count", [20, 50, 200])
def test_the_interval_covers_the_true_median_95_times_in_100(count: int):
    draw = random.Random(1)
    covered = 0
    for _ in range(2000):
        samples = sorted(draw.random() for _ in range(count))
        width = 2 * ci95_of_median(samples) * statistics.median(samples)
        # The interval is one between order statistics as far from either end as it is wide.
        intervals = [(samples[i], samples[count - 1 - i]) for i in range(count // 2)]
        low, high = min(intervals, key=lambda ends: abs(ends[1] - ends[0] - width))
        covered += low <= 0.5 <= high

    assert 0.945 <= covered / 2000 <= 0.99


def test_too_few_samples_know_nothing():
    assert ci95_of_median([1.0] * 5) == math.inf
    assert ci95_of_median([1.0] * 6) == 0

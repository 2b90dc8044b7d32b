"""Statistics against numpy, and what the confidence interval promises."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.timing.stats import ci95_of_median, is_bimodal, lag1_autocorrelation, summarize

times = st.lists(st.floats(0.5, 1e6), min_size=1, max_size=200)


@given(times, st.integers(1, 20))
def test_a_summary_is_what_numpy_says(samples: list[float], size: int):
    blocks = [samples[i : i + size] for i in range(0, len(samples), size)]
    s = summarize(blocks)
    medians = [np.median(block) for block in blocks]

    assert s.median_us == pytest.approx(np.median(samples))
    assert s.mean_us == pytest.approx(np.mean(samples))
    assert s.std_us == pytest.approx(np.std(samples, ddof=1) if len(samples) > 1 else 0.0, rel=1e-9, abs=1e-6)
    assert (s.p05_us, s.p95_us) == pytest.approx(tuple(np.quantile(samples, [0.05, 0.95])))
    assert (s.min_us, s.num_samples) == (min(samples), len(samples))
    assert s.between_blocks_rel == pytest.approx((max(medians) - min(medians)) / np.median(samples))
    spreads = [np.subtract(*np.quantile(block, [0.75, 0.25])) / np.median(block) for block in blocks if len(block) > 1]
    assert s.within_block_rel == (pytest.approx(np.median(spreads), rel=1e-9, abs=1e-12) if spreads else None)


@pytest.mark.parametrize(("count", "rank"), [(6, 1), (8, 1), (9, 2), (10, 2), (12, 3), (20, 6), (22, 6), (50, 18), (200, 86)])
def test_the_interval_is_that_of_the_published_ranks(count: int, rank: int):
    """Conover's table A3 (binomial, p = 1/2): the rank-th sample from either end."""
    samples = [1000.0 + n**2 for n in range(count)]
    median = statistics.median(samples)

    assert ci95_of_median(samples) == pytest.approx((samples[-rank] - median) / median)  # the upper end is the farther


@pytest.mark.parametrize("count", [20, 50, 200, 2000])
def test_the_interval_covers_the_true_median_95_times_in_100(count: int):
    draw = random.Random(1)
    covered = 0
    for _ in range(1500):
        samples = sorted(draw.random() for _ in range(count))
        median = statistics.median(samples)
        reach = ci95_of_median(samples) * median
        covered += median - reach - 1e-12 <= 0.5 <= median + reach + 1e-12

    assert 0.945 <= covered / 1500 <= 0.99


def test_too_few_samples_know_nothing():
    assert ci95_of_median([1.0] * 5) == math.inf
    assert ci95_of_median([1.0] * 6) == 0


def test_autocorrelation_tells_a_drift_from_noise():
    draw = random.Random(2)
    noise = [100 + draw.gauss(0, 1) for _ in range(400)]
    drift = [100 + n * 0.01 + draw.gauss(0, 0.1) for n in range(400)]
    swinging = [100 + (-1) ** n for n in range(400)]

    assert abs(lag1_autocorrelation(noise)) < 0.15
    assert lag1_autocorrelation(drift) > 0.9
    assert lag1_autocorrelation(swinging) < -0.9
    assert lag1_autocorrelation([7.0] * 10) == 0


@pytest.mark.parametrize(
    ("sample", "bimodal"),
    [
        (lambda draw: draw.gauss(100, 2), False),
        (lambda draw: draw.uniform(90, 110), False),
        (lambda draw: 100 + draw.expovariate(0.5), False),
        (lambda draw: 100.0, False),
        (lambda draw: draw.choice([100.0, 100.5]), False),  # the timer's own steps
        (lambda draw: draw.gauss(100, 2) + (500 if draw.random() < 0.02 else 0), False),  # a few outliers are no mode
        (lambda draw: draw.gauss(100, 1) + draw.choice([0, 12]), True),
        (lambda draw: draw.gauss(100, 1) + (30 if draw.random() < 0.2 else 0), True),
    ],
)
@pytest.mark.parametrize("count", [50, 200])
def test_two_modes_are_distinguished_from_one(sample: object, bimodal: bool, count: int):
    found = []
    for seed in range(20):
        draw = random.Random(seed)
        found.append(is_bimodal(sorted(sample(draw) for _ in range(count))))  # type: ignore[operator]

    assert sum(found) >= 18 if bimodal else sum(found) <= 1

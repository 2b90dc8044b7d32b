"""Statistics against numpy, and what the confidence interval promises."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.timing.stats import (
    ci95_of_blocks,
    ci95_of_median,
    design_effect,
    interval_of_blocks,
    is_bimodal,
    lag1_autocorrelation,
    summarize,
)
from orchestrator.analysis.noise import _effective_counts

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


@pytest.mark.parametrize("between", [0.0, 0.3, 0.6, 1.0])
def test_an_interval_of_blocks_covers_the_true_median_however_alike_their_samples_are(between: float):
    """`between`: the share of the variance that all samples of a block have in common. As independent ones they hold 62% to 95%."""
    draw, covered = np.random.default_rng(1), 0
    for _ in range(800):
        blocks = draw.normal(0, math.sqrt(between), (8, 1)) + draw.normal(0, math.sqrt(1 - between), (8, 5))
        low, high = interval_of_blocks(blocks.tolist())
        covered += low <= 0 <= high

    assert covered / 800 >= 0.92


def test_the_design_effect_is_that_of_a_comparison_s_effective_number():
    draw = np.random.default_rng(2)
    blocks = [(draw.normal() + draw.normal(size=size)).tolist() for size in (1, 10, 10, 4)]
    flat = np.concatenate([*map(np.array, blocks)])
    effective = _effective_counts(np.sign(flat - np.median(flat)), np.array([25]), [[1, 10, 10, 4]])[0]

    assert 25 / max(1.0, design_effect(blocks)) == pytest.approx(effective)
    assert (design_effect([[1.0, 2.0, 3.0]]), design_effect([[1.0], [2.0], [3.0], [4.0]])) == (3, pytest.approx(4 / 3))


def test_samples_of_blocks_count_for_less_and_blocks_of_one_for_all():
    ordered = [1000.0 + n for n in range(40)]
    apart, in_blocks = [[us] for us in ordered[::2] + ordered[1::2]], [ordered[n::4] for n in range(4)]

    assert ci95_of_blocks(in_blocks) > ci95_of_median(ordered)
    assert ci95_of_blocks(apart) == pytest.approx(ci95_of_median(ordered), rel=0.2)
    assert ci95_of_blocks([[1.0] * 5]) == math.inf and ci95_of_blocks([[1.0] * 3, [1.0] * 3]) == 0


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

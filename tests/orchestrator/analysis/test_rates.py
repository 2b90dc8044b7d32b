"""Bounds of rates, against figures of Clopper and Pearson's interval."""

from __future__ import annotations

import pytest

from orchestrator.reporting.quality import count_needed, upper_bound


def test_the_bound_is_that_of_clopper_and_pearson():
    assert upper_bound(0, 299) == pytest.approx(1 - 0.05 ** (1 / 299), abs=1e-9)
    assert upper_bound(3, 63_000) == pytest.approx(0.000123, abs=1e-6)
    assert upper_bound(5, 5) == 1.0


@pytest.mark.parametrize(("missed", "needed"), [(0, 299), (1, 473), (2, 628)])
def test_how_many_are_needed_for_99_percent(missed: int, needed: int):
    assert count_needed(missed, 0.01) == needed
    assert upper_bound(missed, needed) <= 0.01 < upper_bound(missed, needed - 1)

"""What is read from rows of two releases."""

from __future__ import annotations

import math

import pytest

from orchestrator.analysis.noise import NoiseFloors
from orchestrator.bisection.evidence import Round, pairs_of
from orchestrator.storage.row import Row
from tests.helpers.compared import table, timed


def row(s_kv: int, median: float, status: str = "ok", kernel: str = "fa2") -> Row:
    return timed("auto", median, status=status, reason="it broke" if status != "ok" else "", s_kv=s_kv, resolved_backend=kernel)


def pairs(good: list[Row], other: list[Row]) -> Round:
    return pairs_of(table(*good), table(*other), NoiseFloors({}), 0.02)


def test_a_pair_has_the_change_its_error_and_the_kernels_of_both():
    found = {pair.point: pair for pair in pairs([row(1, 10.0), row(2, 20.0)], [row(2, 30.0, kernel="fa3"), row(1, 10.0)])}

    slower = found["s_kv=2"]
    assert slower.log_ratio == pytest.approx(math.log(1.5), abs=1e-3)
    assert 0 < slower.se < 0.05
    assert (slower.good.resolved_backend, slower.other.resolved_backend) == ("fa2", "fa3")
    assert (slower.good.median_us, slower.other.median_us) == pytest.approx((20.0, 30.0), rel=1e-3)
    assert found["s_kv=1"].log_ratio == pytest.approx(0.0, abs=1e-3)


def test_a_point_without_a_time_on_either_side_keeps_its_status_and_reason():
    found = {
        pair.point: pair for pair in pairs([row(1, 10.0), row(2, 10.0), row(3, 10.0)], [row(1, 10.0), row(2, 10.0, "mismatch")])
    }

    assert (found["s_kv=2"].other.status, found["s_kv=2"].other.reason) == ("mismatch", "it broke")
    assert found["s_kv=2"].log_ratio is None
    assert found["s_kv=3"].other.status == "missing"

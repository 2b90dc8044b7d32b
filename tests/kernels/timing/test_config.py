"""The keys of `timing`: their names, their bounds, and which of them name a point."""

from __future__ import annotations

from typing import Any

import pytest

from kernels.timing.config import Timing


def test_a_minimum_above_the_maximum_is_refused():
    with pytest.raises(ValueError, match="min_samples=500: allowed: at most max_samples=200"):
        Timing(min_samples=500)


def test_a_later_key_with_its_default_changes_no_point_id():
    assert "icache" not in Timing().identity() and "name" not in Timing().identity()
    assert Timing(icache="cold").identity() == {**Timing().identity(), "icache": "cold"}


def test_another_pace_is_another_point_measured_in_full_and_only_where_nothing_pauses():
    assert "pace" not in Timing().identity() and Timing(pace="sustained").identity()["pace"] == "sustained"
    assert Timing(precision="decide").races and not Timing(precision="decide", pace="sustained").races
    for keys in ({"timer": "eager"}, {"timer": "cupti"}, {"l2": "warm"}, {"context": "engine"}):
        with pytest.raises(ValueError, match=r"pace=sustained: .* allowed: timer=graph and l2=clean or dirty"):
            Timing.model_validate({"pace": "sustained", **keys})


@pytest.mark.parametrize("typed", ["cold", "dirty"])
def test_dirty_lines_have_the_point_ids_that_they_had_as_cold(typed: Any):
    assert Timing(l2=typed).l2 == "dirty"
    assert Timing(l2=typed).identity()["l2"] == "cold"


def test_clean_lines_are_the_default_and_no_other_state_s_point():
    assert Timing().l2 == Timing().caches.l2 == "clean"
    assert len({Timing(l2=l2).identity()["l2"] for l2 in ("clean", "dirty", "warm")}) == 3


def test_energy_needs_calls_without_gaps():
    with pytest.raises(ValueError, match="allowed: timer=graph or timer=cupti"):
        Timing(energy=True, timer="eager")
    assert "energy" not in Timing().identity() and Timing(energy=True).identity()["energy"] is True


def test_the_criterion_s_limit_keeps_its_name_in_yaml_and_in_point_ids():
    assert Timing.model_validate({"limit": 0.02}) == Timing(criterion_limit=0.02)
    assert Timing(criterion_limit=0.02).identity()["limit"] == 0.02
    assert "criterion_limit" not in Timing().identity()


def test_the_criterion_s_limit_is_given_once():
    with pytest.raises(ValueError, match="the same key"):
        Timing.model_validate({"limit": 0.02, "criterion_limit": 0.03})


def test_the_host_s_time_enters_the_key_only_if_it_is_asked_for():
    assert "host" not in Timing().identity()
    assert Timing(host=True).identity()["host"] is True

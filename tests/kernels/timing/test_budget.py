"""When the time of one backend is spent."""

from __future__ import annotations

import pytest

from kernels.timing.config import Timing
from kernels.timing.series import Budget


@pytest.mark.parametrize(
    ("wall_s", "gaps_s", "spent"), [(0.49, 0.0, False), (0.5, 0.0, True), (0.25, 0.49, False), (0.25, 0.5, True)]
)
def test_blocks_and_the_gaps_before_them_spend_the_budget(wall_s: float, gaps_s: float, spent: bool):
    assert Budget(Timing(max_seconds=0.5), wall_s, gaps_s, waits_s=9.0, settling_s=9.0).is_spent == spent


@pytest.mark.parametrize(("waits_s", "spent"), [(0.99, False), (1.0, True)])
def test_waits_after_throttled_blocks_have_a_budget_of_their_own(waits_s: float, spent: bool):
    budget = Budget(Timing(max_pause_seconds=1.0), wall_s=9.0, gaps_s=9.0, waits_s=waits_s, settling_s=9.0)

    assert budget.waits_are_spent == spent


def test_idle_time_is_rests_and_waits_of_every_kind():
    assert Budget(Timing(), wall_s=8.0, gaps_s=1.0, waits_s=2.0, settling_s=4.0).idle_s == 7.0

"""Measures backends in turns, block by block, so that a drift of the device affects all of them alike."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kernels.timing.pacing import Pacer
from kernels.timing.racing import Race
from kernels.timing.series import Series


def measure_interleaved(series: Sequence[Series], pacer: Pacer, seed: int, race: Race | None = None) -> None:
    """Takes blocks of every series in rounds until each has stopped or failed. `seed` shuffles the order of each round.

    A drift of the device then affects all backends alike, and no backend always follows the same neighbour. Earlier work, such as
    a check, may have met the power cap: the loop waits for that first and charges the wait to the first series.
    A `race` stops those that are decided; the series may be a part of it.
    """
    active, shuffle = list(series), random.Random(seed)
    race = race or Race((), ())
    series[0].budget.settling_s += pacer.wait_until_unthrottled()
    while active:
        shuffle.shuffle(active)
        for one in active:
            one.take_block(pacer, race.round)
        race.judge(active)
        race.round += 1
        active = [one for one in active if one.stop_reason is None and one.error is None]

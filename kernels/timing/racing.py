"""Backends of one problem race: one that is certainly not the best stops early (timing.precision=decide).

What is asked of a backend is whether its time is within `WITHIN` of the best. After each round its block is compared with the block
that each rival took in the same round, so that a drift of the device cancels. A block speaks against it if it took more than
`WITHIN` * `OFF`^2 times as long as the rival's. That is Wald's sequential test (1945) on blocks: if at most one block in
`ODDS` + 1 is so far off its rival's by chance, whatever came before, then the backend is truly that slow or something of
probability `ODDS`^-`NEEDED` has happened, at any time and however often one looks (Ville 1939).
docs/timing.md has the error rates.

Who is decided stops once its own blocks agree, or has taken `SETTLED_BLOCKS`: two blocks may be off alike, and then its rough time
would be too, by which `mode=compare` judges it later.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from kernels.timing.stopping import StopReason

WITHIN = 1.05  # of the best: a backend nearer than this is measured to full precision
OFF = 1.05  # a block of either side may be off by this factor
ODDS = 31  # to one that a block of a backend that is not slower does not speak against it
NEEDED = 2  # blocks against it, more than for it
FIRST_BLOCK_US = 500.0  # of a shorter call the first block, a single sample, may be off: by over 5% at 4% to 42% of committed rows
SETTLED_BLOCKS = 5  # of a decided backend whose blocks differ by more than `OFF`: their median holds against two that are off
FEWEST_BLOCKS = 2  # of a rival, for its median to stand for rounds in which it took none
UNCONTESTED = 2.0  # without a rival left, a median may be so many times as uncertain as `timing.limit` says
STOPPED_EARLY = ("decided", "uncontested")  # the reasons for which a series in a race stops with less than full precision

_Medians = dict[int, tuple[float, float]]  # by round: µs and MHz of a block


class Racer(Protocol):
    """What a race needs of a series. `decided_by` is the rival that is certainly faster."""

    stop_reason: StopReason | None
    error: Exception | None
    decided_by: Self | None

    def block_medians(self) -> _Medians: ...

    def is_known_within(self, limits: float) -> bool: ...


@dataclass
class Race:
    """The series of one problem, by `round`. Only those in `contenders` can show that another is slow: a reference is no choice."""

    series: Sequence[Racer]
    contenders: Sequence[Racer]
    round: int = field(default=0, init=False)

    def judge(self, active: Sequence[Racer]) -> None:
        """After a round: stops those of the active series that are decided, and one that no rival is left for."""
        if len(self.series) < 2:
            return
        medians = {id(one): one.block_medians() for one in self.series if one.error is None}
        for one in active:
            if one.stop_reason is None and one.error is None:
                by = next((by for by in self.contenders if by is not one and _is_slower(one, by, medians)), None)
                one.decided_by = by if _is_settled(medians[id(one)]) else None
                one.stop_reason = None if one.decided_by is None else "decided"
        left = [one for one in self.series if one.stop_reason != "decided" and one.error is None]
        alone = left[0] if len(left) == 1 and any(one.decided_by for one in self.series) else None
        if alone is not None and alone.stop_reason is None and alone.is_known_within(UNCONTESTED):
            alone.stop_reason = "uncontested"


def _is_slower(one: Racer, rival: Racer, medians: dict[int, _Medians]) -> bool:
    """Whether the blocks show that a series takes more than `WITHIN` times as long as a rival."""
    own, theirs = medians[id(one)], medians.get(id(rival), {})
    if len(theirs) < FEWEST_BLOCKS:
        return False
    usual = statistics.median(us for us, _ in theirs.values()), statistics.fmean(mhz for _, mhz in theirs.values())
    against = 0
    for number, (us, mhz) in own.items():
        if number == 0 and us < FIRST_BLOCK_US:
            continue
        their_us, their_mhz = theirs.get(number, usual)
        # A clock that is lower than the rival's may come from a cap that NVML has not reported yet: its time is what it would be.
        clock = 1.0 if math.isnan(mhz / their_mhz) else min(1.0, mhz / their_mhz)
        against += 1 if us * clock > WITHIN * OFF * OFF * their_us else -1
    return against >= NEEDED


def _is_settled(medians: _Medians) -> bool:
    """Whether the blocks of a series agree, or are so many that its median holds against some that are off."""
    times = [us for us, _ in medians.values()]
    return len(times) >= SETTLED_BLOCKS or (len(times) > 1 and max(times) <= OFF * min(times))


def rough_interval_rel(ordered: Sequence[float]) -> float:
    """The interval of a decided median, as `ci95_of_median` has it: from the least sample / `OFF` to the largest * `OFF`."""
    median = statistics.median(ordered)
    return max(ordered[-1] * OFF - median, median - ordered[0] / OFF) / median

"""How carefully to measure, and the loop that does: backends in turns, in blocks, each until its samples are enough.

What is returned says what was done, not what was asked for.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from kernels.clock import STAMPS
from kernels.stopping import CRITERIA, CriterionName
from kernels.timers import Block, L2State, Timer, TimerName
from kernels.witness import Reading, Witness

LEAST_SAMPLES = 10
LEAST_OF_FASTEST = 0.95  # a series' own clock spreads by half a percent, and falls by a tenth and more where power is capped
SLOW_CLOCK = f"SM clock under {LEAST_OF_FASTEST:.0%} of its fastest"
FIRST_PAUSE_S, PAUSE_GROWTH, PAUSE_DECAY, LONGEST_PAUSE_S = 0.05, 1.5, 0.7, 0.5  # growth and longest as in nvbench


class Timing(BaseModel):
    """How to measure. `limit` is the criterion's: relative half-width (ci95), relative deviation (stdrel), degrees (entropy)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "custom"
    timer: TimerName = "graph"  # of a CUDA device; a CPU has its wall clock
    l2: L2State = "cold"
    l2_flush_factor: Annotated[float, Field(ge=2)] = 2.0  # bytes written before each sample, over the size of the L2
    warmup: NonNegativeInt = 3  # calls before the first sample; 0 also leaves out the time of the CPU
    criterion: CriterionName = "ci95"
    limit: PositiveFloat = 0.005
    min_samples: Annotated[int, Field(ge=LEAST_SAMPLES)] = 20
    max_samples: Annotated[int, Field(ge=LEAST_SAMPLES)] = 200
    min_seconds: NonNegativeFloat = 0.0  # of measured time, the sum of the samples
    max_seconds: PositiveFloat = 0.5  # of wall time spent on sampling; two blocks and 10 samples are taken all the same
    block_samples: Annotated[int, Field(ge=2, lt=STAMPS)] = 10  # at most, taken at a turn
    block_seconds: PositiveFloat = 0.02  # a turn ends about then: short bursts keep a device from its power cap
    block_gap_seconds: NonNegativeFloat = 0.01  # between the first two blocks at least, where no other backend lies between
    throttled: Literal["keep", "refuse"] = "keep"  # what becomes of a point that never ran with its clock left alone
    max_pause_seconds: PositiveFloat = 1.0  # to wait for the clock of one point to recover


@dataclass(frozen=True)
class Measurement:
    """Samples in the order they were taken, block by block, and how they were taken.

    `stop_reason` is the criterion's name, `max_samples`, `max_seconds` or `throttled`. `set_aside_us` are samples that were
    taken while the device was held down; where too few others were to be had, they are in `blocks_us` too and `throttled` says why.
    """

    blocks_us: list[list[float]]
    mhz: list[float]  # mean SM clock of each sample in `blocks_us`; empty where it is not known
    stop_reason: str
    set_aside_us: list[float]
    throttled: str
    held_down_by: frozenset[str]  # what held the device down, of all samples
    readings: list[Reading]
    wall_s: float


@dataclass
class Series:
    """The samples of one backend as they grow, a block at a turn."""

    timer: Timer
    timing: Timing
    kept: list[Block] = field(default_factory=list)
    set_aside: list[Block] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    held_down_by: set[str] = field(default_factory=set)
    stop_reason: str = ""
    error: Exception | None = None
    wall_s: float = 0.0
    _fastest_mhz: float = 0.0
    _paused_s: float = 0.0
    _ended: float = 0.0

    def turn(self, witness: Witness, pause_s: float) -> bool:
        """Rests, then takes one block; whether the device was held down. A backend that raises ends its series, which keeps it."""
        self._rest(pause_s)
        start = time.perf_counter()
        try:
            block = self.timer.block(self._next_size(), witness)
        except Exception as error:  # a kernel library may raise anything
            self.error = error
            return False
        finally:
            self._ended = time.perf_counter()
            self.wall_s += self._ended - start
        before = sum(len(part.us) for part in self.set_aside)
        self._take(block)
        self.stop_reason = self._enough()
        return sum(len(part.us) for part in self.set_aside) > before

    def _take(self, block: Block) -> None:
        """Keeps a block, or sets it aside where NVML names a cause.

        Single samples are set aside where their clock was well under the fastest of this series, of whatever block: NVML
        answers late. Other backends are no measure, since the clock falls with the load, to 0.91 of the idle clock on one H200.
        """
        self.readings += block.readings
        causes = {cause for reading in block.readings for cause in reading.held_down_by}
        self.held_down_by |= causes
        (self.set_aside if causes else self.kept).append(block)
        self._fastest_mhz = max(self._fastest_mhz, *block.mhz, 0.0)
        slow_from = LEAST_OF_FASTEST * self._fastest_mhz
        slow = [part for each in self.kept if (part := _only(each, lambda mhz: mhz < slow_from))]
        if slow:
            self.set_aside += slow
            self.kept = [part for each in self.kept if (part := _only(each, lambda mhz: mhz >= slow_from))]
            self.held_down_by.add(SLOW_CLOCK)

    def _next_size(self) -> int:
        """Samples of the next block, two until it is known how long they take."""
        seen = [sample for block in (*self.kept, *self.set_aside) for sample in block.us]
        fit = int(self.timing.block_seconds / (sum(seen) / len(seen) / 1e6)) if seen else 2
        room = self.timing.max_samples - self._count()
        return max(1, min(max(2, fit), self.timing.block_samples, room))

    def _rest(self, pause_s: float) -> None:
        """Lets a device that is held down recover, and puts time between the first two blocks."""
        rest = pause_s
        if len(self.kept) == 1:
            rest = max(rest, self._ended + self.timing.block_gap_seconds - time.perf_counter())
        if rest > 0:
            time.sleep(rest)
        self._paused_s += pause_s

    def _count(self) -> int:
        return sum(len(block.us) for block in self.kept)

    def _enough(self) -> str:
        timing, count, blocks = self.timing, self._count(), len(self.kept)
        measured_s = sum(sum(block.us) for block in self.kept) / 1e6
        wanted = blocks >= 2 and count >= timing.min_samples and measured_s >= timing.min_seconds
        if wanted and CRITERIA[timing.criterion](timing.limit).enough([us for block in self.kept for us in block.us]):
            return timing.criterion
        taken = count + sum(len(block.us) for block in self.set_aside)
        if self.set_aside and self._paused_s >= timing.max_pause_seconds and taken >= LEAST_SAMPLES:
            return "throttled"
        if blocks < 2 or count < LEAST_SAMPLES:
            return ""
        if count >= timing.max_samples:
            return "max_samples"
        return "max_seconds" if self.wall_s >= timing.max_seconds else ""

    def result(self) -> Measurement:
        """What was measured. Samples that were set aside stand in where there are too few others."""
        enough = len(self.kept) >= 2 and self._count() >= LEAST_SAMPLES
        used = self.kept if enough else [*self.kept, *self.set_aside]
        return Measurement(
            blocks_us=[block.us for block in used],
            mhz=[mhz for block in used for mhz in block.mhz],
            stop_reason=self.stop_reason,
            set_aside_us=[sample for block in self.set_aside for sample in block.us],
            throttled="" if enough else ", ".join(sorted(self.held_down_by)),
            held_down_by=frozenset(self.held_down_by),
            readings=self.readings,
            wall_s=self.wall_s,
        )


def _only(block: Block, wanted: Callable[[float], bool]) -> Block | None:
    """The samples whose clock is wanted; a block without clocks stays whole."""
    if not block.mhz:
        return block if wanted(math.inf) else None
    pairs = [(us, mhz) for us, mhz in zip(block.us, block.mhz, strict=True) if wanted(mhz)]
    return Block([us for us, _ in pairs], [mhz for _, mhz in pairs]) if pairs else None


def measure_in_turns(series: Sequence[Series], witness: Witness, seed: int) -> None:
    """Takes blocks of every series in turns, in an order shuffled anew each round, until each has enough or has failed.

    A drift of the device then hits all of them alike, and no backend always follows the same neighbour. The pause before a
    block grows while the device is held down and shrinks while it is not.
    """
    order, shuffle, pause_s = list(series), random.Random(seed), 0.0
    while order:
        shuffle.shuffle(order)
        for one in order:
            if one.turn(witness, pause_s):
                pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, pause_s * PAUSE_GROWTH))
            else:
                pause_s = pause_s * PAUSE_DECAY if pause_s > FIRST_PAUSE_S / 10 else 0.0
        order = [one for one in order if not one.stop_reason and one.error is None]

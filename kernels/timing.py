"""How carefully to measure, and the loop that does: backends in turns, in blocks, each until its samples are enough.

What is returned says what was done, not what was asked for.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator

from kernels.caches import Caches, ICacheState, L2State
from kernels.clock import STAMPS
from kernels.pace import Pace
from kernels.stopping import CRITERIA, CriterionName
from kernels.timers import Block, Timer, TimerName
from kernels.witness import Reading

LEAST_SAMPLES = 10
LEAST_FREE = 6  # samples with a free clock that speak for a point whose others were held down: below, a median has no interval
LEAST_OF_FASTEST = 0.95  # a series' own clock spreads by half a percent, and falls by a tenth and more where power is capped
LONG_BLOCK_S = 0.025  # a power cap looks at about as much: a call that takes longer meets it in whatever block
MOST_WITH_RESTS = 1.5  # of `max_seconds`: what blocks and the rests between them may take together
SLOW_CLOCK = f"SM clock under {LEAST_OF_FASTEST:.0%} of its fastest"


class Timing(BaseModel):
    """How to measure. `limit` is the criterion's: relative half-width (ci95), relative deviation (stdrel), degrees (entropy)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "custom"
    timer: TimerName = "graph"  # of a CUDA device; a CPU has its wall clock
    l2: L2State = "cold"
    l2_flush_factor: Annotated[float, Field(ge=2)] = 2.0  # bytes written before each sample, over the size of the L2
    icache: ICacheState = "warm"  # cold: other code runs before each sample, as an engine's kernels do between two layers
    warmup: NonNegativeInt = 3  # calls before the first sample; 0 also leaves out the time of the CPU
    criterion: CriterionName = "ci95"
    limit: PositiveFloat = 0.005
    min_samples: Annotated[int, Field(ge=LEAST_SAMPLES)] = 20
    max_samples: Annotated[int, Field(ge=LEAST_SAMPLES)] = 200
    min_seconds: NonNegativeFloat = 0.0  # of measured time, the sum of the samples
    max_seconds: PositiveFloat = 0.5  # of wall time on sampling, half as much again with rests; 10 samples are taken all the same
    block_samples: Annotated[int, Field(ge=2, lt=STAMPS)] = 10  # at most, taken at a turn
    block_seconds: PositiveFloat = 0.006  # a turn ends about then: short bursts keep a device from its power cap
    block_gap_seconds: NonNegativeFloat = 0.01  # between the first two blocks at least, where no other backend lies between
    throttled: Literal["keep", "refuse"] = "keep"  # what becomes of a point that never ran with its clock left alone
    max_pause_seconds: PositiveFloat = 1.0  # of waits for the clock of one point to recover, after which it has one try left

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.min_samples > self.max_samples:
            raise ValueError(f"min_samples={self.min_samples}: allowed: at most max_samples={self.max_samples}; give both")
        return self

    @property
    def caches(self) -> Caches:
        return Caches(self.l2, self.l2_flush_factor, self.icache)

    def identity(self) -> dict[str, Any]:
        """What of it names a point. A key that came later is left out where it asks for what was done before it came."""
        later = {"icache": "warm"}
        return {key: value for key, value in self.model_dump(exclude={"name"}).items() if later.get(key) != value}


@dataclass(frozen=True)
class Measurement:
    """Samples in the order they were taken, block by block, and how they were taken.

    `stop_reason` is the criterion's name, `max_samples`, `max_seconds` or `throttled`. `set_aside_us` are samples that were
    taken while the device was held down; where nearly all were, they are in `blocks_us` too, and not `of_free_clock`.
    """

    blocks_us: list[list[float]]
    mhz: list[float]  # mean SM clock of each sample in `blocks_us`; NaN where it is not known
    stop_reason: str
    set_aside_us: list[float]
    of_free_clock: bool
    held_down_by: frozenset[str]  # what held the device down, of all samples
    readings: list[Reading]
    wall_s: float

    @property
    def num_samples(self) -> int:
        """Those that the summary is of."""
        return sum(map(len, self.blocks_us))


@dataclass
class _Turn:
    """One block, and which of its samples were taken with the clock left alone."""

    block: Block
    held_down: bool  # NVML named a cause
    free: list[bool]


@dataclass
class Series:
    """The samples of one backend as they grow, a block at a turn: seconds spent on blocks, and on waits around them."""

    timer: Timer
    timing: Timing
    stop_reason: str = ""
    error: Exception | None = None
    wall_s: float = 0.0
    rested_s: float = 0.0
    _turns: list[_Turn] = field(default_factory=list)
    _held_down_by: set[str] = field(default_factory=set)
    _fastest_mhz: float = 0.0
    _was_held_down: bool = False
    _between_s: float = 0.0  # of `rested_s`, before blocks
    _waited_s: float = 0.0  # ... and after blocks that were held down
    _ended: float = 0.0

    def turn(self, pace: Pace) -> None:
        """Rests, then takes one block, and waits where it was held down. A backend that raises ends its series, which keeps it."""
        rested = pace.rest() + self._gap()
        self.rested_s += rested
        self._between_s += rested
        start = time.perf_counter()
        try:
            block = self.timer.block(self._next_size(), pace.witness)
        except Exception as error:  # a kernel library may raise anything
            self.error = error
            return
        finally:
            self._ended = time.perf_counter()
            self.wall_s += self._ended - start
        self._take(block)
        self._was_held_down = not all(self._turns[-1].free)
        self.stop_reason = self._enough()
        waited = pace.after(self._ended - start, self._was_held_down)
        self.rested_s += waited
        self._waited_s += waited

    def _take(self, block: Block) -> None:
        """Sets a block aside where NVML names a cause, and samples, of whatever block, whose clock was well under the fastest.

        NVML answers late, so that a sample's own clock has a word too. Other backends are no measure for it, since the clock
        falls with the load, to 0.91 of the idle clock on one H200.
        """
        causes = {cause for reading in block.readings for cause in reading.held_down_by}
        self._held_down_by |= causes
        self._turns.append(_Turn(block, bool(causes), []))
        self._fastest_mhz = max([self._fastest_mhz, *(mhz for mhz in block.mhz if not math.isnan(mhz))])
        for turn in self._turns:
            slow = [mhz < LEAST_OF_FASTEST * self._fastest_mhz for mhz in turn.block.mhz]  # a clock that is not known is not slow
            turn.free = [not (turn.held_down or is_slow) for is_slow in slow]
            if any(slow) and not turn.held_down:
                self._held_down_by.add(SLOW_CLOCK)

    def _next_size(self) -> int:
        """Samples of the next block, one until it is known how long they take, all that are lacking where there is one try left."""
        taken = [us for turn in self._turns for us in turn.block.us]
        if not taken:
            return 1
        mean_s = sum(taken) / len(taken) / 1e6
        if self._waited_s >= self.timing.max_pause_seconds and len(taken) < LEAST_SAMPLES:
            return LEAST_SAMPLES - len(taken)
        fit = int(self.timing.block_seconds / mean_s) if mean_s < LONG_BLOCK_S else 2  # each block has a call that is no sample
        room = self.timing.max_samples - self._num_free()
        return max(1, min(fit, self.timing.block_samples, room))

    def _gap(self) -> float:
        """Puts time between the first two blocks; seconds."""
        left = self._ended + self.timing.block_gap_seconds - time.perf_counter() if len(self._turns) == 1 else 0.0
        if left > 0:
            time.sleep(left)
        return max(0.0, left)

    def _free_blocks(self) -> list[list[float]]:
        picked = ([us for us, free in zip(turn.block.us, turn.free, strict=True) if free] for turn in self._turns)
        return [block for block in picked if block]

    def _num_free(self) -> int:
        return sum(sum(turn.free) for turn in self._turns)

    def _num_held_down(self) -> int:
        return sum(len(turn.free) - sum(turn.free) for turn in self._turns)

    def _enough(self) -> str:
        timing, blocks = self.timing, self._free_blocks()
        count, measured_s = sum(map(len, blocks)), sum(map(sum, blocks)) / 1e6
        wanted = len(blocks) >= 2 and count >= timing.min_samples and measured_s >= timing.min_seconds
        if wanted and CRITERIA[timing.criterion](timing.limit).enough([us for block in blocks for us in block]):
            return timing.criterion
        waited = self._was_held_down and self._waited_s >= timing.max_pause_seconds
        if waited and count + self._num_held_down() >= LEAST_SAMPLES:
            return "throttled"
        if len(blocks) < 2 or count < LEAST_SAMPLES:
            return ""
        if count >= timing.max_samples:
            return "max_samples"
        with_rests = self.wall_s + self._between_s
        return "max_seconds" if self.wall_s >= timing.max_seconds or with_rests >= MOST_WITH_RESTS * timing.max_seconds else ""

    def result(self) -> Measurement:
        """What was measured. Where next to no sample had a free clock, all of them are what there is."""
        free = self._free_blocks()
        of_free_clock = len(free) >= 2 and sum(map(len, free)) >= LEAST_FREE
        pairs = [(turn.free, turn.block.mhz) for turn in self._turns]
        used = [mhz for free_, mhzs in pairs for is_free, mhz in zip(free_, mhzs, strict=True) if is_free or not of_free_clock]
        aside = [us for turn in self._turns for us, is_free in zip(turn.block.us, turn.free, strict=True) if not is_free]
        return Measurement(
            blocks_us=free if of_free_clock else [turn.block.us for turn in self._turns],
            mhz=used,
            stop_reason=self.stop_reason,
            set_aside_us=aside,
            of_free_clock=of_free_clock,
            held_down_by=frozenset(self._held_down_by),
            readings=[reading for turn in self._turns for reading in turn.block.readings],
            wall_s=self.wall_s,
        )


def measure_in_turns(series: Sequence[Series], pace: Pace, seed: int) -> None:
    """Takes blocks of every series in turns, in an order shuffled anew each round, until each has enough or has failed.

    A drift of the device then hits all of them alike, and no backend always follows the same neighbour. What ran before, such as a
    check, may have met the power cap: that is waited for first, on the account of the first.
    """
    order, shuffle = list(series), random.Random(seed)
    series[0].rested_s += pace.recover()
    while order:
        shuffle.shuffle(order)
        for one in order:
            one.turn(pace)
        order = [one for one in order if not one.stop_reason and one.error is None]

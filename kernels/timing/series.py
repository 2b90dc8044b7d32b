"""The samples of backends, taken in blocks and in turns until there are enough.

A series is what one backend is measured by: its samples, the wall time it may take, and which samples were throttled, that is,
taken while something kept the SM clock below what it can be. What it returns says what was done, which may differ from what was
asked for.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kernels.timing.config import MIN_SAMPLES, Timing
from kernels.timing.nvml import DeviceMonitor, Telemetry
from kernels.timing.pacing import Pacer
from kernels.timing.racing import Race
from kernels.timing.stats import ci95_of_blocks
from kernels.timing.stopping import CRITERIA, StopReason
from kernels.timing.sustained import ORDERS
from kernels.timing.timers import Block, Timer

T = TypeVar("T")
MIN_CLOCK_FRACTION = 0.95  # of a backend's fastest: its clock spreads by half a percent, and a power cap takes a tenth and more
# A sample that took this many times the shortest tells no clock to compare with: if the host is late within it, an idle GPU
# raises its clock, and all other samples would seem slow. On a busy host that set aside the right ones
# (`results/h100_mla/mla_engines`).
UNDISTURBED = 1.1
SLOW_CLOCK = f"SM clock under {MIN_CLOCK_FRACTION:.0%} of its fastest"
MAX_WITH_GAPS = 1.5  # blocks and the idle time before them may take this many times `max_seconds`
MIN_UNTHROTTLED = 6  # samples that may represent a point on their own: of fewer, a median has no confidence interval
OF_LOAD = ("SwPowerCap", "SM clock under")  # how causes begin that are a load's own
LONG_CALL_S = 0.025  # a power cap reacts within about this time: longer calls are throttled whatever the block size


@dataclass
class _Judged:
    """A block, what throttled all of it according to NVML, and for each sample whether it was unthrottled."""

    block: Block
    causes: frozenset[str]
    unthrottled: list[bool]


@dataclass
class ThrottleFilter:
    """The blocks of one backend, each sample judged.

    A sample is throttled if NVML names a cause during its block, or if its own SM clock is below `MIN_CLOCK_FRACTION` of this
    backend's fastest, among samples that took up to `UNDISTURBED` times its shortest. NVML alone answers too late. Other backends
    are no measure: the clock falls with the load, on one H200 to 0.91 of the idle clock.

    If the load is `sustained`, the power cap and the clock that it leaves are what is measured, and throttle no sample; heat does.
    """

    sustained: bool = False
    _judged: list[_Judged] = field(default_factory=list)
    _fastest_mhz: float = 0.0

    def add(self, block: Block) -> bool:
        """Takes a block. True if any of its samples was throttled."""
        causes = frozenset(cause for telemetry in block.telemetry for cause in telemetry.throttled_by)
        self._judged.append(_Judged(block, causes, []))
        before, self._fastest_mhz = self._fastest_mhz, self._fastest()
        # Another fastest clock than before may show that earlier samples were slow, or that they were not.
        outdated = self._judged if self._fastest_mhz != before else self._judged[-1:]
        slow = 0.0 if self.sustained else MIN_CLOCK_FRACTION * self._fastest_mhz
        for judged in outdated:
            faults = {cause for cause in judged.causes if not (self.sustained and cause.startswith(OF_LOAD))}
            # Not slow if NaN, of a clock that is not known.
            judged.unthrottled = [not (faults or mhz < slow) for mhz in judged.block.mhz]
        return not all(self._judged[-1].unthrottled)

    def _fastest(self) -> float:
        """The fastest known clock of samples that took hardly longer than the shortest; 0 if none is known."""
        shortest = min(us for judged in self._judged for us in judged.block.us)
        samples = (sample for judged in self._judged for sample in zip(judged.block.us, judged.block.mhz, strict=True))
        return max((mhz for us, mhz in samples if us <= UNDISTURBED * shortest and not math.isnan(mhz)), default=0.0)

    @property
    def blocks(self) -> list[Block]:
        """Every block in the order it was taken."""
        return [judged.block for judged in self._judged]

    @property
    def causes(self) -> frozenset[str]:
        """What throttled any sample: NVML's names, and `SLOW_CLOCK`."""
        named = frozenset().union(*(judged.causes for judged in self._judged))
        slow = any(not judged.causes and not all(judged.unthrottled) for judged in self._judged)
        return named | {SLOW_CLOCK} if slow else named

    @property
    def num_unthrottled(self) -> int:
        return sum(sum(judged.unthrottled) for judged in self._judged)

    @property
    def num_throttled(self) -> int:
        return sum(len(judged.unthrottled) - sum(judged.unthrottled) for judged in self._judged)

    def unthrottled_blocks(self) -> list[list[float]]:
        """Unthrottled samples in microseconds, block by block; blocks without one are left out."""
        return self.unthrottled_of(lambda block: block.us)

    def unthrottled_of(self, values: Callable[[Block], Sequence[T]]) -> list[list[T]]:
        """What `values` gives for each unthrottled sample, block by block; it returns one value for each sample of a block."""
        picked = (
            [value for value, unthrottled in zip(values(judged.block), judged.unthrottled, strict=True) if unthrottled]
            for judged in self._judged
        )
        return [block for block in picked if block]

    def block_medians(self) -> list[tuple[float, float] | None]:
        """Median time in µs and mean SM clock in MHz of the unthrottled samples of each block taken; None for one without any."""
        kept = ([(us, mhz) for us, mhz, unthrottled in _samples(judged) if unthrottled] for judged in self._judged)
        return [(statistics.median(us for us, _ in one), statistics.fmean(mhz for _, mhz in one)) if one else None for one in kept]

    def throttled_us(self) -> list[float]:
        """Throttled samples in microseconds, in the order they were taken."""
        return [us for judged in self._judged for us, _, unthrottled in _samples(judged) if not unthrottled]


def _samples(judged: _Judged) -> Iterator[tuple[float, float, bool]]:
    """Microseconds, MHz and whether it was unthrottled, of each sample."""
    return zip(judged.block.us, judged.block.mhz, judged.unthrottled, strict=True)


@dataclass
class Budget:
    """Seconds that one backend has spent.

    `wall_s`: on taking blocks.
    `gaps_s`: idle before blocks, for a duty cycle that keeps the device from its power cap.
    `waits_s`: on waits after throttled blocks, until the clock has recovered.
    `settling_s`: on a wait before its first block, for a cap that earlier work met. No limit counts it.
    """

    timing: Timing
    wall_s: float = 0.0
    gaps_s: float = 0.0
    waits_s: float = 0.0
    settling_s: float = 0.0

    @property
    def idle_s(self) -> float:
        return self.settling_s + self.gaps_s + self.waits_s

    @property
    def is_spent(self) -> bool:
        """Whether blocks have taken `max_seconds`, or blocks and the gaps before them `MAX_WITH_GAPS` times that."""
        limit = self.timing.max_seconds
        return self.wall_s >= limit or self.wall_s + self.gaps_s >= MAX_WITH_GAPS * limit

    @property
    def waits_are_spent(self) -> bool:
        return self.waits_s >= self.timing.max_pause_seconds


@dataclass(frozen=True)
class Measurement:
    """Samples in the order they were taken, block by block, and how they were taken.

    If fewer than `MIN_UNTHROTTLED` samples in two blocks were unthrottled, `blocks_us` holds every sample and
    `only_unthrottled` is false; a decided one needs two blocks alone. `throttled_us` holds the throttled samples in either case.
    """

    blocks_us: list[list[float]]
    mhz: list[float]  # mean SM clock of each sample in `blocks_us`; NaN if it is not known
    stop_reason: StopReason
    throttled_us: list[float]
    only_unthrottled: bool
    throttled_by: frozenset[str]  # the causes over all samples
    telemetry: list[Telemetry]
    wall_s: float

    @property
    def num_samples(self) -> int:
        return sum(map(len, self.blocks_us))


@dataclass
class Series:
    """One backend's measurement, until `stop_reason` or `error` is set. `decided_by`: the rival that is certainly faster."""

    timer: Timer
    timing: Timing
    after_block: Callable[[], None] = lambda: None  # outside every sample
    blame: Callable[[], Exception | None] = lambda: None  # an error if the backend did harm in its turn
    stop_reason: StopReason | None = None
    error: Exception | None = None
    decided_by: Series | None = None
    budget: Budget = field(init=False)
    _samples: ThrottleFilter = field(init=False)
    _rounds: list[int] = field(default_factory=list)  # of each block
    _block_ended: float = 0.0

    def __post_init__(self) -> None:
        self.budget = Budget(self.timing)
        self._samples = ThrottleFilter(sustained=self.timing.pace == "sustained")

    def take_block(self, pacer: Pacer, number: int = 0) -> None:
        """Idles, takes one block in this round, and waits if it was throttled. An exception ends the series and is kept."""
        self.budget.gaps_s += pacer.idle_before_block() + self._wait_for_gap()
        start = time.perf_counter()
        block = self._taken(lambda: self.timer.block(self._next_size(), pacer.monitor))
        if block is None:
            return
        throttled = self._samples.add(block)
        self._rounds.append(number)
        self.stop_reason = self._find_stop_reason(throttled)
        self.budget.waits_s += pacer.after_block(self._block_ended - start, throttled)

    def take_turn(self, monitor: DeviceMonitor) -> None:
        """Takes its part of the samples without a pause; the last turn ends the series. An exception ends it too, and is kept."""
        block = self._taken(lambda: self.timer.sustained(self.timing.max_samples // len(ORDERS), monitor))
        if block is not None:
            self._samples.add(block)
            if len(self._samples.blocks) == len(ORDERS):
                otherwise: StopReason = "throttled" if self._samples.num_throttled else "max_seconds"
                self.stop_reason = self._find_stop_reason(False) or otherwise

    def _taken(self, take: Callable[[], Block]) -> Block | None:
        """A block and its wall time; None if the series ends with an error."""
        start = time.perf_counter()
        try:
            block = take()
        except Exception as error:  # a kernel library may raise anything
            self.error = error
        finally:
            self._block_ended = time.perf_counter()
            self.budget.wall_s += self._block_ended - start
        self.end_turn()
        if self.error is not None:
            return None
        try:
            self.after_block()
        except Exception as error:  # the process of an environment may end between two requests
            self.error = error
            return None
        return block

    def end_turn(self) -> None:
        """Ends the series if its backend did harm. To be called before another one runs, also if this one has failed."""
        try:
            self.error = self.blame() or self.error
        except Exception as error:  # the device may be broken
            self.error = self.error or error

    def samples_us(self) -> list[float]:
        return [us for block in self._samples.blocks for us in block.us]

    def block_medians(self) -> dict[int, tuple[float, float]]:
        """By round: median in µs and clock in MHz of the unthrottled samples of each block that has any."""
        found = zip(self._rounds, self._samples.block_medians(), strict=True)
        return {number: of_block for number, of_block in found if of_block is not None}

    def is_known_within(self, limits: float) -> bool:
        """Whether the median's interval is within so many times `timing.limit`, from `MIN_SAMPLES` in two blocks on."""
        blocks = self._samples.unthrottled_blocks()
        enough = len(blocks) >= 2 and sum(map(len, blocks)) >= MIN_SAMPLES
        return enough and ci95_of_blocks(blocks) <= limits * self.timing.criterion_limit

    def reopen(self) -> None:
        """Goes on with a series that had stopped for its rivals' sake."""
        self.stop_reason = self.decided_by = None

    def _next_size(self) -> int:
        """Samples of the next block: one until a call's time is known, all that MIN_SAMPLES lack once no time for waits is left."""
        taken = self.samples_us()
        if not taken:
            return 1
        mean_s = sum(taken) / len(taken) / 1e6
        if self.budget.waits_are_spent and len(taken) < MIN_SAMPLES:
            return MIN_SAMPLES - len(taken)
        # At least 2 of a long call: each block begins with a call that is no sample.
        fitting = int(self.timing.block_seconds / mean_s) if mean_s < LONG_CALL_S else 2
        lacking = self.timing.max_samples - self._samples.num_unthrottled
        return max(1, min(fitting, self.timing.block_samples, lacking))

    def _wait_for_gap(self) -> float:
        """Sleeps until `block_gap_seconds` have passed between the first two blocks. Returns the seconds it slept."""
        if len(self._samples.blocks) != 1:
            return 0.0
        left = self._block_ended + self.timing.block_gap_seconds - time.perf_counter()
        if left > 0:
            time.sleep(left)
        return max(0.0, left)

    def _blocks_to_judge(self) -> list[list[float]]:
        """What the criterion judges, of unthrottled samples, block by block."""
        return self._samples.unthrottled_blocks()

    def _is_enough(self, blocks_us: list[list[float]]) -> bool:
        """Whether the criterion holds for what at least two blocks gave."""
        timing = self.timing
        meets_minimum = sum(map(len, blocks_us)) >= timing.min_samples and sum(map(sum, blocks_us)) / 1e6 >= timing.min_seconds
        return meets_minimum and CRITERIA[timing.criterion](blocks_us, timing.criterion_limit)

    def _find_stop_reason(self, throttled: bool) -> StopReason | None:
        """Why the series is complete, or None if it needs more blocks. `throttled`: whether the last block was."""
        blocks = self._blocks_to_judge()
        count = sum(map(len, blocks))
        if len(blocks) >= 2 and self._is_enough(blocks):
            return self.timing.criterion
        if throttled and self.budget.waits_are_spent and count + self._samples.num_throttled >= MIN_SAMPLES:
            return "throttled"
        if len(blocks) < 2 or count < MIN_SAMPLES:
            return None
        if count >= self.timing.max_samples:
            return "max_samples"
        return "max_seconds" if self.budget.is_spent else None

    def result(self) -> Measurement:
        """What was measured. Raises ValueError before `stop_reason` is set."""
        if self.stop_reason is None:
            raise ValueError("the series has not ended")
        samples, unthrottled = self._samples, self._samples.unthrottled_blocks()
        few = self.stop_reason == "decided"  # its rivals' blocks speak too
        enough = len(unthrottled) >= 2 and (few or sum(map(len, unthrottled)) >= MIN_UNTHROTTLED)
        clocks = samples.unthrottled_of(lambda block: block.mhz) if enough else [block.mhz for block in samples.blocks]
        return Measurement(
            blocks_us=unthrottled if enough else [block.us for block in samples.blocks],
            mhz=[mhz for block in clocks for mhz in block],
            stop_reason=self.stop_reason,
            throttled_us=samples.throttled_us(),
            only_unthrottled=enough,
            throttled_by=samples.causes,
            telemetry=[telemetry for block in samples.blocks for telemetry in block.telemetry],
            wall_s=self.budget.wall_s,
        )


def measure_interleaved(series: Sequence[Series], pacer: Pacer, seed: int, race: Race | None = None) -> None:
    """Takes blocks of every series in rounds until each has stopped or failed. `seed` shuffles the order of each round.

    A drift of the device then affects all backends alike, and no backend always follows the same neighbour. Earlier work, such as
    a check, may have met the power cap: the loop waits for that first and charges the wait to the first series.
    A `race` stops those that are decided; the series may be a part of it. Without a pause there are turns, and no rounds.
    """
    if series[0].timing.pace == "sustained":
        for order in ORDERS:
            for one in series[::order]:
                if one.error is None:
                    one.take_turn(pacer.monitor)
        return
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

"""The samples of one backend, taken in blocks until there are enough.

What it returns says what was done, which may differ from what was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kernels.timing.budget import Budget
from kernels.timing.config import MIN_SAMPLES, Timing
from kernels.timing.nvml import Telemetry
from kernels.timing.pacing import Pacer
from kernels.timing.stats import ci95_of_median
from kernels.timing.stopping import CRITERIA, StopReason
from kernels.timing.throttling import ThrottleFilter
from kernels.timing.timers import Timer

MIN_UNTHROTTLED = 6  # samples that may represent a point on their own: of fewer, a median has no confidence interval
LONG_CALL_S = 0.025  # a power cap reacts within about this time: longer calls are throttled whatever the block size


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
        """Samples in `blocks_us`, which the summary is computed from."""
        return sum(map(len, self.blocks_us))


@dataclass
class Series:
    """The measurement of one backend as it grows, one block at a time.

    It has ended once `stop_reason` or `error` is set. In a race, `decided_by` is the rival that is certainly faster.
    """

    timer: Timer
    timing: Timing
    after_block: Callable[[], None] = lambda: None  # outside every sample
    blame: Callable[[], Exception | None] = lambda: None  # an error if the backend did harm in its turn
    stop_reason: StopReason | None = None
    error: Exception | None = None
    decided_by: Series | None = None
    budget: Budget = field(init=False)
    _samples: ThrottleFilter = field(default_factory=ThrottleFilter)
    _rounds: list[int] = field(default_factory=list)  # of each block
    _block_ended: float = 0.0

    def __post_init__(self) -> None:
        self.budget = Budget(self.timing)

    def take_block(self, pacer: Pacer, number: int = 0) -> None:
        """Idles, takes one block in the round of that number, and waits if it was throttled.

        An exception of the backend ends the series and is kept.
        """
        self.budget.gaps_s += pacer.idle_before_block() + self._wait_for_gap()
        start = time.perf_counter()
        try:
            block = self.timer.block(self._next_size(), pacer.monitor)
        except Exception as error:  # a kernel library may raise anything
            self.error = error
        finally:
            self._block_ended = time.perf_counter()
            self.budget.wall_s += self._block_ended - start
        self.end_turn()
        if self.error is not None:
            return
        try:
            self.after_block()
        except Exception as error:  # the process of an environment may end between two requests
            self.error = error
            return
        throttled = self._samples.add(block)
        self._rounds.append(number)
        self.stop_reason = self._find_stop_reason(throttled)
        self.budget.waits_s += pacer.after_block(self._block_ended - start, throttled)

    def end_turn(self) -> None:
        """Ends the series if its backend did harm. To be called before another one runs, also if this one has failed."""
        try:
            self.error = self.blame() or self.error
        except Exception as error:  # the device may be broken
            self.error = self.error or error

    def samples_us(self) -> list[float]:
        """Every sample so far, throttled ones too."""
        return [us for block in self._samples.blocks for us in block.us]

    def block_medians(self) -> dict[int, tuple[float, float]]:
        """By round: median in µs and clock in MHz of the unthrottled samples of each block that has any."""
        found = zip(self._rounds, self._samples.block_medians(), strict=True)
        return {number: of_block for number, of_block in found if of_block is not None}

    def is_known_within(self, limits: float) -> bool:
        """Whether the median's interval is within so many times `timing.limit`, from `MIN_SAMPLES` in two blocks on."""
        blocks = self._samples.unthrottled_blocks()
        samples = sorted(us for block in blocks for us in block)
        enough = len(blocks) >= 2 and len(samples) >= MIN_SAMPLES
        return enough and ci95_of_median(samples) <= limits * self.timing.criterion_limit

    def reopen(self) -> None:
        """Goes on with a series that had stopped for its rivals' sake."""
        self.stop_reason = self.decided_by = None

    def _next_size(self) -> int:
        """Samples of the next block.

        One until it is known how long a call takes. All that MIN_SAMPLES lack once no time for waits is left.
        """
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

    def _find_stop_reason(self, throttled: bool) -> StopReason | None:
        """Why the series is complete, or None if it needs more blocks. `throttled`: whether the last block was."""
        timing, blocks = self.timing, self._samples.unthrottled_blocks()
        count, measured_s = sum(map(len, blocks)), sum(map(sum, blocks)) / 1e6
        meets_minimum = len(blocks) >= 2 and count >= timing.min_samples and measured_s >= timing.min_seconds
        criterion = CRITERIA[timing.criterion](timing.criterion_limit)
        if meets_minimum and criterion.enough([us for block in blocks for us in block]):
            return timing.criterion
        if throttled and self.budget.waits_are_spent and count + self._samples.num_throttled >= MIN_SAMPLES:
            return "throttled"
        if len(blocks) < 2 or count < MIN_SAMPLES:
            return None
        if count >= timing.max_samples:
            return "max_samples"
        return "max_seconds" if self.budget.is_spent else None

    def result(self) -> Measurement:
        """What was measured. Raises ValueError before `stop_reason` is set."""
        if self.stop_reason is None:
            raise ValueError("the series has not ended")
        samples, unthrottled = self._samples, self._samples.unthrottled_blocks()
        few = self.stop_reason == "decided"  # its rivals' blocks speak too
        enough = len(unthrottled) >= 2 and (few or sum(map(len, unthrottled)) >= MIN_UNTHROTTLED)
        return Measurement(
            blocks_us=unthrottled if enough else [block.us for block in samples.blocks],
            mhz=samples.unthrottled_mhz() if enough else [mhz for block in samples.blocks for mhz in block.mhz],
            stop_reason=self.stop_reason,
            throttled_us=samples.throttled_us(),
            only_unthrottled=enough,
            throttled_by=samples.causes,
            telemetry=[telemetry for block in samples.blocks for telemetry in block.telemetry],
            wall_s=self.budget.wall_s,
        )

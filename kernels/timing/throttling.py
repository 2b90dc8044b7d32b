"""Which samples of a backend were throttled: taken while something kept the SM clock below what it can be."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kernels.timing.timers import Block

T = TypeVar("T")

MIN_CLOCK_FRACTION = 0.95  # of a backend's fastest: its clock spreads by half a percent, and a power cap takes a tenth and more
# A sample that took this many times the shortest tells no clock to compare with: if the host is late within it, an idle GPU
# raises its clock, and all other samples would seem slow. On a busy host that set aside the right ones
# (`results/h100_mla/mla_engines`).
UNDISTURBED = 1.1
SLOW_CLOCK = f"SM clock under {MIN_CLOCK_FRACTION:.0%} of its fastest"


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
    """

    _judged: list[_Judged] = field(default_factory=list)
    _fastest_mhz: float = 0.0

    def add(self, block: Block) -> bool:
        """Takes a block. True if any of its samples was throttled."""
        causes = frozenset(cause for telemetry in block.telemetry for cause in telemetry.throttled_by)
        self._judged.append(_Judged(block, causes, []))
        before, self._fastest_mhz = self._fastest_mhz, self._fastest()
        # Another fastest clock than before may show that earlier samples were slow, or that they were not.
        outdated = self._judged if self._fastest_mhz != before else self._judged[-1:]
        for judged in outdated:
            judged.unthrottled = [not (judged.causes or self._is_slow(mhz)) for mhz in judged.block.mhz]
        return not all(self._judged[-1].unthrottled)

    def _fastest(self) -> float:
        """The fastest known clock of samples that took hardly longer than the shortest; 0 if none is known."""
        shortest = min(us for judged in self._judged for us in judged.block.us)
        samples = (sample for judged in self._judged for sample in zip(judged.block.us, judged.block.mhz, strict=True))
        return max((mhz for us, mhz in samples if us <= UNDISTURBED * shortest and not math.isnan(mhz)), default=0.0)

    def _is_slow(self, mhz: float) -> bool:
        return mhz < MIN_CLOCK_FRACTION * self._fastest_mhz  # false for NaN, a clock that is not known

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
        picked = ([us for us, _, unthrottled in _samples(judged) if unthrottled] for judged in self._judged)
        return [block for block in picked if block]

    def unthrottled_of(self, values: Callable[[Block], Sequence[T]]) -> list[list[T]]:
        """What `values` gives for each unthrottled sample, block by block; it returns one value for each sample of a block."""
        picked = (
            [value for value, unthrottled in zip(values(judged.block), judged.unthrottled, strict=True) if unthrottled]
            for judged in self._judged
        )
        return [block for block in picked if block]

    def block_medians(self) -> list[tuple[float, float] | None]:
        """Median time in µs and mean SM clock in MHz of the unthrottled samples of each block taken; None for one without any."""
        found: list[tuple[float, float] | None] = []
        for judged in self._judged:
            kept = [(us, mhz) for us, mhz, unthrottled in _samples(judged) if unthrottled]
            clock = statistics.fmean(mhz for _, mhz in kept) if kept else math.nan
            found.append((statistics.median(us for us, _ in kept), clock) if kept else None)
        return found

    def unthrottled_mhz(self) -> list[float]:
        """The SM clock of each unthrottled sample."""
        return [mhz for judged in self._judged for _, mhz, unthrottled in _samples(judged) if unthrottled]

    def throttled_us(self) -> list[float]:
        """Throttled samples in microseconds, in the order they were taken."""
        return [us for judged in self._judged for us, _, unthrottled in _samples(judged) if not unthrottled]


def _samples(judged: _Judged) -> Iterator[tuple[float, float, bool]]:
    """Microseconds, MHz and whether it was unthrottled, of each sample."""
    return zip(judged.block.us, judged.block.mhz, judged.unthrottled, strict=True)

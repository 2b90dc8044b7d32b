"""Joules of a call, from the device's energy counter, over a block of calls that is long enough for its resolution.

NVML's counter (`nvmlDeviceGetTotalEnergyConsumption`) is in millijoules but moves in steps, every 20 to 100 ms. A block is read all
the time, and only whole steps count: the energy between two of them is known, and the moment of a step to within the pause before
the reading that saw it. The block is of cycles as samples are: caches brought into their state, then one call. A second block has
the same without the call, and is subtracted; the row holds both.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from kernels.timing.nvml import DeviceMonitor

SETTLE_S = 0.2  # the first part of a block does not count: clock and power change at its start
BLOCK_S = 1.0  # the rest of it
MAX_BLOCK_S = 2.0  # the rest of it if the counter moves rarely
CHUNK_S = 0.01  # of work that is issued at once; two chunks are in flight, so that the device never waits for the CPU
POLL_S = 0.001
PARTS = 5  # of a block, which tell how steady its power was
STUDENT = 2.776  # t of PARTS - 1 degrees of freedom, 95% two-sided
MIN_STEPS = 2 * PARTS  # of the counter within a block
MAX_REL = 0.1  # an interval wider than this says nothing about a kernel


class EnergyUnknown(Exception):
    """The counter cannot tell the energy; the message says why."""


class IssuedWork(Protocol):
    def query(self) -> bool:
        """Whether it has ended. Never waits."""


Issue = Callable[[int], IssuedWork]  # issues so many cycles in a row; never waits


@dataclass(frozen=True)
class Rate:
    """Energy and time of one cycle. `rel` is the half-width of the 95% interval of `joules`, over it."""

    joules: float
    seconds: float
    rel: float


@dataclass(frozen=True)
class Energy:
    """The columns of a row about one call: joules, with `rel` as in `Rate`; those of the flush were subtracted; µs in its block."""

    energy_j: float
    energy_rel: float
    energy_flush_j: float
    energy_us: float


@dataclass(frozen=True)
class CounterStep:
    """The counter was seen to move: when, what it shows since, and how long before that it was last read. Seconds."""

    at: float
    millijoules: int
    uncertain: float


def energy_of(cycle: Rate, flush: Rate | None) -> Energy:
    """What the call takes of a cycle; `flush` is a cycle without it, if any. EnergyUnknown for intervals beyond `MAX_REL`."""
    before = flush or Rate(0.0, 0.0, 0.0)
    joules = cycle.joules - before.joules
    half_width = math.hypot(cycle.joules * cycle.rel, before.joules * before.rel)
    if joules <= 0 or half_width > MAX_REL * joules:
        raise EnergyUnknown(
            f"{joules * 1e3:.3g} mJ a call are known to {half_width * 1e3:.2g} mJ only, "
            f"beside {before.joules * 1e3:.3g} mJ of the flush"
        )
    return Energy(joules, half_width / joules, before.joules, (cycle.seconds - before.seconds) * 1e6)


def measure(
    issue: Issue,
    cycle_s: float,
    counter: DeviceMonitor,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Rate:
    """Runs one block. `cycle_s`: about the seconds of a cycle. Takes `SETTLE_S` + `BLOCK_S` seconds, up to `MAX_BLOCK_S` if the
    counter moves rarely, and two cycles if that is more. Raises EnergyUnknown if the device does not count, or too
    coarsely for the block.
    """
    per_chunk = max(1, int(CHUNK_S / cycle_s))
    in_flight: deque[IssuedWork] = deque(issue(per_chunk) for _ in range(2))
    steps: list[CounterStep] = []
    chunk_ends: list[float] = []
    start = last_read = clock()
    last = _read(counter)
    while in_flight:
        if in_flight[0].query():
            in_flight.popleft()
            if clock() - start > SETTLE_S:
                chunk_ends.append(clock())
            if clock() - start < SETTLE_S + (BLOCK_S if len(steps) >= MIN_STEPS else MAX_BLOCK_S):
                in_flight.append(issue(per_chunk))
        else:
            sleep(POLL_S)
        now, found = clock(), _read(counter)
        if found < last:
            raise EnergyUnknown("the energy counter of the device went back")
        if found > last and now - start > SETTLE_S and len(in_flight) == 2:  # no step of the end, where the device runs dry
            steps.append(CounterStep(now, found, now - last_read))
        last, last_read = found, now
    # At least two chunks end after `SETTLE_S`.
    return rate_of(steps, (chunk_ends[-1] - chunk_ends[0]) / ((len(chunk_ends) - 1) * per_chunk))


def _read(counter: DeviceMonitor) -> int:
    found = counter.energy_mj()
    if found is None:
        raise EnergyUnknown("NVML counts no energy on this device")
    return found


def rate_of(steps: Sequence[CounterStep], seconds: float) -> Rate:
    """Energy of a cycle of `seconds` by the counter's steps, with what ends and `PARTS` parts leave open. EnergyUnknown if few."""
    if len(steps) < MIN_STEPS:
        raise EnergyUnknown(f"the energy counter moved {len(steps)} times in {MAX_BLOCK_S:g} s; {MIN_STEPS} are needed")
    first, last = steps[0], steps[-1]
    watts = _watts(first, last)
    ends = [steps[round(i * (len(steps) - 1) / PARTS)] for i in range(PARTS + 1)]
    parts = [_watts(a, b) for a, b in pairwise(ends)]
    scatter = STUDENT * statistics.stdev(parts) / math.sqrt(PARTS) / watts
    moments = (first.uncertain + last.uncertain) / (last.at - first.at)
    return Rate(watts * seconds, seconds, math.hypot(scatter, moments))


def _watts(a: CounterStep, b: CounterStep) -> float:
    return (b.millijoules - a.millijoules) / 1e3 / (b.at - a.at)

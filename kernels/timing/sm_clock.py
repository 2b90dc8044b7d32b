"""The SM clock at which each sample really ran: cycles over nanoseconds, counted on the device between two stamps.

NVML averages and answers late: on an H200 it reported a power cap 50 ms after the clock had dropped. nvbench counts the same way.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from kernels.lazy import torch
from kernels.timing.graphs import capture

MAX_STAMPS = 1024  # of one block: one before its first sample and one after each


class Clock:
    """Null clock, for a machine without Triton or without a C compiler."""

    def start(self) -> None:
        """Stamps before the first sample of a block."""

    def stamp(self) -> None:
        """Stamps after a sample. This takes the device about 2 µs, outside the timed part."""

    def mhz(self) -> list[float]:
        """Mean clock between each two stamps since `start`, MHz; empty if it is not known. Call after synchronising."""
        return []


class StampedClock(Clock):
    """A captured launch of a kernel that writes (nanoseconds, cycles, multiprocessor). Raises what Triton raises."""

    def __init__(self) -> None:
        from kernels.timing.triton_kernels import stamp

        self._notes = torch.zeros(MAX_STAMPS, 3, dtype=torch.int64, device="cuda")
        self._count = torch.zeros(1, dtype=torch.int32, device="cuda")

        def launch() -> None:
            stamp[(1,)](self._notes, self._count, num_warps=1)

        launch()  # compiles
        self._graph = capture(launch)

    def start(self) -> None:
        self._count.zero_()
        self._graph.replay()

    def stamp(self) -> None:
        self._graph.replay()

    def mhz(self) -> list[float]:
        notes = self._notes[: int(self._count.item())].tolist()
        if len({multiprocessor for _, _, multiprocessor in notes}) != 1:  # each multiprocessor counts its own cycles
            return []
        return [(c1 - c0) / (ns1 - ns0) * 1e3 for (ns0, c0, _), (ns1, c1, _) in pairwise(notes)]


@cache
def clock_of_device() -> Clock:
    """The clock of this process's device; the null clock if Triton cannot compile for it."""
    try:
        return StampedClock()
    except Exception:  # no triton, no C compiler, an unknown driver: NVML remains
        return Clock()

"""The wall time that one backend has spent on being measured, and whether it has any left."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.timing.config import Timing

MAX_WITH_GAPS = 1.5  # blocks and the idle time before them may take this many times `max_seconds`


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
        """Seconds without a block, of every kind."""
        return self.settling_s + self.gaps_s + self.waits_s

    @property
    def is_spent(self) -> bool:
        """Whether blocks have taken `max_seconds`, or blocks and the gaps before them `MAX_WITH_GAPS` times that."""
        limit = self.timing.max_seconds
        return self.wall_s >= limit or self.wall_s + self.gaps_s >= MAX_WITH_GAPS * limit

    @property
    def waits_are_spent(self) -> bool:
        """Whether waits for the clock have taken `max_pause_seconds`."""
        return self.waits_s >= self.timing.max_pause_seconds

"""Libraries that exist in a test alone: how long their kernels take in each release, and a measurement of them with noise."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from orchestrator.bisection.evidence import PointPair, ReleaseResult, Round
from orchestrator.errors import CannotMeasure

POINTS = ("s_kv=1024", "s_kv=8192", "s_kv=50000")


@dataclass
class History:
    """`times` of each release, as a multiple of the first one's; of one point alone if it is a mapping.

    `broken` releases cannot be measured. `noise` is the standard deviation of the log of a time, and `states` what a pair's error
    claims; a measurement whose errors are larger than it claims is a history with `claimed` below `noise`.
    """

    times: dict[str, float | dict[str, float]]
    noise: float = 0.002
    claimed: float | None = None
    broken: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @property
    def releases(self) -> tuple[str, ...]:
        return tuple(self.times)

    def measure(self, good: str, other: str) -> Round:
        """One interleaved measurement. Raises CannotMeasure for a broken release."""
        self.asked.append(other)
        if other in self.broken:
            raise CannotMeasure(self.broken[other])
        return tuple(self._pair(good, other, point) for point in POINTS)

    def _pair(self, good: str, other: str, point: str) -> PointPair:
        sides = [self._side(release, point) for release in (good, other)]
        se = math.sqrt(2) * (self.noise if self.claimed is None else self.claimed)
        a, b = (side.median_us for side in sides)
        return PointPair(point, *sides, None if a is None or b is None else math.log(b / a), se)

    def _side(self, release: str, point: str) -> ReleaseResult:
        if (status := self.statuses.get(release, "ok")) != "ok":
            return ReleaseResult(status, reason="it broke")
        times = self.times[release]
        factor = times.get(point, 1.0) if isinstance(times, dict) else times
        return ReleaseResult("ok", 100 * factor * math.exp(self._random.gauss(0, self.noise)), self.kernels.get(release, "fa2"))


def steps(count: int, change_at: int, factor: float) -> dict[str, float | dict[str, float]]:
    """Releases 0.0 to 0.`count - 1`, slower by a factor from one of them on."""
    return {f"0.{i}": factor if i >= change_at else 1.0 for i in range(count)}

"""Simulated races of backends (timing.precision=decide) with the rule itself, `kernels/timing/racing.py`. No GPU is used."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels.timing.config import MIN_SAMPLES, Timing
from kernels.timing.racing import ODDS, WITHIN, Race
from kernels.timing.stats import ci95_of_blocks

REFERENCE = "torch_sdpa"


@dataclass(eq=False)
class RecordedSeries:
    """Blocks that come one at a time: as they were measured, or drawn. `mhz` has the clock of each."""

    name: str
    blocks: Sequence[Sequence[float]]
    mhz: Sequence[float]
    taken: int = 0
    stop_reason: Any = None
    error: Exception | None = None
    decided_by: RecordedSeries | None = None
    medians: dict[int, tuple[float, float]] = field(default_factory=dict)

    def take_block(self) -> None:
        block = self.blocks[self.taken]
        self.medians[self.taken] = (statistics.median(block), self.mhz[self.taken])
        self.taken += 1

    def block_medians(self) -> dict[int, tuple[float, float]]:
        return self.medians

    def samples(self) -> list[float]:
        return sorted(us for block in self.blocks[: self.taken] for us in block)

    def is_known_within(self, limits: float) -> bool:
        enough = self.taken >= 2 and len(self.samples()) >= MIN_SAMPLES
        return enough and ci95_of_blocks(self.blocks[: self.taken]) <= limits * Timing().criterion_limit


def race(runners: Sequence[RecordedSeries]) -> None:
    """Takes the blocks of all in rounds until each is stopped or has no more."""
    one_race = Race(runners, [one for one in runners if one.name != REFERENCE])
    while active := [one for one in runners if one.stop_reason is None and one.taken < len(one.blocks)]:
        for one in active:
            one.take_block()
        one_race.judge([one for one in active if one.taken < len(one.blocks)])


# Simulated groups: what multiplies the true time of each block, [rounds], from the draw and the index of the backend.
Disturbance = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
ROUNDS, SAMPLES = 20, 6
TRUE = (1.0, 1.0, 1.02, WITHIN, WITHIN, 1.5)  # true times over the best's


def quiet(draw: np.random.Generator, _: int) -> tuple[np.ndarray, np.ndarray]:
    """Only the samples vary, by 0.5%."""
    return np.ones(ROUNDS), np.full(ROUNDS, 1800.0)


def disturbed_blocks(draw: np.random.Generator, _: int) -> tuple[np.ndarray, np.ndarray]:
    """As many blocks as the rule allows for are 16 to 60% too long: every one speaks against its backend."""
    off = draw.random(ROUNDS) < 1 / (ODDS + 1)
    return np.where(off, 1.16 + 0.44 * draw.random(ROUNDS), 1.0), np.full(ROUNDS, 1800.0)


def drifting(draw: np.random.Generator, _: int) -> tuple[np.ndarray, np.ndarray]:
    """All become 20% slower over the race, and 2% more or less from block to block."""
    return np.linspace(1.0, 1.2, ROUNDS) * np.exp(draw.normal(0, 0.02, ROUNDS)), np.full(ROUNDS, 1800.0)


def capped(draw: np.random.Generator, which: int) -> tuple[np.ndarray, np.ndarray]:
    """A power cap slows every other backend by 16%, and nobody reports it; its clock shows it."""
    slow = 1.16 if which % 2 else 1.0
    return np.full(ROUNDS, slow), np.full(ROUNDS, 1800.0 / slow)


def long_first_blocks(draw: np.random.Generator, _: int) -> tuple[np.ndarray, np.ndarray]:
    """The first block is up to twice too long at half of the backends, as after a rest."""
    factors = np.ones(ROUNDS)
    factors[0] = 1 + (draw.random() < 0.5) * draw.random()
    return factors, np.full(ROUNDS, 1800.0)


DISTURBANCES: dict[str, Disturbance] = {
    "quiet": quiet,
    f"a block in {ODDS + 1} off by 16 to 60%": disturbed_blocks,
    "all drift by 20%, and 2% a block": drifting,
    "a hidden cap of 16% on every other backend": capped,
    "first blocks off by up to 100%": long_first_blocks,
}


def group(draw: np.random.Generator, disturbance: Disturbance, us: float, tails: int) -> list[RecordedSeries]:
    """Backends whose true times are `TRUE` times `us`. Samples spread by 0.5% times Student's t with `tails` degrees of freedom."""
    found = []
    for which, factor in enumerate(TRUE):
        factors, mhz = disturbance(draw, which)
        tail = 0.005 * np.abs(draw.standard_t(tails, (ROUNDS, SAMPLES)))
        spread = 1 + np.where(draw.random((ROUNDS, SAMPLES)) < 0.6, tail, -tail)  # more of it above than below
        times = us * factor * factors[:, None] * np.maximum(0.9, spread)
        found.append(RecordedSeries(str(which), [block.tolist() for block in times], mhz.tolist()))
    return found


def wrong_shares(disturbance: Disturbance, groups: int, seed: int) -> tuple[float, float, float]:
    """The share of near backends that were decided, that of the best ones, and that of the slow ones."""
    draw, near, best, slow = np.random.default_rng(seed), 0, 0, 0
    for _ in range(groups):
        runners = group(draw, disturbance, us=200.0, tails=2)
        race(runners)
        decided = [one.stop_reason == "decided" for one in runners]
        near, best, slow = near + sum(decided[:5]), best + sum(decided[:2]), slow + decided[5]
    return near / groups / 5, best / groups / 2, slow / groups

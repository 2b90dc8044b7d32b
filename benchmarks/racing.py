"""What a race of backends (timing.precision=decide) gets wrong, and what GPU time it saves. No GPU is used.

    python benchmarks/racing.py errors [GROUPS]   # simulated groups: how often a backend near the best is stopped as decided
    python benchmarks/racing.py pairs             # committed rows, made 5% apart, raced again with their own blocks
    python benchmarks/racing.py cost [DATASET..]  # committed runs raced again: seconds, winners and leads. A simulation, no GPU run

All three use the rule itself (`kernels/timing/racing.py`). `cost` takes each row's blocks round by round, and stops where
the rule stops. A row's seconds are shared out over the calls that were made for it: preparation and checks stay, but for
warm-up calls of long kernels; samples and rests go with the blocks that are left. `auto` is left out where a named backend of the
group ran the same kernel; its preparation and its check stay.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.figures import at_most  # noqa: E402
from kernels.timing.config import MIN_SAMPLES, Timing  # noqa: E402
from kernels.timing.racing import ODDS, WITHIN, Race  # noqa: E402
from kernels.timing.stats import ci95_of_median  # noqa: E402
from kernels.timing.timers import HOST_CALLS, HOST_CALLS_IF_LONG, LONG_WARMUP_S  # noqa: E402
from orchestrator.analysis.noise import SAME  # noqa: E402
from orchestrator.storage import parquet  # noqa: E402

DATASETS = ("h200_specdec_dirty", "h200_specdec_cold_code")  # the runs of 576 timed points
TARGET_S, MAX_WRONG = 85.0, 0.01
PREPARATION_S, PREPARING_CALLS, FLUSH_US = 0.006, 4 + HOST_CALLS, 40.0  # what precedes the samples of a row: 3 warm-ups, 1 replay
SAVED_CALLS = 1 + HOST_CALLS - HOST_CALLS_IF_LONG  # of them, of a long call
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
        ordered = self.samples()
        enough = self.taken >= 2 and len(ordered) >= MIN_SAMPLES
        return enough and ci95_of_median(ordered) <= limits * Timing().criterion_limit


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


def wrong_shares(disturbance: Disturbance, groups: int, seed: int, us: float = 200.0, tails: int = 2) -> tuple[float, float, float]:
    """The share of near backends that were decided, that of the best ones, and that of the slow ones."""
    draw, near, best, slow = np.random.default_rng(seed), 0, 0, 0
    for _ in range(groups):
        runners = group(draw, disturbance, us, tails)
        race(runners)
        decided = [one.stop_reason == "decided" for one in runners]
        near, best, slow = near + sum(decided[:5]), best + sum(decided[:2]), slow + decided[5]
    return near / groups / 5, best / groups / 2, slow / groups


def errors(groups: int) -> None:
    """Prints a line for each disturbance, at a short and at a long call."""
    worst = [0.0, 0.0]
    for name, disturbance in DISTURBANCES.items():
        for us in (50.0, 5000.0):
            if us > 1000 and disturbance is long_first_blocks:
                continue  # seen at short calls alone: `python benchmarks/racing.py pairs`
            near, best, slow = wrong_shares(disturbance, groups, seed=1, us=us)
            worst = [max(worst[0], near), max(worst[1], best)]
            print(f"{name}, {us:g} µs: decided {near:.3%} within 5%, {best:.3%} of the best, {slow:.1%} of those 50% slower")
    at_most(
        f"backends within 5% of the best that are stopped as decided, the worst line of {groups} groups",
        [worst[0] * 100],
        MAX_WRONG * 100,
        "%",
    )
    at_most("best backends that are stopped as decided, the worst line", [worst[1] * 100], MAX_WRONG * 100, "%")


def recorded(row: Any, factor: float = 1.0) -> RecordedSeries:
    """A committed row's blocks, in time order."""
    samples, clocks = np.asarray(row.samples_us, dtype=float) * factor, np.asarray(row.samples_mhz, dtype=float)
    ends = np.cumsum(row.block_sizes)
    parts = [slice(end - size, end) for end, size in zip(ends, row.block_sizes, strict=True)]
    mhz = [float(np.nanmean(clocks[part])) if len(clocks) and not np.isnan(clocks[part]).all() else np.nan for part in parts]
    return RecordedSeries(row.backend, [samples[part].tolist() for part in parts], mhz)


def timed(name: str) -> Any:
    """The rows of a committed dataset that hold samples and their blocks."""
    rows = parquet.read(ROOT / "results" / name).to_pandas()
    rows = rows[(rows["status"] == "ok") & rows["samples_us"].notna() & rows["block_sizes"].notna()]
    whole = [sum(sizes) == len(samples) > 0 for sizes, samples in zip(rows["block_sizes"], rows["samples_us"], strict=True)]
    return rows.loc[np.array(whole, dtype=bool)]


def near_pairs(rows: Any) -> Iterator[tuple[RecordedSeries, RecordedSeries]]:
    """Each two rows that were measured interleaved, the first scaled to 5% over the median of the other."""
    for _, members in rows.groupby("group_id"):
        for one in members.itertuples():
            for other in members.itertuples():
                if one is not other and one.backend != other.backend:
                    yield recorded(one, WITHIN * other.median_us / one.median_us), recorded(other)


def pairs() -> None:
    """How often a real backend would be decided if it were 5% slower than its rival; for each committed dataset."""
    wrong = total = 0
    for path in sorted((ROOT / "results").glob("h200_*")):
        found = []
        for one, other in near_pairs(timed(path.name)):
            race([one, other])
            found.append(one.stop_reason == "decided")
        if len(found) >= 100:
            print(f"{path.name}: {sum(found)} of {len(found)} decided ({sum(found) / len(found):.2%})")
            wrong, total = wrong + sum(found), total + len(found)
    at_most("pairs 5% apart in which the slower one is decided", [wrong / total * 100], MAX_WRONG * 100, "%")


@dataclass
class Raced:
    """A committed run as it would have been with a race: seconds, and for each group the times by backend."""

    full_s: float = 0.0
    raced_s: float = 0.0
    near_s: float = 0.0  # of raced_s: samples and idle time of backends within 5% of the best
    decided: int = 0
    credited: int = 0
    errors: list[float] = field(default_factory=list)  # of a decided median, from the row's own
    changed: list[tuple[str, str, float]] = field(default_factory=list)  # winners that differ, and how far apart the row has them
    leads: list[float] = field(default_factory=list)  # how much a lead differs, of groups whose runner-up is not rough


def raced(name: str) -> Raced:
    """A committed run, group by group."""
    found = Raced()
    for _, rows in timed(name).groupby("group_id", sort=False):
        _race_group(rows, found)
    return found


def _race_group(rows: Any, found: Raced) -> None:
    found.full_s += rows["total_s"].sum()
    kernels = set(rows[rows["backend"] != "auto"]["resolved_backend"])
    runners, seconds = [], {}
    for row in rows.itertuples():
        call_s = (row.median_us + FLUSH_US) / 1e6
        prepared_s = min(row.measure_s, PREPARATION_S + PREPARING_CALLS * call_s)
        saved_s = min(prepared_s, SAVED_CALLS * call_s) if call_s > LONG_WARMUP_S else 0.0
        found.raced_s += row.total_s - row.rest_s - (row.measure_s - prepared_s) - saved_s
        if row.backend == "auto" and row.resolved_backend in kernels:
            found.credited += 1
            continue
        runners.append(recorded(row))
        seconds[runners[-1]] = (row.measure_s - prepared_s + row.rest_s, row.median_us)
    race(runners)
    best_us = min(median_us for _, median_us in seconds.values())
    for one, (sampling_s, median_us) in seconds.items():
        calls = [len(block) + 1 for block in one.blocks]  # a block begins with a call that is no sample
        taken_s = sampling_s * sum(calls[: one.taken]) / sum(calls)
        found.raced_s += taken_s
        found.near_s += taken_s if median_us <= WITHIN * best_us else 0.0
        if one.stop_reason == "decided":
            found.decided += 1
            found.errors.append(abs(statistics.median(one.samples()) / median_us - 1))
    _compare_winners([(one, us) for one, (_, us) in seconds.items() if one.name != REFERENCE], found)


def _compare_winners(backends: Sequence[tuple[RecordedSeries, float]], found: Raced) -> None:
    if len(backends) < 2:
        return
    before = sorted((us, one.name) for one, us in backends)
    after = sorted((statistics.median(one.samples()), one.name, one.stop_reason) for one, _ in backends)
    if before[0][1] != after[0][1]:
        found.changed.append((before[0][1], after[0][1], dict((n, us) for us, n in before)[after[0][1]] / before[0][0] - 1))
    elif after[1][2] != "decided":
        found.leads.append(abs((after[1][0] / after[0][0]) / (before[1][0] / before[0][0]) - 1))


def cost(names: Sequence[str]) -> None:
    """Prints what each run would have cost, and whether its answers are the same."""
    print("A simulation from committed rows, no run on a GPU.")
    for name in names:
        found = raced(name)
        print(f"\n{name}: {found.full_s:.1f} s of points as measured; {found.decided} decided, {found.credited} credited")
        target = TARGET_S if name in DATASETS else found.full_s / 2
        at_most("seconds of the points with timing.precision=decide", [found.raced_s], target, "s")
        print(f"{found.near_s:.1f} s of them are samples and idle time of backends within 5% of the best")
        difference = max((by for *_, by in found.changed), default=0.0)
        print(f"other winner at {len(found.changed)} groups, the two apart by at most {difference:.2%}")
        print(f"target: the same winners, or within {SAME:.0%} of each other: {'met' if difference <= SAME else 'missed'}")
        errors, leads = np.quantile(found.errors, [0.5, 0.99, 1]), np.quantile(found.leads, [0.5, 0.99, 1])
        print(
            f"decided medians off by {errors[0]:.2%} at the median, {errors[1]:.2%} at the 99th percentile, {errors[2]:.2%} at most"
        )
        print(f"leads of contested winners off by {leads[0]:.2%}, {leads[1]:.2%}, {leads[2]:.2%}")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("errors", "pairs", "cost"):
        sys.exit(__doc__)
    if sys.argv[1] == "errors":
        errors(int(next(iter(sys.argv[2:]), "4000")))
    else:
        pairs() if sys.argv[1] == "pairs" else cost(sys.argv[2:] or DATASETS)

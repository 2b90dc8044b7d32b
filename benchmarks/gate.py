"""How often the gate of mode=compare is red though nothing changed, and what it finds: simulated runs from real differences.

    python benchmarks/gate.py [RUNS]        # prints the table; about ten minutes for 4,000 runs

A simulated run has the points of a committed dataset as its baseline. Each of its points takes the log ratio of a real pair of
unchanged measurements: of a point about as long, with the same kind of code. Points that share inputs take theirs from the same
place among those that would do. All log ratios of a run come from one real pair of runs, and in half of the simulated runs all
signs are turned round, so what its points had in common stays. On top comes what a scenario names: cards, drift, heavier tails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.figures import at_least, at_most
from orchestrator.analysis.cards import Cards
from orchestrator.analysis.compare.comparison import GROUP_COLUMNS
from orchestrator.analysis.compare.gate import DISTURBED, MIN_POINTS, Gate, evidence, is_long_code
from orchestrator.analysis.compare.pairs import pair
from orchestrator.analysis.compare.verdicts import judge
from orchestrator.analysis.noise import SAME, NoiseFloors
from orchestrator.storage import parquet

# Datasets of the same code that repeat each other's points: over dirty lines on one card, and over clean ones on two.
REPEATED = (
    ("specdec_dirty", "specdec_long_ctx_noise"),
    ("specdec_long_ctx", "study_noise", "auto_routing", "vllm_triton", "target_verify", "host_time", "padded_graphs"),
)
AA = ("specdec_long_ctx_noise", "study_noise")
TARGET = "specdec_long_ctx"  # whose points the simulated runs have
MIN_PAIRS = 30  # of a real pair of runs
AS_LONG = 3.0  # a point takes no log ratio of one that is so many times longer or shorter, if there is another
SUBSETS = 20  # of a few points
LONG, UNSETTLED, THROTTLED = 1, 2, 3  # kinds of points; 0 is any other
NEIGHBOURS = 15  # candidates for a point's log ratio: the nearest in time
CARD_REL, CARD_US = 0.012, 0.25  # how far cards are drawn from each other: memory-bound points, and every launch
HEADER = ("run", "red, nothing changed", "a backend 3% slower", "another group 3% slower (the worst)", "one point 10% slower")
# Targets: unchanged runs that are red; changed groups and points that are found.
MAX_RED, FOUND_GROUPS, FOUND_POINTS = 0.01, 0.95, 0.90

Floats = np.ndarray
Draw = np.random.Generator


@dataclass(frozen=True)
class PairPool:
    """The pairs of two real runs of the same code: log ratios, the standard error of each by itself, times, and kinds of points."""

    name: str
    log_ratio: Floats
    se: Floats
    log_us: Floats
    kind: Floats


def rows_of(name: str, twin: int = 0) -> pd.DataFrame:
    (file,) = (ROOT / "results").glob(f"h200_*/{name}.parquet")
    rows = parquet.read(file).to_pandas()
    return rows[(rows["status"] == "ok") & (rows["twin"].fillna(0) == twin)]


def judged(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Pairs of two sides that mode=compare would compare."""
    found = judge(pair(a, b), NoiseFloors({}), SAME)
    return found[found["comparable"]].reset_index(drop=True)


def pools() -> tuple[list[PairPool], list[PairPool], list[PairPool]]:
    """Real pairs of interleaved measurements, of runs on one card, and of runs on two cards."""
    interleaved = [as_pool(f"{name} twice", judged(rows_of(name), rows_of(name, 1))) for name in AA]
    same, other = [], []
    for names in REPEATED:
        rows = {name: rows_of(name) for name in names}
        for a, b in combinations(names, 2):
            found = pair(rows[a], rows[b]).dropna(subset=["status_a", "status_b"])
            if len(found) < MIN_PAIRS:
                continue
            found = judged(rows[a], rows[b])
            (other if (found["device_uuid_a"] != found["device_uuid_b"]).any() else same).append(as_pool(f"{a} and {b}", found))
    return interleaved, same, other


def kinds(pairs: pd.DataFrame) -> Floats:
    """Points whose times differ for reasons of their own: code that fills the instruction cache, medians that did not settle."""
    unsettled = pairs["stop_reason_a"].isin(DISTURBED) | pairs["stop_reason_b"].isin(DISTURBED)
    throttled = pairs["throttled_a"] | pairs["throttled_b"]
    return np.select([throttled, unsettled, is_long_code(pairs)], [THROTTLED, UNSETTLED, LONG], 0)


def as_pool(name: str, pairs: pd.DataFrame) -> PairPool:
    log_us = ((pairs["log_us_a"] + pairs["log_us_b"]) / 2).to_numpy()
    own = evidence(pairs, [], NoiseFloors({}), Cards()).own
    return PairPool(name, pairs["log_ratio"].to_numpy(), np.sqrt(own), log_us, kinds(pairs))


@dataclass(frozen=True)
class SimulatedRun:
    """The points of a simulated run: its frame of pairs, which points share inputs, and the card of each."""

    pairs: pd.DataFrame
    shared: Floats
    card: Floats
    backend: Floats
    kind: Floats

    @property
    def us(self) -> Floats:
        """Times in microseconds."""
        return np.exp(self.pairs["log_us_a"].to_numpy())


def target(rows: pd.DataFrame, *, interleaved: bool = False, cards: int = 0, ceilings: bool = False) -> SimulatedRun:
    """A dataset compared with itself, as if it had been measured again: on the same card, or shared out over other cards, whose
    ceilings are known or not."""
    gap = pd.Timedelta(days=0 if interleaved else 1)
    later = rows.assign(started_at=rows["started_at"] + gap, finished_at=rows["finished_at"] + gap)
    shared = later.groupby("group_id", sort=False).ngroup().to_numpy()
    if cards:
        later = later.assign(device_uuid=[f"card {number % cards}" for number in shared])
        later = later if ceilings else later.assign(peak_tb_per_sec=None, peak_tflops=None)
    pairs = judged(rows, later)
    codes = (pairs.groupby(name, sort=False).ngroup().to_numpy() for name in ("group_id_a", "device_uuid_b", "backend"))
    return SimulatedRun(pairs, *codes, kinds(pairs))


def nearest(pool: PairPool, of: SimulatedRun) -> Floats:
    """(n, NEIGHBOURS) for each point, the pairs of the pool that are nearest in time, of its kind if the pool has any."""
    log_us = of.pairs["log_us_a"].to_numpy()
    found = np.zeros((len(log_us), NEIGHBOURS), dtype=int)
    for i, (at, kind) in enumerate(zip(log_us, of.kind, strict=True)):
        about = np.abs(pool.log_us - at) <= np.log(AS_LONG)
        choices = (about & (pool.kind == kind), about & (pool.kind == 0), pool.kind == 0)
        able = np.flatnonzero(next(choice for choice in choices if choice.any()))
        order = able[np.argsort(np.abs(pool.log_us[able] - at), kind="stable")]
        found[i] = np.resize(order[:NEIGHBOURS], NEIGHBOURS)
    return found


def unchanged(pool: PairPool, near: Floats, of: SimulatedRun, se: Floats, draw: Draw) -> Floats:
    """The log ratios of an unchanged run, whose points have the standard errors `se` by themselves.

    A median that did not settle is off by as much as its own samples scatter, so those are taken in standard errors.
    """
    place = draw.integers(NEIGHBOURS, size=int(of.shared.max()) + 1)[of.shared]
    source = near[np.arange(len(near)), place]
    scale = np.where((of.kind == UNSETTLED) | (pool.kind[source] == UNSETTLED), se / pool.se[source], 1.0)
    return pool.log_ratio[source] * scale * draw.choice([-1.0, 1.0])


Extra = Callable[[SimulatedRun, Draw], Floats]


def no_extra(of: SimulatedRun, draw: Draw) -> Floats:
    """Nothing on top of the real differences."""
    return np.zeros(len(of.pairs))


def other_cards(count: int, rel: float) -> Extra:
    """Each card differs from the baseline's, by `rel` where memory binds and by `CARD_US` a launch (standard deviations)."""

    def drawn(of: SimulatedRun, draw: Draw) -> Floats:
        memory_bound = (of.pairs["bound_a"] == "memory").to_numpy()
        return memory_bound * draw.normal(0, rel, count)[of.card] + draw.normal(0, CARD_US, count)[of.card] / of.us

    return drawn


def one_slower(by: float) -> Extra:
    """One card takes longer for everything."""
    return lambda of, draw: np.where(of.card == 0, np.log1p(by), 0.0)


def correlated(by: float) -> Extra:
    """Points that share inputs are off by the same."""
    return lambda of, draw: draw.normal(0, by, int(of.shared.max()) + 1)[of.shared]


def drift(by: float) -> Extra:
    """The clock falls or rises during the run, which goes through the points in the order of their size."""
    return lambda of, draw: draw.choice([-1, 1]) * by * np.linspace(-0.5, 0.5, len(of.us))[np.argsort(np.argsort(of.us))]


def one_faster(by: float) -> Extra:
    """A backend, another one in each run, takes less time: no reason to call the others slower."""
    return lambda of, draw: np.where(of.backend == draw.integers(of.backend.max() + 1), np.log1p(-by), 0.0)


def heavy_tails(by: float, freedom: int) -> Extra:
    """Each point is off by itself, by Student's t with `freedom` degrees."""
    return lambda of, draw: by * draw.standard_t(freedom, len(of.us))


class Scenario:
    """Simulated runs of one kind: the points, the pools that they draw from, and what is on top."""

    def __init__(self, of: SimulatedRun, pools: Sequence[PairPool], extra: Extra = no_extra) -> None:
        self.of, self.extra = of, extra
        self.pools = [(pool, nearest(pool, of)) for pool in pools]
        self.by = [c for c in GROUP_COLUMNS if of.pairs[c].nunique(dropna=False) > 1]
        self.base = evidence(of.pairs, self.by, NoiseFloors({}), Cards())
        self.se, self.gate = np.sqrt(self.base.own), Gate(self.base)

    def runs(self, count: int, seed: int) -> Iterator[tuple[Floats, Draw]]:
        draw = np.random.default_rng(seed)
        for _ in range(count):
            pool, near = self.pools[draw.integers(len(self.pools))]
            yield unchanged(pool, near, self.of, self.se, draw) + self.extra(self.of, draw), draw

    def red(self, log_ratio: Floats) -> bool:
        """Whether a run with these log ratios is red."""
        found = self.gate.decide(log_ratio)
        return bool(found.points.any() or found.by_group.any())


def red_share(one: Scenario, count: int, seed: int = 0) -> float:
    """Share of unchanged runs that are red."""
    return float(np.mean([one.red(log_ratio) for log_ratio, _ in one.runs(count, seed)]))


def found_groups(one: Scenario, column: str, by: float, count: int, seed: int = 1) -> tuple[float, float]:
    """How often a run is red if one group of a column is slower: mean and least of its groups with `MIN_POINTS` or more."""
    codes = one.of.pairs.groupby(column, dropna=False, sort=True).ngroup().to_numpy()
    sizes = np.bincount(codes)
    shares = []
    for code in np.flatnonzero(sizes >= MIN_POINTS):
        slower = np.where(codes == code, np.log1p(by), 0.0)
        shares.append(np.mean([one.red(log_ratio + slower) for log_ratio, _ in one.runs(count, seed + code)]))
    return float(np.mean(shares)), float(np.min(shares))


def found_points(one: Scenario, by: float, count: int, seed: int = 2) -> float:
    found = []
    for log_ratio, draw in one.runs(count, seed):
        log_ratio[draw.integers(len(log_ratio))] += np.log1p(by)
        found.append(one.red(log_ratio))
    return float(np.mean(found))


Case = tuple[str, Sequence[Scenario]]  # a line of the table: its name, and scenarios that are one case together


def few(rows: pd.DataFrame, size: int, pools: Sequence[PairPool]) -> list[Scenario]:
    draw = np.random.default_rng(size)
    parts = (rows.iloc[np.sort(draw.choice(len(rows), size, replace=False))] for _ in range(SUBSETS))
    return [Scenario(target(part), pools) for part in parts]


def cases(rows: pd.DataFrame, real: tuple[list[PairPool], list[PairPool], list[PairPool]]) -> Iterator[Case]:
    """Every line of the table. All but the lines of few points have all timed points of `rows`."""
    interleaved, same, other = real
    once, elsewhere, on_4 = target(rows), target(rows, cards=1), target(rows, cards=4)
    known = target(rows, cards=1, ceilings=True)
    every = [*same, *other]
    whole = (
        ("interleaved on one card", target(rows, interleaved=True), interleaved, no_extra),
        ("the same card, another run", once, same, no_extra),
        ("another card: real differences of two", elsewhere, other, no_extra),
        ("another card, ceilings known within 0.4%", known, every, other_cards(1, 0.004)),
        ("another card, drawn by 1.2%, ceilings unknown", elsewhere, every, other_cards(1, CARD_REL)),
        ("four cards, drawn by 1.2%, ceilings unknown", on_4, every, other_cards(4, CARD_REL)),
        ("one of four cards 1% slower", on_4, same, one_slower(0.01)),
        ("the only card 1% slower than the baseline's", elsewhere, same, one_slower(0.01)),
        ("points that share inputs off together by 0.5%", once, same, correlated(0.005)),
        ("the clock drifts by 1% over the run", once, same, drift(0.01)),
        ("each point off by 0.3% × Student's t, 4 degrees", once, same, heavy_tails(0.003, 4)),
        ("each point off by 0.5% × Student's t, 3 degrees", once, same, heavy_tails(0.005, 3)),
        ("one backend 10% faster, the same card", once, same, one_faster(0.1)),
        ("one backend 10% faster, another card, ceilings known", known, every, one_faster(0.1)),
    )
    for name, of, pools_of, extra in whole:
        yield name, [Scenario(of, pools_of, extra)]
    for size in (20, 5, 1):
        yield f"{size} point{'s' if size > 1 else ''} drawn from these", few(rows, size, same)


def found(case: Case, count: int) -> Rates:
    """The case's rates, from `count` unchanged runs and as many again for each kind of change."""
    name, parts = case
    red = np.mean([red_share(one, count // len(parts), seed) for seed, one in enumerate(parts)])
    point = np.mean([found_points(one, 0.10, max(1, count // 4 // len(parts)), seed) for seed, one in enumerate(parts)])
    backend, others = None, {}
    if len(parts) == 1:
        (one,) = parts
        each = max(1, count // 20)
        backend = found_groups(one, "backend", 0.03, each)[0]
        others = {by: found_groups(one, by, 0.03, each)[1] for by in one.by if by != "backend"}
    return Rates(name, float(red), backend, others, float(point))


@dataclass(frozen=True)
class Rates:
    """A line of the table: how often an unchanged run is red, and a slower backend, another group and one point are found.

    `others` has the worst group of each axis. Runs of a few points have no groups.
    """

    name: str
    red: float
    backend: float | None
    others: Mapping[str, float]
    point: float

    def cells(self) -> tuple[str, ...]:
        backend = "–" if self.backend is None else f"{self.backend:.1%}"
        column = min(self.others, key=lambda by: self.others[by], default=None)
        worst = "–" if column is None else f"{self.others[column]:.1%} ({column})"
        return self.name, f"{self.red:.2%}", backend, worst, f"{self.point:.1%}"


def show_targets(lines: Sequence[Rates]) -> None:
    """Prints the worst line of each column beside its target, and how many lines hold it."""
    worst = max(lines, key=lambda line: line.red)
    hold = sum(line.red <= MAX_RED for line in lines)
    at_most(f"{HEADER[1]} ({hold} of {len(lines)} hold; the worst: {worst.name})", [100 * worst.red], 100 * MAX_RED, "%")
    columns = (
        [(line.backend, line.name) for line in lines if line.backend is not None],
        [(min(line.others.values()), line.name) for line in lines if line.others],
        [(line.point, line.name) for line in lines],
    )
    for title, target, shares in zip(HEADER[2:], (FOUND_GROUPS, FOUND_GROUPS, FOUND_POINTS), columns, strict=True):
        if shares:
            share, name = min(shares)
            hold = sum(one >= target for one, _ in shares)
            at_least(f"{title} ({hold} of {len(shares)} hold; the worst: {name})", [100 * share], 100 * target, "%")


def main(count: int) -> None:
    lines: list[Rates] = []
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}")
    for case in cases(rows_of(TARGET), pools()):
        lines.append(found(case, count))
        print(f"| {' | '.join(lines[-1].cells())} |", flush=True)
    show_targets(lines)


if __name__ == "__main__":
    main(int(next(iter(sys.argv[1:]), "4000")))

"""What mode=compare says if times are rough (timing.precision=decide). No GPU is used.

    python benchmarks/racing_gate.py          # two runs of one card, and both halves of A/A pairs, each with each
    python benchmarks/racing_gate.py rows     # every committed dataset against itself, raced

A side is a run as it was measured, or as a race would have left it. `auto` then has the samples of the kernel that it chose.
`rows` has all the rough times that can be made of committed rows. It prints how far they are off, whether one is a verdict or red
by itself, and how often one that is 10% slower would be found.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pandas as pd

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.figures import at_least, at_most
from benchmarks.racing import race, recorded, timed
from orchestrator.analysis.cards import Cards
from orchestrator.analysis.compare.comparison import GROUP_COLUMNS
from orchestrator.analysis.compare.gate import MIN_GROUP, MIN_POINT, decide_gate, evidence
from orchestrator.analysis.compare.pairs import is_rough, pair
from orchestrator.analysis.compare.verdicts import ROUGH_SE, judge
from orchestrator.analysis.noise import SAME, NoiseFloors

SLOWER, FEWEST_ROWS = 1.1, 50
FROM_SOURCE = ("samples_us", "samples_mhz", "block_sizes", "median_us", "stop_reason")


def as_raced(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[float]]:
    """Rows as a race would have left them, and the log of each decided median over the row's own."""
    found, off = rows.copy(), []
    # A race looks at no throttled block, and a throttled row does not say which of its blocks were.
    for _, members in rows[rows["stop_reason"] != "throttled"].groupby("group_id"):
        kernels = {row.resolved_backend: row for row in members.itertuples() if row.backend != "auto"}
        automatic = [row for row in members.itertuples() if row.backend == "auto" and row.resolved_backend in kernels]
        credited = {row.Index: kernels[row.resolved_backend] for row in automatic}
        runners = {row.Index: recorded(row) for row in members.itertuples() if row.Index not in credited}
        race(list(runners.values()))
        for index, one in runners.items():
            samples = [us for block in one.blocks[: one.taken] for us in block]
            if one.stop_reason == "decided":
                off.append(float(np.log(statistics.median(samples) / rows.at[index, "median_us"])))
            found.at[index, "samples_us"] = np.array(samples)
            found.at[index, "block_sizes"] = rows.at[index, "block_sizes"][: one.taken]
            found.at[index, "median_us"] = statistics.median(samples)
            found.at[index, "stop_reason"] = one.stop_reason or rows.at[index, "stop_reason"]
        for index, source in credited.items():
            for name in FROM_SOURCE:
                found.at[index, name] = found.at[source.Index, name]
            found.at[index, "measured_as"] = source.backend
    return found, off


@dataclass(frozen=True)
class Compared:
    """A comparison. `rough` tells which pairs that count have a rough side, `alone` which are red if they alone take 10% longer."""

    pairs: pd.DataFrame
    rough: np.ndarray
    alone: np.ndarray
    red_points: int
    red_groups: int

    @property
    def words(self) -> str:
        verdicts = ", ".join(f"{count} {name}" for name, count in self.pairs["verdict"].value_counts().items())
        return f"{self.red_points} red points, {self.red_groups} red groups; {len(self.rough)} count; {verdicts}"


def compared(baseline: pd.DataFrame, candidate: pd.DataFrame) -> Compared:
    floors = NoiseFloors({})
    pairs = judge(pair(baseline, candidate), floors, SAME)
    counted = pairs[pairs["counted"]]
    by = [name for name in GROUP_COLUMNS if counted[name].nunique(dropna=False) > 1]
    given = evidence(pairs, by, floors, Cards())
    found = decide_gate(given)
    rough = (is_rough(counted, "a") | is_rough(counted, "b")).astype(bool)
    # What a point takes by itself hardly moves the fit of cards and runs: it is clipped there.
    more = np.log(SLOWER)
    alone = (found.changes + more >= found.limits) & (given.log_ratio - given.offset + more >= MIN_POINT)
    return Compared(pairs, rough, alone, int(found.points.sum()), int(found.by_group.sum()))


def a_day_later(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(**{name: rows[name] + pd.Timedelta(days=1) for name in ("started_at", "finished_at")})


def every_row() -> None:
    """Prints what becomes of every rough time that committed rows give, against the row's own time."""
    off: list[float] = []
    wrong = runs = slower = rough = found = 0
    for path in sorted((ROOT / "results").glob("h200_*/*.parquet")):
        rows = timed(f"{path.parent.name}/{path.stem}")
        rows = rows[rows["twin"].fillna(0) == 0]
        if len(rows) < FEWEST_ROWS or path.stem.endswith("_check_power"):
            continue
        raced, of_rows = as_raced(rows)
        off += of_rows
        for a, b in ((rows, raced), (raced, rows)):
            one = compared(a, a_day_later(b))
            print(f"{path.stem}, {'candidate' if b is raced else 'baseline'} raced: {one.words}")
            wrong, runs = wrong + bool(one.red_points or one.red_groups), runs + 1
            slower += int((one.pairs["verdict"] == "slower").sum())
            rough, found = rough + int(one.rough.sum()), found + int(one.alone[one.rough].sum())
    size = np.quantile(np.abs(off), [0.5, 0.99, 1])
    print(
        f"{len(off)} decided times off by {size[0]:.2%} at the median, {size[1]:.2%} at the 99th percentile, {size[2]:.2%} at most"
    )
    print(f"red or `slower`, though nothing changed: {wrong} of {runs} comparisons, {slower} points; target: none")
    at_most("the largest error of a rough time, over ROUGH_SE", [float(size[2]) / ROUGH_SE], 3, "")
    at_least("rough points that are found if they alone are 10% slower", [100 * found / rough], 90, "%")


def main() -> None:
    """Prints every comparison of two measurements, of which at least one was raced."""
    twins = timed("h200_main/specdec_long_ctx_noise")
    full = {
        "run 1": timed("h200_studies/specdec_dirty"),
        "run 2": twins[twins["twin"] == 0],
        "run 2, again": twins[twins["twin"] == 1].assign(twin=0),
    }
    raced = {name: as_raced(rows) for name, rows in full.items()}
    sides = full | {f"{name}, raced": rows for name, (rows, _) in raced.items()}
    count = wrong = 0
    for a, b in permutations(sides, 2):
        if "raced" in a + b:
            one = compared(sides[a], sides[b])
            print(
                f"{a} / {b}: {one.words}; rough ones found at 10%: {one.alone[one.rough].mean():.1%}, all: {one.alone.mean():.1%}"
            )
            count, wrong = count + 1, wrong + bool(one.red_points or one.red_groups)
    off = [one for _, of_run in raced.values() for one in of_run]
    print(f"red, though nothing changed: {wrong} of {count} comparisons; target: none, since the gate allows 1%")
    at_most("mean of the log of a decided median over the full one", [abs(statistics.fmean(off)) * 100], MIN_GROUP * 100, "%")


if __name__ == "__main__":
    every_row() if sys.argv[1:] == ["rows"] else main()

"""How often mode=compare is wrong and what it finds, on real noise.

    python benchmarks/what_changed.py results/h200_specdec_long_ctx_noise [RUN RUN]

Reads a dataset of mode=noise, in which every point was measured twice. Which row of an A/A pair is the baseline is random. The
noise floor is fitted to the pairs of a random half of the shared-input groups, and the pairs of the other half are judged: as
they are, so that every `slower` and `faster` is false, and with every sample of the candidate times 1.03 and 1/1.03. Two datasets
of two runs of the same code are compared as `mode=compare` compares them.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pandas as pd

from orchestrator.analysis.compare.pairs import pair
from orchestrator.analysis.compare.verdicts import judge
from orchestrator.analysis.noise import SAME, NoiseFloors, fitted_floors
from orchestrator.storage import parquet

CHANGE, REPEATS, ALONE = 1.03, 50, 100


def main(noise: str = "results/h200_specdec_long_ctx_noise", *runs: str) -> None:
    """Prints the figures of the A/A pairs, then those of two runs if they are given."""
    table = parquet.read(noise).to_pandas()
    timed = table[table["status"] == "ok"]
    print(f"{noise}: {len(timed) // 2} A/A pairs; floor of all: {_floor(fitted_floors(timed, noise))}")
    print(f"held-out halves, {REPEATS} times, sides swapped at random:")
    print(held_out(timed, np.random.default_rng(0)).to_string(float_format="{:.2%}".format))
    print(f"one point alone times {CHANGE}, {ALONE} times: {found_alone(timed, np.random.default_rng(1)):.1%} found")
    started = time.perf_counter()
    for name, floors in (
        ("twin 0 to twin 1, floor of all pairs", fitted_floors(timed, noise)),
        ("likewise, default floor", NoiseFloors({})),
    ):
        print_verdicts(name, timed[timed["twin"] == 0], timed[timed["twin"] == 1], floors)
    print(f"{time.perf_counter() - started:.2f} s for those 6 comparisons and a fit")
    if runs:
        a, b = (parquet.read(run).to_pandas() for run in runs)
        print_verdicts(f"{runs[0]} to {runs[1]}", a, b, fitted_floors(timed, noise))


def _floor(floors: NoiseFloors) -> str:
    return ", ".join(f"{floor} on {device}" for device, floor in floors.by_device.items())


def held_out(timed: pd.DataFrame, draw: np.random.Generator) -> pd.DataFrame:
    """Shares of the judged half: called slower or faster though nothing changed, and found of each change."""
    found = []
    for _ in range(REPEATS):
        labelled = relabelled(timed, draw)
        groups = labelled["group_id"].unique()
        fitted = labelled["group_id"].isin(draw.permutation(groups)[: len(groups) // 2])
        floors = fitted_floors(labelled[fitted], "the other half")
        a, b = (labelled[~fitted & (labelled["twin"] == twin)] for twin in (0, 1))
        found.append({name: share(a, b, floors, *how) for name, how in CASES.items()})
    return pd.DataFrame(found).agg(["mean", "min", "max"]).T


CASES = {
    "false: slower or faster": (1.0, ("slower", "faster")),
    f"times {CHANGE}: slower": (CHANGE, ("slower",)),
    f"times 1/{CHANGE}: faster": (1 / CHANGE, ("faster",)),
}


def relabelled(timed: pd.DataFrame, draw: np.random.Generator) -> pd.DataFrame:
    """Rows with the two sides of an A/A pair swapped at random."""
    point = timed["group_id"] + timed["backend"]
    points = point.unique()
    swapped = point.isin(points[draw.random(len(points)) < 0.5])
    return timed.assign(twin=timed["twin"].where(~swapped, 1 - timed["twin"]))


def share(a: pd.DataFrame, b: pd.DataFrame, floors: NoiseFloors, factor: float, verdicts: tuple[str, ...]) -> float:
    """The share of the pairs that get one of the verdicts, with every sample of `b` times `factor`."""
    return float(judge(pair(a, times(b, factor)), floors, SAME)["verdict"].isin(verdicts).mean())


def times(rows: pd.DataFrame, factor: float | pd.Series) -> pd.DataFrame:
    """Rows with every sample times a factor."""
    return rows.assign(samples_us=rows["samples_us"] * factor)


def found_alone(timed: pd.DataFrame, draw: np.random.Generator) -> float:
    """How often a slowdown of a single point among all is found."""
    a, b = (timed[timed["twin"] == twin] for twin in (0, 1))
    floors, found = fitted_floors(timed, "all"), 0
    for point in draw.choice(b["point_id"].unique(), ALONE, replace=False):
        factor = pd.Series(1.0, index=b.index).mask(b["point_id"] == point, CHANGE)
        judged = judge(pair(a, times(b, factor)), floors, SAME)
        found += int((judged.loc[judged["point_id_b"] == point, "verdict"] == "slower").sum())
    return found / ALONE


def print_verdicts(name: str, a: pd.DataFrame, b: pd.DataFrame, floors: NoiseFloors) -> None:
    """Prints the verdicts of two sides, unchanged and with each change."""
    timed = {"a": a[a["status"] == "ok"], "b": b[b["status"] == "ok"]}
    for factor in (1.0, CHANGE, 1 / CHANGE):
        counts = judge(pair(timed["a"], times(timed["b"], factor)), floors, SAME)["verdict"].value_counts()
        print(f"{name}, candidate times {factor:.3f}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}")


if __name__ == "__main__":
    main(*sys.argv[1:])

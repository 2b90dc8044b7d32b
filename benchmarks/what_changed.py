"""How often mode=compare is wrong and what it finds, on real noise.

    python benchmarks/what_changed.py results/h200_specdec_long_ctx_noise [RUN RUN]

Reads a dataset of mode=noise, in which every point was measured twice. Twins are called baseline and candidate at random, the
noise floor is fitted to the twins of one random half of the groups of points that share inputs, and the twins of the other half
are judged: as they are (whatever is called slower or faster is false), and with every sample of the candidate times 1.03 and
1/1.03. Two datasets of two runs of the same code are compared as `mode=compare` compares them.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pandas as pd

from orchestrator import datafile
from orchestrator.compare.noise_floor import Floors, from_twins
from orchestrator.compare.pairs import pair
from orchestrator.compare.verdicts import judge

PLANTED, SAME, REPEATS, ALONE = 1.03, 0.02, 50, 100


def main(noise: str = "results/h200_specdec_long_ctx_noise", *runs: str) -> None:
    """Prints the figures of the twins, then those of two runs if they are given."""
    table = datafile.read(noise).to_pandas()
    timed = table[table["status"] == "ok"]
    print(f"{noise}: {len(timed) // 2} points measured twice in turns; floor of all twins: {_floor(from_twins(timed, noise))}")
    print(f"held-out halves, {REPEATS} times, twins relabelled at random:")
    print(held_out(timed, np.random.default_rng(0)).to_string(float_format="{:.2%}".format))
    print(f"one point alone times {PLANTED}, {ALONE} times: {found_alone(timed, np.random.default_rng(1)):.1%} found")
    started = time.perf_counter()
    for name, floors in (
        ("twin 0 to twin 1, floor of all twins", from_twins(timed, noise)),
        ("likewise, default floor", Floors({})),
    ):
        tell(name, timed[timed["twin"] == 0], timed[timed["twin"] == 1], floors)
    print(f"{time.perf_counter() - started:.2f} s for those 6 comparisons and a fit")
    if runs:
        a, b = (datafile.read(run).to_pandas() for run in runs)
        tell(f"{runs[0]} to {runs[1]}", a, b, from_twins(timed, noise))


def _floor(floors: Floors) -> str:
    return ", ".join(f"{floor} on {device}" for device, floor in floors.by_device.items())


def held_out(timed: pd.DataFrame, draw: np.random.Generator) -> pd.DataFrame:
    """Share of the judged half that is called slower or faster though nothing changed, and that is found of what was planted."""
    found = []
    for _ in range(REPEATS):
        labelled = relabelled(timed, draw)
        groups = labelled["group_id"].unique()
        fitted = labelled["group_id"].isin(draw.permutation(groups)[: len(groups) // 2])
        floors = from_twins(labelled[fitted], "the other half")
        a, b = (labelled[~fitted & (labelled["twin"] == twin)] for twin in (0, 1))
        found.append({name: share(a, b, floors, *how) for name, how in CASES.items()})
    return pd.DataFrame(found).agg(["mean", "min", "max"]).T


CASES = {
    "false: slower or faster": (1.0, ("slower", "faster")),
    f"times {PLANTED}: slower": (PLANTED, ("slower",)),
    f"times 1/{PLANTED}: faster": (1 / PLANTED, ("faster",)),
}


def relabelled(timed: pd.DataFrame, draw: np.random.Generator) -> pd.DataFrame:
    """Which twin of a point comes first, at random."""
    point = timed["group_id"] + timed["backend"]
    points = point.unique()
    swapped = point.isin(points[draw.random(len(points)) < 0.5])
    return timed.assign(twin=timed["twin"].where(~swapped, 1 - timed["twin"]))


def share(a: pd.DataFrame, b: pd.DataFrame, floors: Floors, factor: float, verdicts: tuple[str, ...]) -> float:
    """Of the pairs, with every sample of `b` times `factor`, how many get one of the verdicts."""
    return float(judge(pair(a, times(b, factor)), floors, SAME)["verdict"].isin(verdicts).mean())


def times(rows: pd.DataFrame, factor: float | pd.Series) -> pd.DataFrame:
    """Rows with every sample times a factor."""
    return rows.assign(samples_us=rows["samples_us"] * factor)


def found_alone(timed: pd.DataFrame, draw: np.random.Generator) -> float:
    """How often a slowdown is found that only one of all points has."""
    a, b = (timed[timed["twin"] == twin] for twin in (0, 1))
    floors, found = from_twins(timed, "all"), 0
    for point in draw.choice(b["point_id"].unique(), ALONE, replace=False):
        factor = pd.Series(1.0, index=b.index).mask(b["point_id"] == point, PLANTED)
        judged = judge(pair(a, times(b, factor)), floors, SAME)
        found += int((judged.loc[judged["point_id_b"] == point, "verdict"] == "slower").sum())
    return found / ALONE


def tell(name: str, a: pd.DataFrame, b: pd.DataFrame, floors: Floors) -> None:
    """Verdicts of two sides as they are and with each planted change."""
    timed = {"a": a[a["status"] == "ok"], "b": b[b["status"] == "ok"]}
    for factor in (1.0, PLANTED, 1 / PLANTED):
        counts = judge(pair(timed["a"], times(timed["b"], factor)), floors, SAME)["verdict"].value_counts()
        print(f"{name}, candidate times {factor:.3f}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Whether mode=compare stays quiet if nothing changed but timing.precision. No GPU is used.

    python benchmarks/racing_gate.py

Two committed runs of the same code on one card, and both halves of A/A pairs: each as it was measured, and as a race would have
left it. `auto` then has the samples of the kernel that it chose. Prints each comparison, and how far decided medians are off.
"""

from __future__ import annotations

import statistics
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.figures import at_most  # noqa: E402
from benchmarks.racing import race, recorded, timed  # noqa: E402
from orchestrator.analysis.cards import Cards  # noqa: E402
from orchestrator.analysis.compare.comparison import GROUP_COLUMNS  # noqa: E402
from orchestrator.analysis.compare.evidence import evidence  # noqa: E402
from orchestrator.analysis.compare.gate import MIN_GROUP, decide_gate  # noqa: E402
from orchestrator.analysis.compare.pairs import pair  # noqa: E402
from orchestrator.analysis.compare.verdicts import judge  # noqa: E402
from orchestrator.analysis.noise import SAME, NoiseFloors  # noqa: E402

FROM_SOURCE = ("samples_us", "samples_mhz", "block_sizes", "median_us", "stop_reason")


def as_raced(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[float]]:
    """Rows as a race would have left them, and the log of each decided median over the row's own."""
    found, off = rows.copy(), []
    for _, members in rows.groupby("group_id"):
        kernels = {row.resolved_backend: row for row in members.itertuples() if row.backend != "auto"}
        credited = {row.Index: kernels[row.resolved_backend] for row in members.itertuples() if _is_credited(row, kernels)}
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


def _is_credited(row: Any, kernels: dict[str, Any]) -> bool:
    return row.backend == "auto" and row.resolved_backend in kernels


def red(baseline: pd.DataFrame, candidate: pd.DataFrame) -> tuple[int, int, str]:
    """Points and groups that the gate finds slower, and the verdicts in words."""
    floors = NoiseFloors({})
    pairs = judge(pair(baseline, candidate), floors, SAME)
    by = [name for name in GROUP_COLUMNS if pairs.loc[pairs["counted"], name].nunique(dropna=False) > 1]
    decided = decide_gate(evidence(pairs, by, floors, Cards()))
    verdicts = ", ".join(f"{count} {name}" for name, count in pairs["verdict"].value_counts().items())
    return int(decided.points.sum()), int(decided.by_group.sum()), f"{int(pairs['counted'].sum())} count; {verdicts}"


def main() -> None:
    """Prints every comparison of two measurements, of which at least one was raced."""
    twins = timed("h200_specdec_long_ctx_noise")
    full = {
        "run 1": timed("h200_specdec_dirty"),
        "run 2": twins[twins["twin"] == 0],
        "run 2, again": twins[twins["twin"] == 1].assign(twin=0),
    }
    raced = {name: as_raced(rows) for name, rows in full.items()}
    sides = full | {f"{name}, raced": rows for name, (rows, _) in raced.items()}
    count = wrong = 0
    for a, b in permutations(sides, 2):
        if "raced" in a + b:
            points, groups, words = red(sides[a], sides[b])
            print(f"{a} / {b}: {points} red points, {groups} red groups; {words}")
            count, wrong = count + 1, wrong + bool(points or groups)
    off = [one for _, of_run in raced.values() for one in of_run]
    print(f"red, though nothing changed: {wrong} of {count} comparisons; target: none, since the gate allows 1%")
    at_most("mean of the log of a decided median over the full one", [abs(statistics.fmean(off)) * 100], MIN_GROUP * 100, "%")


if __name__ == "__main__":
    main()

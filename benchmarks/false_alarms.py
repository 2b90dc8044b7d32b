"""How often does the check call a right kernel wrong? Counts it over right kernels that are emulated on a CPU.

    python -m benchmarks.false_alarms 0 300               # seeds 0 to 299; prints a table, and each false alarm with its problem
    python -m benchmarks.false_alarms 0 300 --processes 8 # on 8 cores

One core judges about 20 points a second. A seed draws one point for each arithmetic in each shape: a problem of up to about 1,000
keys and 3 requests, and a kernel (`right_kernels.py` says what is emulated). A point is judged as in a run, but equal launches are
not repeated. Nothing is said of real kernels on a GPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext

import pandas as pd
from rich.console import Console

from orchestrator import tables
from orchestrator.reporting.quality import upper_bound
from orchestrator.tables import Grid
from tests.helpers.right_points import ARITHMETICS, SHAPES, EmulatedPoint, fits

NEAREST = ("largest error, in tolerances", "largest `weight_over_limit`", "largest root mean square, of its limit")
HEADER = ("kind", "points", "false alarms", "rate at most (95%)", *NEAREST)


def judged(seed: int) -> list[tuple[object, ...]]:
    """Of each point of a seed: its shape, its arithmetic, whether the check calls it wrong, and how near it comes to each limit."""
    found: list[tuple[object, ...]] = []
    for shape, how in ((shape, how) for shape in SHAPES for how in ARITHMETICS if fits(shape, how)):
        reason, verdict = EmulatedPoint(shape, how, seed).alarm()
        if reason:
            print(f"{shape}, {how}, seed {seed}: {reason}", flush=True)
        rms = (verdict.rms_err or 0.0) / (verdict.max_error or 1.0)
        near = (min(of, 1.0) for of in (verdict.of_tolerance, verdict.weight_over_limit or 0.0, rms))
        found.append((shape, str(how), bool(reason), *near))
    return found


def all_judged(seeds: Sequence[int], processes: int = 1) -> pd.DataFrame:
    """A line for each point of all seeds. Each false alarm is printed as it comes."""
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), one_core) if processes > 1 else nullcontext() as pool:
        found = [*(pool.map(judged, seeds) if pool else map(judged, seeds))]
    return pd.DataFrame([line for of_seed in found for line in of_seed], columns=["shape", "arithmetic", "alarm", *NEAREST])


def one_core() -> None:
    """Torch computes on one core of this process, since each process has its own points."""
    import torch

    torch.set_num_threads(1)


def grid(points: pd.DataFrame) -> Grid:
    """By arithmetic, by shape, and all together: each point is in one line of the first kind and in one of the second."""
    lines = [*points.groupby("arithmetic", sort=False), *points.groupby("shape", sort=False), ("all", points)]
    return Grid("", HEADER, tuple(_cells(str(name), some) for name, some in lines))


def _cells(name: str, points: pd.DataFrame) -> tuple[str, ...]:
    alarms = int(points["alarm"].sum())
    nearest = (f"{of:.2f}" for of in points[list(NEAREST)].max())
    return (name, f"{len(points):,}", str(alarms), f"{upper_bound(alarms, len(points)):.2g}", *nearest)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int, nargs="?", default=0, help="the first seed (0)")
    parser.add_argument("stop", type=int, nargs="?", default=1, help="the seed before which it stops (1)")
    parser.add_argument("--processes", type=int, default=1, help="how many processes share the seeds (1)")
    given = parser.parse_args()
    if given.stop <= given.first:
        parser.error(f"seeds {given.first} to {given.stop}: allowed: a stop above the first; type {given.first} {given.first + 1}")
    one_core()
    tables.draw(Console(width=160), [grid(all_judged(range(given.first, given.stop), given.processes))])
    return 0


if __name__ == "__main__":
    sys.exit(main())

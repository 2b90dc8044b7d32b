"""How often does the check call a right kernel wrong? Counts it over right kernels that are emulated on a CPU.

    python -m benchmarks.false_alarms 0 300               # seeds 0 to 299; prints a table, and each false alarm with its problem
    python -m benchmarks.false_alarms 0 300 --processes 8 # on 8 cores

One core judges about 20 points a second. A seed draws one point for each arithmetic in each shape: a problem of up to about 1,000
keys and 3 requests, and a kernel (`right_kernels.py` says what is emulated of it and what is not). A point is judged as in a run:
each row, all estimates, the log-sum-exp where it is asked for, more inputs where one cannot show a lost page, and the answer after
a token of the cache has changed. What a run repeats for equal launches is not repeated.

Contexts are short, so few estimates are made at a time, and rows of few keys are many. Nothing is said of real kernels on a GPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

from rich.console import Console

from benchmarks.right_points import ARITHMETICS, SHAPES, EmulatedPoint, fits
from orchestrator import tables
from orchestrator.reporting.quality import upper_bound
from orchestrator.tables import Grid

NEAREST = ("largest error, in tolerances", "largest `weight_over_limit`", "largest root mean square, of its limit")
HEADER = ("kind", "points", "false alarms", "rate at most (95%)", *NEAREST)


@dataclass
class Count:
    """Points of one kind: how many there were, how many were called wrong, and how near the right ones came to each limit."""

    points: int = 0
    alarms: int = 0
    nearest: tuple[float, ...] = (0.0,) * len(NEAREST)

    def add(self, other: Count) -> None:
        self.points += other.points
        self.alarms += other.alarms
        self.nearest = tuple(map(max, self.nearest, other.nearest))


Counts = dict[tuple[str, str], Count]  # by shape and arithmetic


def points(seeds: Sequence[int]) -> Iterator[EmulatedPoint]:
    return (EmulatedPoint(shape, how, seed) for seed in seeds for shape in SHAPES for how in ARITHMETICS if fits(shape, how))


def _grid(counts: Counts) -> Grid:
    """By arithmetic, by shape, and all together: each point is in one line of the first kind and in one of the second."""
    lines: dict[str, Count] = {}
    for which in (1, 0):
        for key, count in counts.items():
            lines.setdefault(key[which], Count()).add(count)
    whole = Count()
    for count in counts.values():
        whole.add(count)
    return Grid("", HEADER, tuple(_cells(name, count) for name, count in (*lines.items(), ("all", whole))))


def _cells(name: str, count: Count) -> tuple[str, ...]:
    most = f"{upper_bound(count.alarms, count.points):.2g}" if count.points else "–"
    return (name, f"{count.points:,}", str(count.alarms), most, *(f"{of:.2f}" for of in count.nearest))


def counted(seeds: Sequence[int], processes: int = 1) -> Counts:
    """The counts of all seeds. Each false alarm is printed as it comes."""
    counts: Counts = {}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), one_core) if processes > 1 else nullcontext() as pool:
        for of_seed in pool.map(count, seeds) if pool else map(count, seeds):
            for kind, more in of_seed.items():
                counts.setdefault(kind, Count()).add(more)
    return counts


def one_core() -> None:
    """Torch computes on one core of this process, since each process has its own points."""
    import torch

    torch.set_num_threads(1)


def count(seed: int) -> Counts:
    counts: Counts = {}
    for point in points([seed]):
        reason, verdict = point.alarm()
        if reason:
            print(f"{point.shape}, {point.how}, seed {seed}: {reason}", flush=True)
        rms = (verdict.rms_err or 0.0) / (verdict.max_error or 1.0)
        near = tuple(min(of, 1.0) for of in (verdict.of_tolerance, verdict.weight_over_limit or 0.0, rms))
        counts.setdefault((point.shape, str(point.how)), Count()).add(Count(1, int(bool(reason)), near))
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int, nargs="?", default=0, help="the first seed (0)")
    parser.add_argument("stop", type=int, nargs="?", default=1, help="the seed before which it stops (1)")
    parser.add_argument("--processes", type=int, default=1, help="how many processes share the seeds (1)")
    given = parser.parse_args()
    if given.stop <= given.first:
        parser.error(f"seeds {given.first} to {given.stop}: allowed: a stop above the first; type {given.first} {given.first + 1}")
    one_core()
    tables.draw(Console(width=160), [_grid(counted(range(given.first, given.stop), given.processes))])
    return 0


if __name__ == "__main__":
    sys.exit(main())

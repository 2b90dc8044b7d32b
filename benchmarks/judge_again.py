"""Are the answers that GPUs gave right by today's check? Runs each distinct committed point again, and counts those called wrong.

    python -m benchmarks.judge_again OUT [OVERRIDE ...]  # the points of results/ that the dataset OUT lacks
    python -m benchmarks.judge_again OUT --show          # only prints what OUT says

A point is planned, compiled, checked and stored as in a run. Samples are few, and other programs may run: no time is published.
Points in engines and in other environments are left out.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from rich.console import Console

from benchmarks.figures import settings_of
from kernels import registry
from kernels.problem import Problem
from orchestrator import ROOT, tables
from orchestrator.config.settings import RunSettings
from orchestrator.grouped import grouped
from orchestrator.planning.expand import chosen
from orchestrator.point import Point, fingerprint
from orchestrator.pools import connect
from orchestrator.run import Run
from orchestrator.scheduling.progress import Progress
from orchestrator.storage import access, parquet
from orchestrator.tables import Grid
from tests.helpers.committed_rows import problem_of, records_of

QUICK = ("+sweep=smoke", "sweep.name=judge_again", "timing=quick", "timing.max_samples=10", "timing.max_seconds=0.01")
BESIDE = ("_noise", "_check_power", Path(__file__).stem)  # datasets of the same points once more, and of wrong kernels
NEAREST = {"err_over_tolerance": "largest error, in tolerances", "weight_over_limit": "largest `weight_over_limit`"}
HEADER = ("routine", "points", "right", "called wrong", "not run", *NEAREST.values())


def committed() -> Iterator[tuple[Problem, str]]:
    """Each problem and backend that a committed row of a GPU calls right, problem by problem."""
    pairs: list[tuple[Problem, str]] = []
    for file in sorted((ROOT / "results").glob("h[12]00_*/*.parquet")):
        if not file.stem.endswith(BESIDE):
            rows = parquet.read(file).to_pandas()
            right = rows[(rows["status"] == "ok") & rows["env"].isna() & rows["engine"].isna() & (rows["check"] == "passed")]
            pairs += [(problem_of(row), str(row["backend"])) for row in records_of(right)]
    for problem, backends in grouped(pairs).items():
        yield from ((problem, backend) for backend in dict.fromkeys(backends))


def points() -> list[Point]:
    """Those of `committed` whose backend is registered today."""
    how, found = fingerprint([QUICK]), []
    for problem, backend in committed():
        try:
            adapter = registry.get(problem.routine, backend)
        except registry.UnknownBackend:  # a plugin's
            continue
        found.append(Point(problem, backend, how, 0, adapter.distributions_for(problem)))
    return found


def judge(out: str, overrides: list[str]) -> None:
    """Runs what `out` lacks, of what `where=` chooses. Raises NoWorkers if no machine can."""
    settings = settings_of([*QUICK, f"results.path={out}", *overrides])
    assert isinstance(settings, RunSettings)
    command = shlex.join(["python", "-m", f"benchmarks.{Path(__file__).stem}", out, *overrides])
    store, console = access.open_writer(out, background=True), Console()
    try:
        with Progress(console) as progress, connect(settings.cluster, settings.versions) as pool:
            run = Run(settings, overrides, store, pool, progress)
            run.command = lambda _: command
            run.go(chosen(points(), settings))
    finally:
        store.close()


def grid(rows: pd.DataFrame) -> Grid:
    """What the check says today, by routine and of all."""
    lines = [*rows.groupby("routine", sort=False), ("all", rows)]
    return Grid("", HEADER, tuple(_cells(str(name), some) for name, some in lines))


def _cells(name: str, rows: pd.DataFrame) -> tuple[str, ...]:
    right, wrong = rows[rows["status"] == "ok"], int((rows["status"] == "mismatch").sum())
    nearest = ("–" if math.isnan(worst := right[column].max()) else f"{worst:.2f}" for column in NEAREST)
    counts = (len(rows), len(right), wrong, len(rows) - len(right) - wrong)
    return (name, *(f"{count:,}" for count in counts), *nearest)


def main(out: str, *overrides: str) -> None:
    if overrides != ("--show",):
        judge(out, list(overrides))
    tables.draw(Console(width=160), [grid(access.read(out).to_pandas())])


if __name__ == "__main__":
    main(*sys.argv[1:])

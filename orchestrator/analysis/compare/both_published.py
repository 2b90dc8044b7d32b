"""Two sides of published times, such as aiconfigurator's tables of two GPUs: best against best, and no test.

Imported rows have no samples, no clocks and no second measurement, so no noise floor of theirs is known and nothing here is called
significant. Two times count as apart only beyond twice what the same points of this project differed by in two runs, with the GPU
throttled and the clocks of a side unknown: 5%, and 0.6 µs of short kernels. That is wider than any floor of measured rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.analysis.compare import best_tables
from orchestrator.analysis.compare.best_of import BestOfSides, best_of
from orchestrator.analysis.compare.selection import Selection
from orchestrator.analysis.noise import BETWEEN_RUNS, THROTTLED_CLOCK, NoiseFloor
from orchestrator.errors import UserError
from orchestrator.tables import Grid

if TYPE_CHECKING:
    import pandas as pd

BETWEEN_TABLES = NoiseFloor(BETWEEN_RUNS.us, THROTTLED_CLOCK)
WIDE = 2  # standard deviations
APART = WIDE * THROTTLED_CLOCK  # a ratio of times that are not short
DIFFERING = ("device_name", "cluster", "libraries", "timer", "l2", "page_size", "page_order")
RULE = (
    f"no noise floor of published times is known, so this is no test; times within {APART:.0%} (more below 20 µs) cannot be told "
    f"apart: twice what the same points differed by in two runs of this project whose clocks were throttled and unknown"
)


def grids(baseline: Selection, candidate: Selection, max_rel_err: float | None = None) -> list[Grid]:
    """The tables, the answer first. Raises UserError if both select the same rows, or if no shape is in both."""
    words = f"baseline={baseline.name} and candidate={candidate.name}"
    if baseline.path == candidate.path and baseline.rows.index.equals(candidate.rows.index):
        raise UserError(f"{words}: both select the same rows; type candidate=DIR with another import")
    if max_rel_err is not None:
        raise UserError(f"best.max_rel_err={max_rel_err:g}: the answers of imported rows were not checked; leave it out")
    found = best_of(baseline, candidate)
    if found.shapes.empty:
        raise UserError(
            f"{words}: no shape is in both; a shape is the routine, lengths, heads, page size, dtypes and mask, timed in one way. "
            f"type tables of one framework, such as two of vllm"
        )
    return [_counts(found), *best_tables.grids(found, APART), _differences(baseline, candidate)]


def _counts(found: BestOfSides) -> Grid:
    """How many shapes each side is ahead at by more than the rule asks for."""
    baseline, candidate = found.names
    ahead = _ahead(found.shapes)
    lines = (
        (f"{candidate} takes less time", int((ahead > 0).sum())),
        (f"{baseline} takes less time", int((ahead < 0).sum())),
        ("cannot be told apart", int((ahead == 0).sum())),
    )
    cells = tuple((words, f"{count:,}") for words, count in lines if count)
    return Grid(f"published times of both; {RULE}", ("the best of each at a shape", "shapes"), cells)


def _ahead(shapes: pd.DataFrame) -> pd.Series:
    """By shape 1 if the candidate's best takes less time, -1 if the baseline's does, and 0 if the two are not apart."""
    import numpy as np

    log_ratio = np.log(shapes["speed_up"].to_numpy(dtype=float))
    fastest_us = shapes[["us_a", "us_b"]].min(axis=1).to_numpy(dtype=float)
    limit = WIDE * np.sqrt(BETWEEN_TABLES.variance(fastest_us))
    return shapes["speed_up"].mask(np.abs(log_ratio) <= limit, 1.0).map(lambda ratio: (ratio > 1) - (ratio < 1))


def _differences(*sides: Selection) -> Grid:
    """What else differs between the two, such as the version of the framework."""
    values = {name: [sorted({str(value) for value in side.rows[name].dropna()}) for side in sides] for name in DIFFERING}
    cells = tuple((name, *map(", ".join, found)) for name, found in values.items() if found[0] != found[1])
    return Grid("what differs between the sides", ("column", *(side.name for side in sides)), cells)

"""The cost of attention in long steps that meet the power cap: time and clock, alone and in a step."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.neighbours_table import KEYS
from orchestrator.tables import Grid

HEADER = ("kernel", "where", "µs a layer", "MHz", "million cycles")
VARIANTS = {"as today": "in a step", "stand-in reads the cache": "in a step; its cost beside a read of the whole cache"}


def table(path: Path, alone: pd.DataFrame) -> Grid:
    """Lines for each kernel of a file of benchmarks/neighbours.py. `alone` are rows of a dataset that has the same points."""
    steps = pd.read_parquet(path)
    cells: list[tuple[str, ...]] = []
    for shape, part in steps[steps["cost_us"].notna()].groupby(KEYS, sort=False):
        row = alone[(alone[KEYS] == pd.Series(shape, index=KEYS)).all(axis=1)].iloc[0]
        own_us, mhz = row["median_us"] - row["launch_us"], statistics.median(row["samples_mhz"])
        cells.append(_line(shape[0], "alone", own_us, mhz))
        by_variant: dict[str, Any] = {one["variant"]: one for one in part.to_dict("records")}
        cells += [
            _line(shape[0], words, by_variant[name]["cost_us"], by_variant[name]["attention MHz"])
            for name, words in VARIANTS.items()
        ]
    return Grid("", HEADER, tuple(cells))


def _line(kernel: str, where: str, us: float, mhz: float) -> tuple[str, ...]:
    return kernel, where, f"{us:,.0f}", f"{mhz:,.0f}", f"{us * mhz / 1e6:.2f}"

"""What benchmarks share: the settings of a command line, and how a figure is printed beside its target."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings


def settings_of(overrides: list[str]) -> Settings:
    from orchestrator.cli import composed
    from orchestrator.config.settings import load

    return load(composed(overrides))


def _show(bound: str, what: str, values: Sequence[float], target: float, unit: str) -> None:
    """A figure beside its target. The ratio is 1 and more if the bound holds."""
    unit = f" {unit}" if unit else ""
    least, median, most = min(values), statistics.median(values), max(values)
    ratio = median / target if bound == "at least" else target / max(median, 1e-9)
    runs = f"median {median:.4g}{unit} of {len(values)} (from {least:.4g} to {most:.4g})"
    print(f"{what}: {runs if len(values) > 1 else f'{least:.4g}{unit}'}; {bound} {target:g}{unit}: ratio {ratio:.2f}")


at_most, at_least = partial(_show, "at most"), partial(_show, "at least")

"""What benchmarks share: the settings of a command line, and how a figure is printed beside its target."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings


def settings_of(overrides: list[str]) -> Settings:
    from orchestrator.cli import composed
    from orchestrator.config.settings import load

    return load(composed(overrides))


def at_most(what: str, values: Sequence[float], target: float, unit: str) -> None:
    """A figure that is the better the smaller. The ratio is target over median: 1 and more holds."""
    _show(what, values, target=target, unit=unit, bound="at most", ratio=target / max(statistics.median(values), 1e-9))


def at_least(what: str, values: Sequence[float], target: float, unit: str) -> None:
    """A figure that is the better the larger. The ratio is median over target: 1 and more holds."""
    _show(what, values, target=target, unit=unit, bound="at least", ratio=statistics.median(values) / target)


def _show(what: str, values: Sequence[float], *, target: float, unit: str, bound: str, ratio: float) -> None:
    unit = f" {unit}" if unit else ""
    least, median, most = min(values), statistics.median(values), max(values)
    runs = f"median {median:.4g}{unit} of {len(values)} (from {least:.4g} to {most:.4g})"
    print(f"{what}: {runs if len(values) > 1 else f'{least:.4g}{unit}'}; {bound} {target:g}{unit}: ratio {ratio:.2f}")

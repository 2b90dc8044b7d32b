"""The committed datasets, by their paths in results/ without `.parquet`: EVERY one, and DATASETS, which are those of a sweep on an
H200. MAIN is the main sweep's, ALL are those of an H200 together.
"""

from __future__ import annotations

from typing import Any

import yaml

from kernels.problem import Problem
from orchestrator import ROOT

RESULTS = ROOT / "results"
SWEEPS = {path.stem for path in (ROOT / "conf" / "sweep").glob("*.yaml")}
EVERY = [f"{file.parent.name}/{file.stem}" for file in sorted(RESULTS.glob("h[12]00_*/*.parquet"))]
DATASETS = [name for name in EVERY if name.startswith("h200_") and name.partition("/")[2] in SWEEPS]
MAIN = RESULTS / "h200_main" / "specdec_long_ctx.parquet"
ALL = RESULTS / "h200_*"  # a pattern


def entry_of(name: str) -> dict[str, Any]:
    """What datasets.yaml says of a dataset."""
    folder, _, alone = name.partition("/")
    found: dict[str, Any] = yaml.safe_load((RESULTS / "datasets.yaml").read_text())[folder][alone]
    return found


def rules_not_measured_yet(name: str) -> list[dict[str, list[Any]]]:
    """What datasets.yaml says that today's sweep has and the rows do not: keys of points, each with its values.

    After the next time that the sweep is measured there is no such list, and every point must be there.
    """
    rules = entry_of(name).get("not_measured", [])
    return [{key: value if isinstance(value, list) else [value] for key, value in rule.items()} for rule in rules]


def names_point(rules: list[dict[str, list[Any]]], backend: str, problem: Problem) -> bool:
    """Whether one of the rules holds for a point."""
    keys = {**problem.model_dump(), "backend": backend}
    return any(all(keys[key] in values for key, values in rule.items()) for rule in rules)

"""The committed datasets: DATASETS are those of a sweep, MAIN is the main sweep's, ALL are all together."""

from __future__ import annotations

import re
from typing import Any

import yaml

from kernels.problem import Problem
from orchestrator import ROOT

RESULTS = ROOT / "results"
SWEEPS = {path.stem for path in (ROOT / "conf" / "sweep").glob("*.yaml")}
DATASETS = sorted(folder.name for folder in RESULTS.glob("h200_*") if folder.name.removeprefix("h200_") in SWEEPS)
MAIN = RESULTS / "h200_specdec_long_ctx"
ALL = RESULTS / "h200_*"  # a pattern


def rules_not_measured_yet(name: str) -> list[dict[str, list[Any]]]:
    """What a dataset's page says that today's sweep has and its rows do not: keys of points, each with its values.

    The page is written when the sweep is measured. So after the next time there is no such list, and every point must be there.
    """
    _, _, section = (RESULTS / name / "_README.md").read_text().partition("## Not measured yet\n")
    rules = [yaml.safe_load(rule) for rule in re.findall(r"^- `(\{.*\})`$", section, re.MULTILINE)]
    return [{key: value if isinstance(value, list) else [value] for key, value in rule.items()} for rule in rules]


def names_point(rules: list[dict[str, list[Any]]], backend: str, problem: Problem) -> bool:
    """Whether one of the rules holds for a point."""
    keys = {**problem.model_dump(), "backend": backend}
    return any(all(keys[key] in values for key, values in rule.items()) for rule in rules)

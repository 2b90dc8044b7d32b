"""A traffic mix: how much each shape of a report counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels.problem import Problem
from orchestrator.config.base import Scalar
from orchestrator.errors import unknown

WeightRules = tuple[Mapping[str, Scalar], ...]  # each has keys of a problem, and its weight
WEIGHT = "weight"


def checked_weights(given: Any) -> WeightRules:
    """Entries with keys of a problem and a weight above 0. Raises ValueError, which says what is allowed."""
    entries = [] if given is None else given if isinstance(given, list | tuple) else [given]
    for entry in entries:
        weight = entry.get(WEIGHT) if isinstance(entry, Mapping) else None
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight < float("inf"):
            raise ValueError(
                f"weights={entry!r}: allowed: a list of shapes, each with a weight above 0, such as "
                f"[{{batch_size: 8, s_kv: 8192, weight: 3}}, {{s_qo: 4, weight: 1}}]"
            )
        for key in entry.keys() - {WEIGHT}:
            if key not in Problem.model_fields or not isinstance(entry[key], Scalar):
                raise ValueError(unknown(f"weights={entry!r}", key, [*Problem.model_fields, WEIGHT]))
    return tuple(dict(entry) for entry in entries)

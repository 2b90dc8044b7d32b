"""A traffic mix: how much each workload of a report counts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from math import prod
from typing import Any, get_args

from kernels.problem import Problem
from orchestrator.config.base import Scalar
from orchestrator.config.ranges import several
from orchestrator.errors import unknown

WeightRules = tuple[Mapping[str, Scalar], ...]  # each has keys of a problem, and its weight
WEIGHT = "weight"
OF_A_CHOICE = ("routine", "q_dtype", "out_dtype")  # keys of a problem that come with the choice of a backend
MAX_WEIGHT, MAX_WORKLOADS = 1e15, 10_000


def checked_weights(given: Any) -> WeightRules:
    """Entries with keys of a problem and a weight above 0; a list stands for an entry of each value. Raises ValueError."""
    if given == []:
        raise ValueError("weights=[]: allowed: one workload or more, such as [{s_qo: 4, weight: 1}]; or leave it out")
    entries = () if given is None else several(given)
    allowed = [name for name in Problem.model_fields if name != "tree"]  # a tree has a name, in `mask`
    for entry in entries:
        weight = entry.get(WEIGHT) if isinstance(entry, Mapping) else None
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight <= MAX_WEIGHT:
            raise ValueError(
                f"weights={entry!r}: allowed: a list of workloads, each with a weight above 0, up to {MAX_WEIGHT:g}, such as "
                f"[{{batch_size: 8, s_kv: 8192, weight: 3}}, {{s_qo: 4, weight: 1}}]"
            )
        for key in entry.keys() - {WEIGHT}:
            if key in OF_A_CHOICE:
                raise ValueError(f"weights={entry!r}: {key} comes with the backend; a workload has one weight, whatever its {key}")
            if key not in allowed:
                raise ValueError(unknown(f"weights={entry!r}", key, [*allowed, WEIGHT]))
            if not several(entry[key]) or not all(map(partial(_fits, key), several(entry[key]))):
                raise ValueError(f"weights={entry!r}: {key}={entry[key]!r}; allowed: a value, or a list of values")
    if (count := sum(prod(len(several(value)) for value in entry.values()) for entry in entries)) > MAX_WORKLOADS:
        raise ValueError(f"weights: its lists make {count:,} workloads; allowed: up to {MAX_WORKLOADS:,}")
    return tuple(dict(zip(entry, values, strict=True)) for entry in entries for values in product(*map(several, entry.values())))


def _fits(key: str, value: object) -> bool:
    """Whether a value may be one of a problem's key: true and false stand for themselves alone, and for no number."""
    of = Problem.model_fields[key].annotation
    return isinstance(value, Scalar) and isinstance(value, bool) <= (bool in (of, *get_args(of)))

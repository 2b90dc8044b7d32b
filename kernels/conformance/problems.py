"""Small problems for the checks of a backend, found by asking its support rule. Pure: no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import chain, product
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from kernels.adapter import Adapter
from kernels.device import Device
from kernels.problem import Problem, batch_spec
from kernels.problem.routine import FOLDERS, routine_of

Keys = Mapping[str, Any]

MAX_STEPS = 8  # of the search for a served problem
TREE = {"s_qo": 7, "mask": "binary", "tree": (-1, 0, 0, 1, 1, 2, 2)}
LISTED_BY_SPEC = {"batch_size", "s_qo", "min_s_qo", "s_kv", "seq_lens"}  # a batch spec says them itself
OTHER_OUTPUT = "outputs of another dtype"


@cache
def _data(package: str) -> Any:
    """What `problems.yaml` of a package says: of this one, or of the folder of a routine. Nothing without the file."""
    file = files(package).joinpath("problems.yaml")
    return yaml.safe_load(file.read_text()) if file.is_file() else {}


@cache
def changes_of(routine: str, what: Literal["axes", "families"]) -> dict[str, tuple[Keys, ...]]:
    """Changes to a problem of this routine: of axes, which the search makes, or of families, on which answers are checked."""
    if routine_of(routine):
        own = _data(f"{FOLDERS}.{routine}").get("changes", {})
    else:
        data = _data(__package__)
        both = {**data[what], **(data["latent"] if routine == "mla" else {})}
        own = {name: change for name, change in both.items() if name not in data["not_in"].get(routine, ())}
    return {name: _expanded(change) for name, change in own.items()}


def _expanded(change: Keys | Sequence[Keys]) -> tuple[Keys, ...]:
    """The changes that one entry of `problems.yaml` stands for."""
    if not isinstance(change, Mapping):
        return tuple(one for part in change for one in _expanded(part))
    names = [key.split() for key in change]
    lists = [values if isinstance(values, list) else [values] for values in change.values()]
    given = ([value if keys[1:] else [value] for keys, value in zip(names, values, strict=True)] for values in product(*lists))
    return tuple(dict(zip(chain(*names), chain(*values), strict=True)) for values in given)


def changed(problem: Problem, keys: Keys) -> Problem | None:
    """The problem with other values of some keys; None if there is no such problem."""
    kept = problem.model_dump(exclude=LISTED_BY_SPEC if "batch_spec" in keys else None)
    try:
        return Problem.model_validate({**kept, **keys})
    except ValidationError:
        return None


def shorter(problem: Problem) -> Problem | None:
    """The same batch of queries with less context behind a shared prefix; None if no request has any."""
    q_lens, kv_lens, prefix = problem.q_lens, problem.kv_lens, problem.shared_prefix or 0
    less = [kv - (kv - q - prefix) * (1 + i % 3) // 4 for i, (q, kv) in enumerate(zip(q_lens, kv_lens, strict=True))]
    return changed(problem, batch_spec.keys_of(batch_spec.name(zip(q_lens, less, strict=True)))) if less != [*kv_lens] else None


def next_batches(problem: Problem) -> list[Problem]:
    """Batches and problems for which an engine may plan a wrapper again."""
    others = (changed(problem, keys) for keys in _expanded(_data(__package__)["next_batches"]))
    return [other for other in (shorter(problem), *others) if other is not None]


@lru_cache(maxsize=256)  # the searches for all backends of a routine begin at the same problems
def neighbours(problem: Problem) -> tuple[Problem, ...]:
    """Problems that differ from this one in one axis, none twice."""
    others = (changed(problem, keys) for keys in chain.from_iterable(changes_of(problem.routine, "axes").values()))
    return tuple(dict.fromkeys(other for other in others if other is not None and other != problem))


@cache
def starts(routine: str) -> tuple[Problem, ...]:
    """Where the search for a served problem begins, the smallest first."""
    if routine_of(routine):
        whole = _expanded(_data(f"{FOLDERS}.{routine}").get("starts", ()))
        return tuple(Problem.model_validate({"routine": routine, **keys}) for keys in whole)
    data = _data(__package__)
    small = Problem.model_validate({"routine": routine, **data["small"], **data["of_routine"].get(routine, {})})
    more = _expanded(data["latent_starts" if routine == "mla" else "starts"])
    return tuple(p for keys in more if (p := changed(small, keys)) is not None)


def find_closest(adapter: Adapter, device: Device) -> tuple[Problem, list[str]]:
    """A small problem that the backend serves on this device; else that with the fewest unmet conditions, a change at a time."""
    found: list[tuple[Problem, list[str]]] = []
    for start in starts(adapter.routine):
        problem = _descend(adapter, device, start)
        found.append((problem, adapter.unmet(problem, device)))
        if not found[-1][1]:
            break
    return min(found, key=lambda one: len(one[1]))


def _descend(adapter: Adapter, device: Device, problem: Problem) -> Problem:
    lacking = len(adapter.unmet(problem, device))
    for _ in range(MAX_STEPS):
        if not lacking:
            break
        best = min(neighbours(problem), key=lambda p: len(adapter.unmet(p, device)))
        left = len(adapter.unmet(best, device))
        if left >= lacking:
            break
        problem, lacking = best, left
    return problem


def describe(problem: Problem, compared_with: Problem | None = None) -> str:
    """A problem in words: what differs from the defaults, or from the other problem."""
    keys = problem.model_dump(exclude={"routine", "model", "tp", "seed"}, exclude_defaults=compared_with is None)
    other = compared_with.model_dump() if compared_with is not None else {}
    return " ".join(f"{name}={value}" for name, value in keys.items() if name not in other or other[name] != value)

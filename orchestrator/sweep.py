"""From a sweep to its points: the grid of its axes, less what is excluded, plus what is included. Pure."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from kernels import registry
from kernels.problem import Problem
from orchestrator.errors import UserError, explain
from orchestrator.settings import AxisValue, Scalar, Settings, keys_of


@dataclass(frozen=True)
class Point:
    """One problem on one backend, as it is to be measured. Where it runs is no part of it."""

    problem: Problem
    backend: str
    how: str  # fingerprint of the measurement settings

    @cached_property
    def point_id(self) -> str:
        """Hash of what is measured and how; the same on every machine."""
        return fingerprint([self.group_id, self.backend])

    @cached_property
    def group_id(self) -> str:
        """Hash of the problem: points of one group run on the same inputs and the same reference."""
        return fingerprint([self.problem.model_dump(), self.how])


def fingerprint(what: object) -> str:
    """The first 12 hex digits of a SHA-256 over canonical JSON."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def expand(settings: Settings) -> list[Point]:
    """The points of a sweep in the order of its axes, none twice.

    Raises UserError for a value that no problem can have, a backend that does not exist, and a sweep without points.
    """
    how = fingerprint([settings.timing.model_dump(), settings.check.model_dump()])
    model = settings.model.model_dump()
    name = model.pop("name")
    problems: dict[tuple[tuple[str, Scalar], ...], Problem] = {}
    points: dict[tuple[Problem, str], Point] = {}
    for keys in _combinations(settings):
        backend = keys.pop("backend", None)
        known = tuple(keys.items())
        if known not in problems:
            label = "custom" if model.keys() & keys.keys() else name  # a sweep's own head shapes are no longer the model's
            problems[known] = _problem({"model": label, **model, **keys})
        problem = problems[known]
        _require_backend(problem.routine, backend, settings.adapters)
        points.setdefault((problem, str(backend)), Point(problem, str(backend), how))
    if not points:
        empty = ", ".join(f"sweep.{axis}" for axis, values in settings.sweep.axes.items() if not values)
        raise UserError(f"sweep {settings.sweep.name} has no points: {empty or 'every point'} is empty or excluded; give it values")
    return list(points.values())


def _combinations(settings: Settings) -> Iterator[dict[str, Scalar]]:
    sweep = settings.sweep
    for axes in (sweep.axes, *({**sweep.axes, **rule} for rule in sweep.include)):
        for keys in _grid(axes):
            if axes is not sweep.axes or not any(_matches(keys, rule) for rule in sweep.exclude):
                yield keys


def _grid(axes: Mapping[str, tuple[AxisValue, ...]]) -> Iterator[dict[str, Scalar]]:
    choices = [[keys_of(axis, value) for value in values] for axis, values in axes.items()]
    for combination in itertools.product(*choices):
        merged: dict[str, Scalar] = {}
        for keys in combination:
            merged.update(keys)
        yield merged


def _matches(keys: Mapping[str, Scalar], rule: Mapping[str, tuple[Scalar, ...]]) -> bool:
    return all(keys.get(key) in values for key, values in rule.items())


def _problem(keys: dict[str, Any]) -> Problem:
    try:
        return Problem.model_validate(keys)
    except ValidationError as error:
        raise UserError(explain(error, "sweep")) from None


def _require_backend(routine: str, backend: object, plugins: tuple[str, ...]) -> None:
    try:
        registry.get(routine, str(backend), plugins)
    except registry.UnknownBackend as error:
        raise UserError(f"sweep.backend={backend!r}: {error}") from None
    except (ImportError, ValueError, AttributeError) as error:
        raise UserError(f"adapters={list(plugins)}: {error}; allowed: modules that hold a tuple ADAPTERS") from None

"""The points of a sweep that `where` asks for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kernels.problem import Problem
from orchestrator.config.base import Scalar
from orchestrator.config.settings import Chosen
from orchestrator.errors import UserError, unknown
from orchestrator.point import Point

OF_POINTS = ("backend", "env", "out_dtype")  # beside the keys of a problem: known before a point has run
Where = Mapping[str, Scalar | tuple[Scalar, ...]]


def chosen(points: Iterable[Point], settings: Chosen) -> list[Point]:
    """The points with the values of `where`; all of them without one.

    Raises UserError for a key that no point has, and if no point has these values.
    """
    where: Where = settings.where
    for key in where:
        if key not in OF_POINTS and key not in Problem.model_fields:
            raise UserError(unknown("where", key, {*OF_POINTS, *Problem.model_fields}))
    found = [point for point in points if all(_value(point, key) in _several(values) for key, values in where.items())]
    if not found:
        raise UserError(f"where={dict(where)}: no point of sweep {settings.sweep.name} has these values; type others")
    return found


def _value(point: Point, key: str) -> object:
    of_point = {"backend": point.backend, "env": point.env, "out_dtype": point.problem.output_dtype}
    return of_point[key] if key in of_point else getattr(point.problem, key)


def _several(values: Scalar | tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    return values if isinstance(values, tuple) else (values,)

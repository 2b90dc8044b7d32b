"""The adapters of a plan's points, for the releases that they would run with, and the libraries that are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernels import registry
from kernels.adapter import Adapter
from orchestrator import libraries
from orchestrator.config.parts import VersionRule
from orchestrator.libraries import LibraryVersions
from orchestrator.point import Point


class Backends:
    """The adapters of points, each with the rule for the versions of its environment, or for those that its machines share."""

    def __init__(
        self,
        plugins: tuple[str, ...],
        machines: Sequence[LibraryVersions],
        environments: Mapping[str, LibraryVersions] | None = None,
        allowed: VersionRule = "same",
    ) -> None:
        self._plugins, self._machines, self._environments = plugins, machines, environments or {}
        self._enough = all if allowed == "any" else any
        self._known: dict[tuple[str, str, str | None], Adapter] = {}
        self._lacking: dict[tuple[str, str, str | None, tuple[str, ...]], str] = {}  # by the libraries of the problem too

    def adapter_of(self, point: Point) -> Adapter:
        """The adapter of a point's backend, as it is in the releases that the point would run with."""
        key = point.problem.routine, point.backend, point.env
        if key not in self._known:
            adapter = registry.get(*key[:2], self._plugins)
            self._known[key] = adapter.for_versions(libraries.shared(adapter.all_distributions, self._where(point)))
        return self._known[key]

    def lacking(self, point: Point) -> str:
        """The words for a library that is not where a point would run; empty if all are there that its problem needs.

        A library must be on every machine, or on one of them if their versions may differ.
        """
        adapter = self.adapter_of(point)
        key = point.problem.routine, point.backend, point.env, adapter.distributions_for(point.problem)
        if key not in self._lacking:
            missing = [libraries.missing(adapter, machine, problem=point.problem) for machine in self._where(point)]
            words = next(filter(None, missing), "") if self._enough(missing) else ""
            if words and point.env is not None:
                said, _, what = words.partition("; type: pip install ")
                one_of_extra = adapter.extra and " and " not in said
                words = f"environment {point.env}: {said}; add {'it' if one_of_extra else what} to its requirements"
            self._lacking[key] = words
        return self._lacking[key]

    def _where(self, point: Point) -> Sequence[LibraryVersions]:
        """The versions of each place that a point may run in."""
        if point.env is None:
            return self._machines
        return [self._environments[point.env]] if point.env in self._environments else []

"""The rows that the driver writes itself: of points that the plan does not run, and of points that no worker could finish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from orchestrator.libraries import LibraryVersions
from orchestrator.planning.plan import Decision
from orchestrator.point import Point
from orchestrator.scheduling.interfaces import Slot
from orchestrator.scheduling.ready_groups import Uncompiled
from orchestrator.storage.row import ANY_OF, Row, Status, begin, finish, library_column, version_columns
from orchestrator.worker.messages import Task
from orchestrator.worker.task_row import begin_row, finish_row


@dataclass(frozen=True)
class DriverRows:
    """Makes the driver's rows. `common`: a run's columns; `versions`: the plan's; `environments`: by name; `archs`: by device."""

    common: Row
    command: Callable[[Point], str]
    versions: LibraryVersions
    environments: Mapping[str, LibraryVersions]
    archs: Mapping[str, str]

    def of_planned(self, decision: Decision, status: Status) -> Row:
        """The row of a point that the plan does not run."""
        return finish(self._begun(decision.point, self.command(decision.point), decision.devices), status, decision.reason)

    def of_uncompiled(self, uncompiled: Uncompiled) -> Row:
        task = uncompiled.task
        row: Row = {**self._begun(task.point, task.command, uncompiled.devices), "compile_s": sum(task.compile_s.values())}
        return finish_row(row, task, "failed", uncompiled.reason)

    def _begun(self, point: Point, command: str, devices: Iterable[str]) -> Row:
        row: Row = {**begin(point, self.common), **self._library_columns(point, self.versions)}
        return {**row, "device_name": ANY_OF.join(devices), "command": command, "attempt": 0}

    def of_fault(self, task: Task, slot: Slot, status: Status, reason: str) -> Row:
        """The row of a point whose worker cannot make it."""
        row = begin_row(task, self.common, self.archs[slot.device_name], slot.node_id)
        row |= {**version_columns(slot.versions), **self._library_columns(task.point, slot.versions or self.versions)}
        return finish_row({**row, "device_name": slot.device_name}, task, status, reason)

    def _library_columns(self, point: Point, machine: LibraryVersions) -> Row:
        """The library versions that a point runs with on a machine, or in its environment."""
        if point.env is None:
            return library_column(point, machine)
        there = self.environments[point.env]
        return {**version_columns(there), **library_column(point, there)}

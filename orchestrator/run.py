"""One run: plan, resume, compile, schedule, store."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from kernels import registry
from orchestrator import gc_pause
from orchestrator.code_version import own_version
from orchestrator.config.environment import find
from orchestrator.config.settings import Settings
from orchestrator.environments.modules import Wanted
from orchestrator.errors import NoWorkers
from orchestrator.libraries import Versions
from orchestrator.machines import require_same_versions
from orchestrator.planning.plan import Decision, Plan, make_plan
from orchestrator.planning.replay import replay_command
from orchestrator.planning.resume import Resume
from orchestrator.point import Point
from orchestrator.pools import ComputePool
from orchestrator.scheduling.archive import load_archive, read_fitting
from orchestrator.scheduling.interfaces import Slot
from orchestrator.scheduling.progress import Progress
from orchestrator.scheduling.ready_groups import ReadyGroups, Uncompiled, modules_in_order
from orchestrator.scheduling.scheduler import Scheduler
from orchestrator.storage.access import DatasetWriter
from orchestrator.storage.row import ANY_OF, BAD, Row, Status, begin, finish, library_column, version_columns
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.task_row import begin_row, finish_row

log = logging.getLogger(__name__)


class Run:
    """One run of a sweep into a dataset, on the workers of a pool. `written` counts the rows that it has stored.

    Raises UserError if the machines' library versions differ and `versions=any` was not typed.
    """

    def __init__(
        self, settings: Settings, overrides: Sequence[str], store: DatasetWriter, pool: ComputePool, progress: Progress
    ) -> None:
        self.settings, self.store, self.pool, self.progress = settings, store, pool, progress
        self.command = replay_command(overrides, settings.mode)
        self.versions = versions = pool.versions[0] if settings.versions == "any" else require_same_versions(pool.versions)
        self.common: Row = {
            "run_id": f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}",
            "sweep": settings.sweep.name,
            "cluster": (settings.cluster.name == "ray" and settings.cluster.address) or settings.cluster.name,
            **version_columns(versions),
            "orchestrator_version": own_version(),  # the driver's code runs everywhere, whatever machines have
        }
        self.config = WorkerConfig(
            settings.timing,
            settings.check.enabled,
            settings.adapters,
            self.common,
            versions=settings.versions,
            max_inputs=settings.check.max_inputs,
            layer=settings.model.layer,
            memory_fraction=settings.limits.memory_fraction,
            start_seconds=settings.limits.start_seconds,
            point_seconds=settings.limits.point_seconds,
        )
        self.environments: Mapping[str, Versions] = {}  # the library versions of each environment, by its name
        self.archs = {device.name: device.arch for device in pool.devices}
        self.written = 0

    def go(self, points: Sequence[Point]) -> Counter[str]:
        """Runs what the plan allows and the dataset does not have yet; returns the current statuses of all points.

        Raises NoWorkers, and KeyboardInterrupt, with every finished row stored.
        """
        self._make_environments(points)
        plan = make_plan(points, self.pool.devices, self.settings, self.pool.versions, self.environments)
        with gc_pause.paused():
            resume = self._resume()
            todo = Plan(tuple(d for d in plan.decisions if not resume.is_answered(d)))
        log.info(
            "%d points, %d of them to run, on %s",
            len(plan.decisions),
            len(todo.of("run")),
            ", ".join(s.name for s in self.pool.slots),
        )
        self.progress.begin(plan, todo, workers=len(self.pool.slots))
        self._store([self._planned_row(d, d.kind) for d in todo.decisions if d.kind != "run"])
        try:
            self._compile_and_schedule(todo)
        except NoWorkers as error:
            raise NoWorkers("; ".join([str(error), *self.pool.left_out])) from None
        self.store.seal()
        return self._resume().counts(plan.decisions)

    def _resume(self) -> Resume:
        return Resume(self.store.table, self.settings, self.common, self.pool.versions, self.environments)

    def _make_environments(self, points: Sequence[Point]) -> None:
        """Makes what is not there yet, on each machine. Raises UserError in words for one that cannot be had."""
        wanted = [find(name, self.settings.env) for name in dict.fromkeys(point.env for point in points) if name is not None]
        self.environments = self.pool.make_environments(wanted, self.progress.stage)
        self.config = replace(self.config, environments=tuple(wanted))

    def _compile_and_schedule(self, todo: Plan) -> None:
        """Compiles what is missing and runs each group as soon as its modules are there."""
        settings, wait_seconds = self.settings, self.settings.cluster.wait_seconds
        todo, seconds_there = self._compile_in_environments(todo)
        modules = modules_in_order(todo)
        found = load_archive(settings.modules, self.pool.versions, modules)
        self.progress.begin_modules(len(modules), len(found))
        builds = self.pool.build(modules, found)
        try:
            ready = ReadyGroups(
                todo,
                builds,
                archs=self.archs,
                command=self.command,
                on_built=self.progress.module,
                on_uncompiled=self._store_uncompiled,
                wait_seconds=wait_seconds,
                seconds_there=seconds_there,
            )
            Scheduler(
                self.pool,
                replace(self.config, imports=imports_of(todo, settings.adapters)),
                settings.limits,
                on_rows=self._store,
                on_fault=self._fault_row,
                wait_seconds=wait_seconds,
                arrivals=ready,
            ).run()
        finally:
            builds.close()

    def _compile_in_environments(self, todo: Plan) -> tuple[Plan, dict[str, float]]:
        """Compiles the modules of points that run in environments, and starts none that no point is left for.

        What is left of the plan, and the seconds by point_id. A point whose modules do not compile gets its row.
        """
        lost: set[Decision] = set()
        seconds: dict[str, float] = {}
        needed = []
        archs = set(self.archs.values())
        for environment in self.config.environments:
            there = [decision for decision in todo.of("run") if decision.point.env == environment.name]
            points = [decision.point for decision in there]
            archived = read_fitting(self.settings.modules, self.environments[environment.name], archs) if points else {}
            wanted = Wanted(environment, points, self.settings.adapters, archived)
            found = self.pool.compile_in(wanted, self.progress.stage)
            seconds |= {points[index].point_id: took for index, took in found.seconds.items()}
            for index, words in found.errors.items():
                task = Task(points[index], self.command(points[index]), compile_s={"": found.seconds.get(index, 0.0)})
                self._store_uncompiled([Uncompiled(task, there[index].devices, words)])
                lost.add(there[index])
            needed += [environment] if len(points) > len(found.errors) else []
        self.config = replace(self.config, environments=tuple(needed))
        return Plan(tuple(decision for decision in todo.decisions if decision not in lost)), seconds

    def _store(self, new: Sequence[Row]) -> None:
        if new:
            self.store.add(new)
            self.written += len(new)
            log.info("%d rows stored, %d in all", len(new), self.written)
            self.progress.rows(new)

    def _store_uncompiled(self, lost: Sequence[Uncompiled]) -> None:
        self._store([self._uncompiled_row(one) for one in lost])

    def _planned_row(self, decision: Decision, status: Status) -> Row:
        """The row of a point that the plan does not run."""
        point = decision.point
        where: Row = {"device_name": ANY_OF.join(decision.devices), "command": self.command(point), "attempt": 0}
        return finish({**begin(point, self.common), **self._origin(point, self.versions), **where}, status, decision.reason)

    def _origin(self, point: Point, machine: Versions) -> Row:
        """The library versions that a point runs with on a machine, or in its environment."""
        if point.env is None:
            return library_column(point, machine)
        return {**version_columns(self.environments[point.env]), **library_column(point, self.environments[point.env])}

    def _uncompiled_row(self, lost: Uncompiled) -> Row:
        """The row of a point whose kernel modules did not compile."""
        task = lost.task
        where: Row = {"device_name": ANY_OF.join(lost.devices), "command": task.command, "attempt": 0}
        where["compile_s"] = sum(task.compile_s.values())
        where |= self._origin(task.point, self.versions)
        return finish_row({**begin(task.point, self.common), **where}, task, "failed", lost.reason)

    def _fault_row(self, task: Task, slot: Slot, status: Status, reason: str) -> Row:
        """The row of a point whose worker cannot make it."""
        begun = begin_row(task, self.common, self.archs[slot.device_name], slot.node_id)
        begun |= {**version_columns(slot.versions), **self._origin(task.point, slot.versions or self.versions)}
        return finish_row({**begun, "device_name": slot.device_name}, task, status, reason)


def imports_of(plan: Plan, plugins: tuple[str, ...]) -> tuple[str, ...]:
    """The kernel libraries of the points that will run, as Python packages."""
    backends = {(d.point.problem.routine, d.point.backend) for d in plan.of("run")}
    return tuple(sorted({registry.get(*backend, plugins).imports for backend in backends} - {""}))


def exit_code(counts: Counter[str], mode: str, draws: int = 0) -> int:
    """0 if every supported point is `ok`, else 1; for mutants 0 if every listed one was caught. A drawn one may be too small."""
    bad = BAD if mode != "check_power" else BAD - {"mismatch"} if draws else (BAD - {"mismatch"}) | {"ok"}
    return 1 if any(counts[status] for status in bad) else 0

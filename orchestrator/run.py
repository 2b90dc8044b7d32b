"""One run: plan, resume, compile, schedule, store."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kernels import registry
from kernels.engines.start import LAYERS, EngineStart
from orchestrator import gc_pause
from orchestrator.code_version import own_version
from orchestrator.config.environment import Environment, find
from orchestrator.config.settings import ReplaySettings, RunSettings, Settings
from orchestrator.environments.modules import CompileRequest
from orchestrator.errors import NoWorkers, UserError
from orchestrator.grouped import grouped
from orchestrator.libraries import LibraryVersions
from orchestrator.machines import require_same_versions
from orchestrator.planning.decide import make_plan
from orchestrator.planning.plan import Decision, Plan
from orchestrator.planning.replay import replay_command
from orchestrator.planning.resume import Resume
from orchestrator.point import Point
from orchestrator.pools import ComputePool
from orchestrator.scheduling.archive import load_archive, read_fitting
from orchestrator.scheduling.driver_rows import DriverRows
from orchestrator.scheduling.progress import Progress
from orchestrator.scheduling.ready_groups import ReadyGroups, Uncompiled, modules_in_order
from orchestrator.scheduling.scheduler import Scheduler
from orchestrator.storage.access import DatasetWriter
from orchestrator.storage.row import BAD, Row, version_columns
from orchestrator.worker.messages import Task, WorkerConfig

CLOCKS_DIFFER = timedelta(minutes=10)  # of machines at most
log = logging.getLogger(__name__)


class Run:
    """One run of a sweep into a dataset; `written` counts its rows. Raises UserError for versions that differ unless any may."""

    def __init__(
        self,
        settings: RunSettings | ReplaySettings,
        overrides: Sequence[str],
        store: DatasetWriter,
        pool: ComputePool,
        progress: Progress,
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
        _require_clock(store, settings.written_path)
        self.archs = {device.name: device.arch for device in pool.devices}
        self.written = 0

    def go(self, points: Sequence[Point]) -> Counter[str]:
        """Runs what is planned and not stored; returns all points' statuses. NoWorkers and KeyboardInterrupt leave rows stored."""
        pool = self.pool
        environments = [find(name, self.settings.env) for name in dict.fromkeys(point.env for point in points) if name is not None]
        # Makes what is not there yet, on each machine. Raises UserError in words for one that cannot be had.
        env_versions = pool.make_environments(environments, self.progress.stage)
        rows = DriverRows(self.common, self.command, self.versions, env_versions, self.archs)
        plan = make_plan(points, pool.devices, self.settings, pool.versions, env_versions)
        with gc_pause.paused():
            resume = self._resume(env_versions)
            todo = Plan(resume.left_of(plan.decisions))
        names = ", ".join(slot.name for slot in pool.slots)
        log.info("%d points, %d of them to run, on %s", len(plan.decisions), len(todo.decisions_of("run")), names)
        self.progress.begin(plan, todo, workers=len(pool.slots))
        self._store([rows.of_planned(d, d.kind) for d in todo.decisions if d.kind != "run"])
        try:
            compiled = self._compile_in_environments(todo, environments, env_versions, rows)
            self._compile_and_schedule(compiled, rows)
        except NoWorkers as error:
            raise NoWorkers("; ".join([str(error), *pool.left_out])) from None
        self.store.seal()
        return self._resume(env_versions).counts(plan.decisions)

    def _resume(self, env_versions: Mapping[str, LibraryVersions]) -> Resume:
        return Resume(self.store.table, self.settings, self.common, self.pool.versions, env_versions)

    def _compile_in_environments(
        self, todo: Plan, environments: Sequence[Environment], env_versions: Mapping[str, LibraryVersions], rows: DriverRows
    ) -> CompiledThere:
        """Compiles the modules of points that run in environments. A point whose modules do not compile gets its row."""
        uncompiled: set[Decision] = set()
        seconds: dict[str, float] = {}
        needed = []
        archs = set(self.archs.values())
        for environment in environments:
            there = [decision for decision in todo.decisions_of("run") if decision.point.env == environment.name]
            points = [decision.point for decision in there]
            archived = read_fitting(self.settings.modules, env_versions[environment.name], archs) if points else {}
            wanted = CompileRequest(environment, points, self.settings.adapters, archived)
            found = self.pool.compile_in(wanted, self.progress.stage)
            seconds |= {points[index].point_id: took for index, took in found.seconds.items()}
            for index, words in found.errors.items():
                task = Task(points[index], self.command(points[index]), compile_s={"": found.seconds.get(index, 0.0)})
                self._store([rows.of_uncompiled(Uncompiled(task, there[index].devices, words))])
                uncompiled.add(there[index])
            needed += [environment] if len(points) > len(found.errors) else []
        left = Plan(tuple(decision for decision in todo.decisions if decision not in uncompiled))
        return CompiledThere(left, tuple(needed), seconds)

    def _compile_and_schedule(self, compiled: CompiledThere, rows: DriverRows) -> None:
        """Compiles what is missing and runs each group as soon as its modules are there."""
        settings, todo, wait_seconds = self.settings, compiled.todo, self.settings.cluster.wait_seconds
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
                on_uncompiled=lambda uncompiled: self._store([rows.of_uncompiled(one) for one in uncompiled]),
                wait_seconds=wait_seconds,
                seconds_there=compiled.seconds,
            )
            Scheduler(
                self.pool,
                worker_config(settings, self.common, compiled.environments, imports_of(todo, settings.adapters), todo),
                settings.limits,
                on_rows=self._store,
                on_fault=rows.of_fault,
                wait_seconds=wait_seconds,
                arrivals=ready,
            ).run()
        finally:
            builds.close()

    def _store(self, new: Sequence[Row]) -> None:
        if new:
            self.store.add(new)
            self.written += len(new)
            log.info("%d rows stored, %d in all", len(new), self.written)
            self.progress.rows(new)


def _require_clock(store: DatasetWriter, path: str) -> None:
    """Raises UserError if the clock was set back: the newest row of a point is the one that counts, and new rows would not be."""
    import pyarrow.compute as pc

    newest, now = pc.max(store.table.column("finished_at")).as_py(), datetime.now(UTC)
    if newest is not None and newest > now + CLOCKS_DIFFER:
        raise UserError(
            f"results.path={path!r}: its newest row is of {newest:%Y-%m-%d %H:%M} UTC, and the clock here says "
            f"{now:%Y-%m-%d %H:%M}, so that new rows would count as older ones; set the clock, or type another results.path=..."
        )


@dataclass(frozen=True)
class CompiledThere:
    """What is left of a plan once environments compiled, the `environments` that it needs, and the seconds by point_id."""

    todo: Plan
    environments: tuple[Environment, ...]
    seconds: Mapping[str, float]


def worker_config(
    settings: Settings, common: Row, environments: tuple[Environment, ...], imports: tuple[str, ...], todo: Plan
) -> WorkerConfig:
    """What every worker of a run needs to know. An engine is as large as the points that are left for it need."""
    of_engines = grouped((d.point.shares, d.point) for d in todo.decisions_of("run") if d.point.engine)
    layer, layers = settings.model.layer, settings.timing.step_layers or LAYERS
    starts = {
        key: EngineStart(of[0].backend, tuple(point.problem for point in of), layer, layers)
        for key, of in of_engines.items()
        if layer
    }
    return WorkerConfig(
        settings.timing,
        settings.check.enabled,
        settings.adapters,
        common,
        versions=settings.versions,
        imports=imports,
        max_inputs=settings.check.max_inputs,
        batch_invariance=settings.check.batch_invariance,
        layer=layer,
        engine_starts=starts,
        memory_fraction=settings.limits.memory_fraction,
        environments=environments,
        start_seconds=settings.limits.start_seconds,
        point_seconds=settings.limits.point_seconds,
    )


def imports_of(plan: Plan, plugins: tuple[str, ...]) -> tuple[str, ...]:
    """The kernel libraries of the points that will run, as Python packages."""
    backends = {(d.point.problem.routine, d.point.backend) for d in plan.decisions_of("run")}
    return tuple(sorted({registry.get(*backend, plugins).imports for backend in backends} - {""}))


def exit_code(counts: Counter[str], mode: str, draws: int = 0) -> int:
    """0 if no point has a bad status, else 1.

    In mode=check_power a mismatch is good, because the check caught the mutant, and an `ok` mutant escaped, which is bad.
    It is not bad if mutants are drawn (`draws` of each backend): a drawn fault may be too small to be found. Whether the statement
    of the check holds is asked beside this (`orchestrator/reporting/statement.py`).
    """
    bad = set(BAD)
    if mode == "check_power":
        bad.remove("mismatch")
        if not draws:
            bad.add("ok")
    return int(any(counts[status] for status in bad))

"""A whole run: plan, resume, compile, schedule, store. Reads from top to bottom as a point's way from YAML to row."""

from __future__ import annotations

import os
import secrets
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from kernels import registry
from kernels.build import Built
from kernels.ceilings import Ceilings
from kernels.device import Device
from kernels.modules import Library
from orchestrator import archive, collector, machines
from orchestrator import row as rows
from orchestrator.builds import Builds, Key, Readiness
from orchestrator.datafile import ANY_OF
from orchestrator.errors import UserError
from orchestrator.machines import own_version
from orchestrator.places import Written
from orchestrator.plan import Decision, Plan, make_plan
from orchestrator.pool import NoWorkers, Pool, Slot, Task, WorkerDied
from orchestrator.progress import Progress
from orchestrator.resume import Resume
from orchestrator.row import BAD, Row, Status
from orchestrator.scheduler import Scheduler
from orchestrator.settings import MUTANTS, Cluster, Settings, Versions
from orchestrator.sweep import Point, expand
from orchestrator.worker import Orders

NOT_ON_A_REPLAY = ("mode=", "point=", "rerun=", "modules=", "hydra.")


class ComputePool(Pool, Protocol):
    """Workers, and what a plan must know of them."""

    orders: Orders | None

    @property
    def devices(self) -> list[Device]: ...

    @property
    def versions(self) -> list[dict[str, str | None]]:
        """What the machines run on, none twice."""

    @property
    def left_out(self) -> list[str]:
        """Why machines that joined are not used."""

    def build(self, keys: Sequence[Key], found: Mapping[Key, Library]) -> Builds: ...


def given(settings: Settings, pool: ComputePool, keys: Sequence[Key]) -> dict[Key, Library]:
    """Of these modules, those that the archive of `modules` has compiled already. Raises UserError for one that does not fit."""
    if settings.modules is None:
        return {}
    found: dict[Key, Library] = {}
    for flashinfer_version, cuda in {(of["flashinfer_version"], of["cuda"]) for of in pool.versions}:  # of several, one refuses
        found = archive.read(settings.modules, flashinfer_version, keys, cuda)
    return found


def built_of(builds: Builds, progress: Progress) -> Iterator[Built]:
    """Every module as it ends. Raises NoWorkers where no machine is left to compile."""
    try:
        while builds.left:
            if builds.stranded:
                raise NoWorkers(f"{builds.left} kernel modules are left to compile, and no machine is there that could")
            for built in builds.wait(timeout_s=1.0):
                progress.module(built)
                yield built
    finally:
        builds.close()


def exit_code(counts: Counter[str], mode: str) -> int:
    """0 when every supported point is `ok`, 1 when some point is not; of mutants, 0 when every one was caught."""
    bad = (BAD - {"mismatch"}) | {"ok"} if mode == "check_power" else BAD
    return 1 if any(counts[status] for status in bad) else 0


def connect(cluster: Cluster, versions: Versions = "same") -> AbstractContextManager[ComputePool]:
    """The pool of a cluster; Ray is imported only where it is used."""
    if cluster.kind == "inline":
        from orchestrator import inline_pool

        return inline_pool.connect(cluster, versions)
    _show_token()
    from orchestrator import ray_pool

    return ray_pool.connect(cluster, versions)


def agreed(found: Sequence[dict[str, str | None]]) -> dict[str, str | None]:
    """The versions that rows are of. Raises UserError where machines differ, or have another FlashInfer than the plan's rules
    were read with: their rows would not compare."""
    rules = {"flashinfer_version": machines.versions()["flashinfer_version"]}
    for planned, other in ((rules, found[0]), *((found[0], other) for other in found[1:])):
        if words := machines.differences(planned, other):
            raise UserError(
                f"cluster: a machine has {words}; allowed: the same everywhere; "
                f"to record them in each row instead, type versions=any"
            )
    return found[0]


def _show_token() -> None:
    """Makes Ray show this user's token to a cluster that is named by its address, which it does not by itself.

    Ray asks for a token by default where it starts a cluster (2.60), and reads the mode once, when it is imported.
    """
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", Path.home() / ".ray" / "auth_token"))
    if "RAY_AUTH_TOKEN" in os.environ or token.is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def replay_command(overrides: Sequence[str], mode: str) -> Callable[[Point], str]:
    """The command that runs exactly one point again, from what was typed for the sweep; a twin is measured as its like."""
    kept = [o for o in overrides if not o.startswith(NOT_ON_A_REPLAY)]
    again = "check_power" if mode == "check_power" else "replay"
    typed = shlex.join(["python", "-m", "orchestrator", *kept, f"mode={again}"])
    return lambda point: f"{typed} point={replace(point, twin=0).point_id}"


def points_of(settings: Settings) -> list[Point]:
    """The sweep's points as its mode wants them, or the one that `point` names. Raises UserError where there is none."""
    points = expand(settings)
    if settings.mode == "check_power":
        points = _mutants_of(points)
    if settings.mode == "noise":
        points = [twin for point in points for twin in (point, replace(point, twin=1))]
    if settings.point is None:
        return points
    named = [point for point in points if point.point_id == settings.point]
    if not named:
        raise UserError(
            f"point={settings.point!r}: none of the {len(points)} points of sweep {settings.sweep.name} has this point_id; "
            f"the `command` column of its row holds the whole command"
        )
    return named


def _mutants_of(points: Sequence[Point]) -> list[Point]:
    """Every wrong kernel on every problem of a sweep."""
    wrong = [key for key in registry.adapters((MUTANTS,)) if key not in registry.adapters()]
    problems = dict.fromkeys((point.problem, point.how) for point in points)
    return [Point(problem, name, how) for problem, how in problems for routine, name in wrong if routine == problem.routine]


def calibrate(pool: ComputePool, settings: Settings) -> list[tuple[Slot, Ceilings | None]]:
    """Measures the ceilings of every device anew; None where there is nothing to measure. Raises NoWorkers if one cannot start."""
    pool.orders = Orders(settings.timing, settings.check.enabled, settings.adapters, {}, recalibrate=True)
    started = [(slot, *pool.start(slot)) for slot in pool.slots]
    try:
        return [(slot, ready.result().ceilings) for slot, _, ready in started]
    except WorkerDied as death:
        raise NoWorkers(str(death)) from None
    finally:
        for _, worker, _ in started:
            worker.kill()


class Run:
    """One run of a sweep into a store on a pool."""

    def __init__(self, settings: Settings, overrides: Sequence[str], store: Written, pool: ComputePool, progress: Progress) -> None:
        self.settings, self.store, self.pool, self.progress = settings, store, pool, progress
        self.command = replay_command(overrides, settings.mode)
        versions = pool.versions[0] if settings.versions == "any" else agreed(pool.versions)
        self.common: Row = {
            "run_id": f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}",
            "sweep": settings.sweep.name,
            "cluster": settings.cluster.address if settings.cluster.name == "ray" else settings.cluster.name,
            **versions,
            "orchestrator_version": own_version(settings.adapters),  # the code comes from here, whatever else the machines have
        }
        pool.orders = Orders(settings.timing, settings.check.enabled, settings.adapters, self.common, versions=settings.versions)
        self.compile_s: dict[tuple[str, str], float] = {}  # by point_id and architecture
        self.waiting_for: dict[Key, list[Point]] = {}  # by module
        self.forced: dict[tuple[str, str], str] = {}  # by point_id and device, the rule of points that run although it forbids them
        self.written = 0

    def go(self, points: Sequence[Point]) -> Counter[str]:
        """Runs what the plan lets run and the store does not hold yet; the current statuses of all points.

        Raises NoWorkers, and KeyboardInterrupt, with every finished row stored.
        """
        plan = make_plan(points, self.pool.devices, self.settings)
        with collector.paused():
            resume = self._resume()
            todo = Plan(tuple(d for d in plan.decisions if not resume.holds(d)))
        self.forced = {
            (d.point.point_id, name): d.reason for d in todo.of("run") if d.reason for name in {*d.devices, ANY_OF.join(d.devices)}
        }
        self.progress.begin(plan, todo, workers=len(self.pool.slots))
        self._add([self._undone(d) for d in todo.decisions if d.verdict != "run"])
        self._work(todo)
        self.store.seal()
        return self._resume().counts(plan.decisions)

    def _resume(self) -> Resume:
        return Resume(self.store.table, self.settings, self.common, self.pool.versions)

    def _work(self, todo: Plan) -> None:
        """Compiles what is missing and runs each group as soon as its modules are there."""
        limits, wait_seconds = self.settings.limits, self.settings.cluster.wait_seconds
        archs = {device.name: device.arch for device in self.pool.devices}
        ready = Readiness(todo, archs, self._built, self._lost, wait_seconds)
        self.waiting_for = todo.modules
        found = given(self.settings, self.pool, ready.modules)
        self.progress.begin_modules(len(ready.modules), len(found))
        ready.builds = builds = self.pool.build(ready.modules, found)
        scheduler = Scheduler(self.pool, limits, self._add, self._fault, wait_seconds)
        try:
            scheduler.run(todo.groups, self.command, ready)
        finally:
            builds.close()

    def _built(self, built: Built) -> None:
        for point in self.waiting_for[built.arch, built.module]:
            key = point.point_id, built.arch
            self.compile_s[key] = self.compile_s.get(key, 0.0) + built.seconds
        self.progress.module(built)

    def _lost(self, lost: Mapping[Decision, str]) -> None:
        self._add([self._planned_row(decision, "failed", reason) for decision, reason in lost.items()])

    def _undone(self, decision: Decision) -> Row:
        status: Status = "unsupported" if decision.verdict == "unsupported" else "skipped"
        return self._planned_row(decision, status, decision.reason)

    def _planned_row(self, decision: Decision, status: Status, reason: str) -> Row:
        point = decision.point
        where = {"device_name": ANY_OF.join(decision.devices), "command": self.command(point), "attempt": 0}
        return rows.finish({**rows.describe(point), **self.common, **where}, status, reason)

    def _fault(self, task: Task, slot: Slot, status: Status, reason: str) -> Row:
        """The row of a point whose worker cannot write it."""
        where = {"device_name": slot.device_name, "node_id": slot.node_id, "command": task.command, "attempt": task.attempt}
        return rows.finish({**rows.describe(task.point), **self.common, **slot.versions, **where}, status, reason)

    def _compile_seconds(self, row: Row) -> float | None:
        """What the modules of a row's point took for the devices that the row names."""
        archs = {device.arch for device in self.pool.devices if device.name in row["device_name"].split(ANY_OF)}
        found = [self.compile_s[key] for arch in archs if (key := (row["point_id"], arch)) in self.compile_s]
        return sum(found) if found else row["compile_s"]

    def _add(self, new: Sequence[Row]) -> None:
        if not new:
            return
        for row in new:
            row["compile_s"] = self._compile_seconds(row)
            if rule := self.forced.get((row["point_id"], row["device_name"])):
                row.update(rows.of_forced(row, rule))
        self.store.add(new)
        self.written += len(new)
        self.progress.rows(new)

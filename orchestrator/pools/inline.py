"""A worker in this very process, without Ray: for debuggers and tests. It cannot be killed, and a crash ends the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field, replace
from functools import cache

from kernels.compile.module_cache import Library
from kernels.contract.runner import said
from kernels.device import Device
from orchestrator import machines
from orchestrator.config.environment import Environment
from orchestrator.environments.make import Say, make
from orchestrator.environments.modules import Compiled, CompileRequest, compile_there
from orchestrator.errors import WorkerDied
from orchestrator.libraries import LibraryVersions
from orchestrator.planning.plan import ModuleKey
from orchestrator.scheduling.builds import ThreadedBuilds
from orchestrator.scheduling.interfaces import PendingResult, Slot
from orchestrator.storage.row import Row
from orchestrator.worker.messages import Task, WorkerConfig, WorkResult
from orchestrator.worker.point_runner import PointRunner

RAN_BEFORE = "a plugin ran before in this process"


@dataclass(frozen=True)
class _Deferred:
    """A work item that runs when its result is asked for."""

    worker: _InlineWorker
    work: Callable[[PointRunner], WorkResult]

    def result(self) -> WorkResult:
        runner = self.worker.runner()
        try:
            with chdir(os.curdir):  # a backend may change the working directory, and results.path may be relative to it
                result = self.work(runner)
            return replace(result, rows=tuple(map(self.worker.with_plugins, result.rows)))
        except (KeyboardInterrupt, Exception):
            raise
        except BaseException as error:  # such as sys.exit in a backend: elsewhere the process would end
            raise WorkerDied(said(error)) from None


@dataclass(frozen=True)
class _InlineWorker:
    runner: Callable[[], PointRunner]  # creates it at the first item
    created: list[PointRunner] = field(default_factory=list)
    plugins: set[str] = field(default_factory=set)  # the hashes of those that this process has run

    def prepare(self, task: Task) -> PendingResult:
        def prepared(runner: PointRunner) -> WorkResult:
            self.plugins.add(task.point.plugin_code)
            return runner.prepare(task)

        return _Deferred(self, prepared)

    def with_plugins(self, row: Row) -> Row:
        """The row, which says if it is wrong and another's plugin, which may have patched a library, ran in this process before."""
        others = [code for code in self.plugins if code and code not in str(row.get("orchestrator_version"))]
        wrong = row["status"] in ("failed", "mismatch") and others
        return {**row, "reason": f"{row['reason']} ({RAN_BEFORE})"} if wrong else row

    def measure(self) -> PendingResult:
        return _Deferred(self, PointRunner.measure)

    def kill(self) -> None:
        """Ends the processes of its environments. Itself it is none; the next worker starts afresh."""
        for runner in self.created:
            runner.close()


class InlinePool:
    """The first device of this machine."""

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self.machines = [machines.describe(names=names)]
        self._device = self.machines[0].devices[0]
        self.slots = [Slot("inline", self._device.name)]
        self.left_out: list[str] = []
        self._plugins: set[str] = set()

    @property
    def versions(self) -> list[dict[str, str | None]]:
        return [self.machines[0].versions]

    @property
    def devices(self) -> list[Device]:
        return [self._device]

    def reaches(self, slot: Slot) -> bool:
        return True

    def start(self, slot: Slot, config: WorkerConfig) -> tuple[_InlineWorker, PendingResult]:
        created: list[PointRunner] = []

        def create() -> PointRunner:
            created.append(PointRunner.create(config, self._device))
            return created[0]

        worker = _InlineWorker(cache(create), created, self._plugins)
        return worker, _Deferred(worker, PointRunner.ready)

    def wait(self, pending: Sequence[PendingResult], timeout_s: float) -> list[PendingResult]:
        return list(pending[:1])

    def make_environments(self, wanted: Sequence[Environment], say: Say) -> dict[str, LibraryVersions]:
        return {one.name: make(one, say).versions(self.versions[0]) for one in wanted}

    def compile_in(self, wanted: CompileRequest, say: Say) -> Compiled:
        return compile_there(make(wanted.environment), wanted, wanted.device or self._device, say)

    def build(self, keys: Sequence[ModuleKey], found: Mapping[ModuleKey, Library]) -> ThreadedBuilds:
        return ThreadedBuilds(keys, found, self.machines[0].cores, {self._device.arch})

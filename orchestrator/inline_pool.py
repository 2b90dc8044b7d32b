"""A worker in this very process, without Ray: for debuggers and tests. It cannot be killed, and a crash is a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kernels.device import Device
from kernels.modules import Library
from orchestrator import machines
from orchestrator.builds import Key, ThreadedBuilds
from orchestrator.pool import Pending, Slot, Task
from orchestrator.settings import Cluster, Versions
from orchestrator.worker import Orders, Outcome, PointRunner


@dataclass(frozen=True)
class _Deferred:
    """A step that runs when its result is asked for."""

    result: Callable[[], Outcome]


@dataclass(frozen=True)
class _InlineWorker:
    runner: PointRunner

    def submit(self, task: Task) -> Pending:
        return _Deferred(lambda: self.runner.run(task.point, task.command, task.attempt))

    def measure(self) -> Pending:
        return _Deferred(self.runner.measure)

    def kill(self) -> None:
        """There is no process to end; the next worker starts afresh."""


class InlinePool:
    """The first device of this machine."""

    def __init__(self) -> None:
        self.machines = [machines.describe()]
        self._device = self.machines[0].devices[0]
        self.slots = [Slot("inline", self._device.name)]
        self.left_out: list[str] = []
        self.orders: Orders | None = None

    @property
    def versions(self) -> list[dict[str, str | None]]:
        return [self.machines[0].versions]

    @property
    def devices(self) -> list[Device]:
        return [self._device]

    def reaches(self, slot: Slot) -> bool:
        return True

    def start(self, slot: Slot) -> tuple[_InlineWorker, Pending]:
        assert self.orders is not None, "a run sets its orders before it starts workers"
        runner = PointRunner(self.orders, self._device)
        return _InlineWorker(runner), _Deferred(runner.ready)

    def wait(self, pending: Sequence[Pending], timeout_s: float) -> list[Pending]:
        return list(pending[:1])

    def build(self, keys: Sequence[Key], found: Mapping[Key, Library]) -> ThreadedBuilds:
        return ThreadedBuilds(keys, found, self.machines[0].cores, {self._device.arch})


@contextmanager
def connect(cluster: Cluster, versions: Versions = "same") -> Iterator[InlinePool]:
    yield InlinePool()

"""What the scheduler needs from workers and from the pool that starts them. Knows nothing of Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from orchestrator.worker.messages import Task, WorkerConfig, WorkResult

WorkKind = Literal["start", "prepare", "measure"]


@dataclass(frozen=True)
class Batch:
    """Tasks that one worker on a device of one of `devices` prepares one by one and then measures together."""

    tasks: tuple[Task, ...]
    devices: tuple[str, ...]


def described(batch: Batch) -> str:
    """A batch in a line: its backends and the axes of their problem."""
    problem = batch.tasks[0].point.problem
    backends = ", ".join(task.point.backend for task in batch.tasks)
    return f"batch {problem.batch_size}, s_qo {problem.s_qo}, s_kv {problem.s_kv}: {backends}"


@dataclass(frozen=True)
class WorkItem:
    """One thing that a worker does: get ready, prepare and check a task's point, or measure what it has prepared."""

    kind: WorkKind
    task: Task | None = None  # of kind "prepare" alone


START, MEASURE = WorkItem("start"), WorkItem("measure")


class PendingResult(Protocol):
    """The result of an item that is not finished yet."""

    def result(self) -> WorkResult:
        """Waits for the result. Raises WorkerDied if none will come."""


class Worker(Protocol):
    """One exclusive device and the process that uses it. It takes its items in the order in which they are given."""

    def prepare(self, task: Task) -> PendingResult:
        """Prepares and checks a point. The result has its row, or none if it passed and waits for `measure`."""

    def measure(self) -> PendingResult:
        """Measures the prepared points, interleaved. The result has a row for each."""

    def kill(self) -> None:
        """Ends the process at once and for good."""


@dataclass(frozen=True)
class Slot:
    """A place for one worker: a device of a machine, and the library versions there."""

    name: str
    device_name: str
    node_id: str = ""
    versions: Mapping[str, str | None] = field(default_factory=dict, compare=False)


class Pool(Protocol):
    """Where workers come from."""

    @property
    def slots(self) -> Sequence[Slot]:
        """Those of the machines that are there now."""

    def reaches(self, slot: Slot) -> bool:
        """Whether the slot's machine answers."""

    def start(self, slot: Slot, config: WorkerConfig) -> tuple[Worker, PendingResult]:
        """A new worker, and the result of its first item, which comes when it is ready."""

    def wait(self, pending: Sequence[PendingResult], timeout_s: float) -> list[PendingResult]:
        """Those that are finished; none if the time is over first."""

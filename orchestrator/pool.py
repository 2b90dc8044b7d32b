"""What a scheduler asks of workers and of where they come from. Knows nothing of Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from orchestrator.sweep import Point
from orchestrator.worker import Outcome

Blame = Literal["point", "memory", "machine"]


class WorkerDied(Exception):
    """The worker's process is gone; the message says what is known of its end.

    `blame` says whose doing it was: that of the point it was at, of a host without memory, or of its machine, which is gone.
    """

    def __init__(self, words: str, blame: Blame = "point") -> None:
        super().__init__(words)
        self.blame = blame


@dataclass(frozen=True)
class Task:
    """One attempt at one point."""

    point: Point
    command: str
    attempt: int = 1
    alone: bool = False  # it has the worker to itself, since it found no memory or a worker died beside it
    suspect: int = 0  # workers that died while this point and others were being measured
    lost: int = 0  # machines that were lost while it ran there


Step = Task | Literal["start", "measure"]


class Pending(Protocol):
    """An answer that is on its way."""

    def result(self) -> Outcome:
        """The answer. Raises WorkerDied if none will come."""


class Worker(Protocol):
    """One exclusive device and the process that holds it."""

    def submit(self, task: Task) -> Pending:
        """Prepares and checks a point. The answer has its row, or none where it passed and is kept for `measure`."""

    def measure(self) -> Pending:
        """Measures what is kept, in turns. The answer has a row for each."""

    def kill(self) -> None:
        """Ends the process at once and for good."""


@dataclass(frozen=True)
class Slot:
    """A place for one worker: a device of a machine, and the versions of the libraries there."""

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

    def start(self, slot: Slot) -> tuple[Worker, Pending]:
        """A new worker, and the answer that comes when it is ready."""

    def wait(self, pending: Sequence[Pending], timeout_s: float) -> list[Pending]:
        """Those that have an answer, or none once the time is over."""


class NoWorkers(Exception):
    """No worker is left and none can be started."""

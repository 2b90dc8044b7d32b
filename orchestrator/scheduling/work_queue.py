"""The batches that wait for a worker, in order."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from orchestrator.scheduling.interfaces import Batch
from orchestrator.worker.messages import Task


class WorkQueue:
    """First in, first out, except for tasks during which a machine was lost: they come after all others."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def num_tasks(self) -> int:
        return sum(len(batch.tasks) for batch in self._batches)

    @property
    def device_counts(self) -> Counter[str]:
        """How many batches each kind of device may run."""
        return Counter(device for batch in self._batches for device in batch.devices)

    def append(self, batches: Iterable[Batch]) -> None:
        self._batches.extend(batches)

    def put_first(self, tasks: Sequence[Task], devices: tuple[str, ...]) -> None:
        """At the front, together."""
        if tasks:
            self._batches.appendleft(Batch(tuple(tasks), devices))

    def put_each_first(self, tasks: Sequence[Task], devices: tuple[str, ...]) -> None:
        """At the front, each in a batch of its own, in order."""
        self._batches.extendleft(Batch((task,), devices) for task in reversed(tasks))

    def put_last(self, task: Task, devices: tuple[str, ...]) -> None:
        self._batches.append(Batch((task,), devices))

    def take(self, device_name: str, others_at_work: bool) -> Batch | None:
        """The next batch for a device; None if there is none for it now.

        A task under which a machine was lost waits while other work could be lost with it (`others_at_work`).
        """
        index = self._index_for(device_name, others_at_work)
        if index is None:
            return None
        batch = self._batches[index]
        del self._batches[index]
        return batch

    def _index_for(self, device_name: str, others_at_work: bool) -> int | None:
        risky: int | None = None
        for index, batch in enumerate(self._batches):
            if device_name in batch.devices:
                if not batch.tasks[0].machines_lost:
                    return index
                risky = index if risky is None else risky
        return None if others_at_work else risky

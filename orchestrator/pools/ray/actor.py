"""A worker as a Ray actor in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError

from kernels.compile.module_cache import Library
from kernels.compile.records import found_again
from kernels.device import Device
from orchestrator.errors import WorkerDied
from orchestrator.machines import Machine
from orchestrator.planning.plan import ModuleKey
from orchestrator.pools.ray.nodes import Nodes, describe, identity, pinned_to, words
from orchestrator.process import end_with_parent
from orchestrator.scheduling.interfaces import PendingResult, Slot
from orchestrator.worker.messages import Task, WorkerConfig, WorkResult
from orchestrator.worker.preload import LoadedFiles, preload


@ray.remote
class WorkerActor:
    """A PointRunner in a process of its own, which may have loaded its libraries before it is known what it will run."""

    def __init__(self, after: None = None) -> None:
        """`after` is there once the device is free: Ray creates no actor before its arguments."""
        end_with_parent()

    def process(self) -> tuple[int, str] | None:
        """Answers before anything is loaded, so that a process which hangs while it loads can be killed too."""
        return identity(os.getpid())

    def load(self, packages: tuple[str, ...] = ()) -> None:
        """Imports what any point needs, and these kernel libraries. What fails here fails again in `ready`, and is told there."""
        preload(packages)
        self.loaded = LoadedFiles.now()

    def is_unchanged(self) -> bool:
        """Whether a process that starts now would load the same."""
        return self.loaded.are_unchanged()

    def describe(self, node_id: str, names: tuple[str, ...]) -> tuple[Machine, int]:
        """What a task on this machine would say of it."""
        return describe(node_id, names)

    def found_again(self, keys: Sequence[ModuleKey]) -> Mapping[ModuleKey, Library]:
        return found_again(keys)

    def ready(self, config: WorkerConfig, device: Device, node_id: str) -> WorkResult:
        from orchestrator.worker.point_runner import PointRunner  # imports torch, for which neither the driver nor Ray waits

        self.runner = PointRunner.create(config, device, node_id)
        return self.runner.ready()

    def prepare(self, task: Task) -> WorkResult:
        return self.runner.prepare(task)

    def measure(self) -> WorkResult:
        return self.runner.measure()


def new_worker(device_kind: str, node_id: str, after: Any = None) -> Any:
    """An actor on a machine that gets one device of a kind for itself, as soon as one is free there."""
    share = {"num_gpus": 1} if device_kind == "cuda" else {"num_cpus": 1}
    # max_restarts: Ray would revive a dead actor under the tasks still queued for it, and lose those too.
    options = WorkerActor.options(  # type: ignore[attr-defined]
        **share, max_restarts=0, max_task_retries=0, scheduling_strategy=pinned_to(node_id)
    )
    return options.remote(after)


@dataclass(frozen=True)
class RayPending:
    """The result of a work item as Ray's reference; a worker's death is traced to its cause."""

    ref: Any
    slot: Slot
    nodes: Nodes

    def result(self) -> WorkResult:
        try:
            result: WorkResult = ray.get(self.ref)
        except RayError as error:  # also for an exception in `ready`; `prepare` and `measure` never raise
            raise death_of(error, self.slot.node_id, self.nodes) from None
        return result


@dataclass(frozen=True)
class RayWorker:
    """An actor, and how its answers are read."""

    actor: Any
    process: Any  # Ray's reference to its process id and start time
    answer: Callable[[Any], RayPending]

    def prepare(self, task: Task) -> PendingResult:
        return self.answer(self.actor.prepare.remote(task))

    def measure(self) -> PendingResult:
        return self.answer(self.actor.measure.remote())

    def kill(self) -> None:
        ray.kill(self.actor, no_restart=True)


def death_of(error: RayError, node_id: str, nodes: Nodes) -> WorkerDied:
    """The death of a worker on the machine `node_id`, with its cause, from the error that Ray raised for its result."""
    detail = _exit_detail(error) if isinstance(error, RayActorError) else words(error)
    if isinstance(error, RayTaskError):
        return WorkerDied(detail)
    if not nodes.reaches(node_id):
        return WorkerDied(f"its machine is gone or cut off: {detail}", "machine")
    starved = isinstance(error, OutOfMemoryError) or nodes.killed_for_memory(node_id)
    return WorkerDied(detail, "memory" if starved else "point")


def _exit_detail(error: RayActorError) -> str:
    """Ray's message on how a process ended, without the text around it."""
    text = " ".join(str(error).split())
    for mark in ("Worker exit detail: ", "The actor is dead because "):
        if mark in text:
            return text.partition(mark)[2][:600]
    return text[:600]

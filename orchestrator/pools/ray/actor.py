"""A worker as a Ray actor in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import ray
from ray.exceptions import RayError

from kernels.device import Device
from orchestrator.pools.ray.nodes import Nodes, end_with_parent, identity
from orchestrator.pools.ray.worker_death import death_of
from orchestrator.scheduling.interfaces import Pending, Slot
from orchestrator.worker.messages import StepResult, Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner


@ray.remote
class WorkerActor:
    """A PointRunner in a process of its own."""

    def __init__(self, config: WorkerConfig, device: Device, node_id: str, after: None) -> None:
        """`after` is there once the device is free: Ray creates no actor before its arguments."""
        end_with_parent()
        self.runner = cache(partial(PointRunner.create, config, device, node_id))  # `ready` creates it, not this constructor

    def process(self) -> tuple[int, str] | None:
        """Answers before anything is loaded, so that a process which hangs while it loads can be killed too."""
        return identity(os.getpid())

    def ready(self) -> StepResult:
        return self.runner().ready()

    def prepare(self, task: Task) -> StepResult:
        return self.runner().prepare(task)

    def measure(self) -> StepResult:
        return self.runner().measure()


@dataclass(frozen=True)
class RayPending:
    """The result of a step as Ray's reference; a worker's death is traced to its cause."""

    ref: Any
    slot: Slot
    nodes: Nodes

    def result(self) -> StepResult:
        try:
            result: StepResult = ray.get(self.ref)
        except RayError as error:  # also for an exception in `ready`; `prepare` and `measure` never raise
            raise death_of(error, self.slot.node_id, self.nodes) from None
        return result


@dataclass(frozen=True)
class RayWorker:
    """An actor, and how its answers are read."""

    actor: Any
    process: Any  # Ray's reference to its process id and start time
    answer: Callable[[Any], RayPending]

    def prepare(self, task: Task) -> Pending:
        return self.answer(self.actor.prepare.remote(task))

    def measure(self) -> Pending:
        return self.answer(self.actor.measure.remote())

    def kill(self) -> None:
        ray.kill(self.actor, no_restart=True)

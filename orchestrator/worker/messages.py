"""The messages to and from a worker. Plain data, so that they can be sent to another process."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from kernels.engines.start import EngineStart
from kernels.step.shapes import LayerShape
from kernels.timing.ceilings import Ceilings
from kernels.timing.config import Timing
from orchestrator.config.environment import Environment
from orchestrator.config.parts import VersionRule
from orchestrator.point import Point
from orchestrator.storage.row import Row


@dataclass(frozen=True)
class WorkerConfig:
    """What every worker of a run needs to know: how to measure, and the columns that all rows of the run share.

    `common` holds run_id, sweep, cluster and the library versions of the plan.
    With `recalibrate` the worker measures its device's ceilings again.
    `imports` are the kernel libraries of the points, as Python packages.
    `max_inputs` is how many inputs a point may be checked on. `batch_invariance`: whether requests also run in smaller batches.
    `layer` is the model's, for timing.context=step, and `memory_fraction` the part of the device's memory that a point may use.
    `engine_starts` are those of its engine, by `Point.shares`, for timing.context=engine.
    `environments` are those of the points beside the worker's own. A process in one has `start_seconds` to start, and
    `point_seconds` for what a point asks of it.
    """

    timing: Timing
    check: bool
    adapters: tuple[str, ...]
    common: Row
    recalibrate: bool = False
    versions: VersionRule = "same"
    imports: tuple[str, ...] = ()
    max_inputs: int = 1
    batch_invariance: bool = False
    layer: LayerShape | None = None
    memory_fraction: float = 0.9
    engine_starts: Mapping[Hashable, EngineStart] = field(default_factory=dict)
    environments: tuple[Environment, ...] = ()
    start_seconds: float = 180.0
    point_seconds: float = 30.0


@dataclass(frozen=True)
class Task:
    """One attempt at one point.

    `compile_s` is the wall time that the point's kernel modules took, in seconds by compiler architecture.
    `forced_rule` is the support rule that forbids the point, if it runs all the same (`check.force_unsupported`).
    `not_passed` are the features of its problem that the backend never hands to its kernel.
    An `exclusive` task has the worker to itself, because it ran out of memory or a worker died beside other tasks.
    `shared_deaths` counts workers that died while this point and others were being measured.
    `machines_lost` counts machines that were lost while this point ran there.
    """

    point: Point
    command: str
    attempt: int = 1
    compile_s: Mapping[str, float] = field(default_factory=dict)
    forced_rule: str = ""
    not_passed: tuple[str, ...] = ()
    exclusive: bool = False
    shared_deaths: int = 0
    machines_lost: int = 0


@dataclass(frozen=True)
class WorkResult:
    """The result of one work item: the rows that are finished, if any.

    A task without a row is prepared and waits for `measure`, was refused by a worker that is not healthy,
    or needs the device to itself (`exclusive`). A worker that is not `healthy` must be replaced.
    `ceilings` comes with the start item alone.
    """

    rows: tuple[Row, ...] = ()
    healthy: bool = True
    exclusive: bool = False
    ceilings: Ceilings | None = None

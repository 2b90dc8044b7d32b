"""The points of a command line, each ready to be prepared as a worker prepares it, in this process and on its CUDA device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.adapter import Adapter, Runner
    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.step.shapes import LayerShape
    from kernels.timing.config import Timing
    from kernels.timing.pacing import Pacer
    from orchestrator.config.settings import Settings
    from orchestrator.point import Point
    from orchestrator.worker.shared_step import SharedStep

MEMORY_FRACTION = 0.9  # of the device's memory, for a step


@dataclass(frozen=True)
class Ready:
    """What prepares the kernel of a point, as long as the points of its problem are asked for."""

    adapter: Adapter
    device: Device
    drawn: list[Inputs]  # emptied once the next problem comes, so that whoever keeps this keeps no inputs

    def __call__(self) -> Runner:
        return self.adapter.prepare(self.drawn[0], self.device)


def settings_of(overrides: list[str]) -> Settings:
    """The settings of a command line."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    from orchestrator.config.settings import load

    with initialize_config_module("conf", version_base="1.3"):
        return load(OmegaConf.to_container(compose("config", overrides=overrides), resolve=True))  # type: ignore[arg-type]


def points_of(
    settings: Settings, device: Device, done: Collection[str] = (), rank: Callable[[Point], int | None] = lambda _: 0
) -> list[Point]:
    """The points of `where` that the device supports and whose `point_id` is not in `done`.

    The lowest `rank` comes first, and points that have none are left out. Raises UserError if no point has the values of `where`.
    """
    from orchestrator.planning.choose import chosen
    from orchestrator.planning.decide import make_plan
    from orchestrator.planning.expand import expand

    plan = make_plan(chosen(expand(settings), settings), [device], settings)
    left = [decision.point for decision in plan.decisions_of("run") if decision.point.point_id not in done]
    ranked = [(number, repr(point.problem), point) for point in left if (number := rank(point)) is not None]
    return [point for *_, point in sorted(ranked, key=lambda one: one[:2])]


def points(
    overrides: list[str], done: Collection[str] = (), rank: Callable[[Point], int | None] = lambda _: 0
) -> Iterator[tuple[Timing, Point, Ready]]:
    """Every point of `points_of`, with what prepares its kernel. Points of one problem and rank share its inputs."""
    import torch

    from kernels import registry
    from kernels.inputs import generate
    from orchestrator.machines import describe

    torch.set_grad_enabled(False)
    settings = settings_of(overrides)
    device = describe().devices[0]
    todo = points_of(settings, device, done, rank)
    for problem, group in itertools.groupby(todo, key=lambda p: p.problem):
        drawn = [generate.draw(problem, "cuda")]
        for point in group:
            yield settings.timing, point, Ready(registry.get(problem.routine, point.backend), device, drawn)
        drawn.clear()
        torch.cuda.empty_cache()


def shared_step(timing: Timing, layer: LayerShape | None, ready: Ready) -> SharedStep:
    """The layers of a point's step, and the step with the stand-in. Ends the program if the command line asks for no step."""
    from orchestrator.worker.shared_step import make_step

    shared = make_step(ready.drawn[0], timing, layer, ready.device, MEMORY_FRACTION)
    if shared is None:
        raise SystemExit("type timing.context=step, and a model that has a layer")
    return shared


@cache
def pacer() -> Pacer:
    """The pacer of this process's device. Raises pynvml.NVMLError if NVML does not know it."""
    import torch

    from kernels.timing.nvml import NvmlMonitor
    from kernels.timing.pacing import Pacer

    return Pacer(NvmlMonitor(f"GPU-{torch.cuda.get_device_properties(0).uuid}"))

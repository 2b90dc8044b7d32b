"""The points of a command line, each ready to be prepared as a worker prepares it, in this process and on its CUDA device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.adapter import Runner
    from kernels.timing.config import Timing
    from kernels.timing.pacing import Pacer
    from orchestrator.point import Point


def points(overrides: list[str], done: Collection[str] = ()) -> Iterator[tuple[Timing, Point, Callable[[], Runner]]]:
    """Every supported point whose `point_id` is not in `done`, with what prepares its kernel; a problem's inputs are drawn once."""
    import torch
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    from kernels import registry
    from kernels.inputs import generate
    from orchestrator.config.settings import load
    from orchestrator.machines import describe
    from orchestrator.planning.decide import make_plan
    from orchestrator.planning.expand import expand

    torch.set_grad_enabled(False)
    with initialize_config_module("conf", version_base="1.3"):
        settings = load(OmegaConf.to_container(compose("config", overrides=overrides), resolve=True))  # type: ignore[arg-type]
    device = describe().devices[0]
    plan = make_plan(expand(settings), [device], settings)
    todo = [decision.point for decision in plan.decisions_of("run") if decision.point.point_id not in done]
    todo.sort(key=lambda p: repr(p.problem))  # points of one problem share its inputs
    for problem, group in itertools.groupby(todo, key=lambda p: p.problem):
        drawn = [generate.draw(problem, "cuda")]
        for point in group:
            adapter = registry.get(problem.routine, point.backend)
            yield settings.timing, point, lambda adapter=adapter, drawn=drawn: adapter.prepare(drawn[0], device)  # type: ignore[misc]
        drawn.clear()  # whoever keeps the last of these functions keeps no inputs
        torch.cuda.empty_cache()


@cache
def pacer() -> Pacer:
    """The pacer of this process's device. Raises pynvml.NVMLError if NVML does not know it."""
    import torch

    from kernels.timing.nvml import NvmlMonitor
    from kernels.timing.pacing import Pacer

    return Pacer(NvmlMonitor(f"GPU-{torch.cuda.get_device_properties(0).uuid}"))

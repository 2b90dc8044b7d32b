"""The timer of a step: replays of the step and of the same step with the stand-in, in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernels.timing.caches import reset_persisting_l2
from kernels.timing.nvml import DeviceMonitor
from kernels.timing.sm_clock import clock_of_device
from kernels.timing.timers import Block, Timer

if TYPE_CHECKING:
    from kernels.adapter import Runner


@dataclass(frozen=True)
class PairedBlock(Block):
    """Samples of a step, and for each one the sample of the step with the stand-in that was taken just before, in microseconds."""

    stand_in_us: list[float] = field(default_factory=list)


class StepTimer(Timer):
    """A sample is one step. Before each, and in the same block, one step with the stand-in: A B A B.

    Nothing is flushed. A step finds in the caches what the step before left there, as in an engine. Both end with the same MLP of
    the same last layer, so both find the same.
    """

    l2 = icache = "as the step leaves them"
    host_us = math.nan

    def __init__(self, runner: Runner, step: Callable[[], None], stand_in: Callable[[], None], layers: int) -> None:
        super().__init__(runner)
        self.step, self.stand_in, self.layers = step, stand_in, layers
        self.cuda_graph = runner.out.is_cuda
        self.name = "cuda_graph_events" if self.cuda_graph else "perf_counter"

    def replay(self) -> None:
        import torch

        self.step()
        if self.cuda_graph:
            torch.cuda.synchronize()

    def block(self, count: int, monitor: DeviceMonitor) -> PairedBlock:
        return self._of_events(count, monitor) if self.cuda_graph else self._of_wall_clock(count, monitor)

    def _of_wall_clock(self, count: int, monitor: DeviceMonitor) -> PairedBlock:
        stand_in, step = [], []
        for _ in range(count):
            begun = time.perf_counter_ns()
            self.stand_in()
            between = time.perf_counter_ns()
            self.step()
            stand_in.append((between - begun) / 1e3)
            step.append((time.perf_counter_ns() - between) / 1e3)
        return PairedBlock(step, telemetry=monitor.read(), stand_in_us=stand_in)

    def _of_events(self, count: int, monitor: DeviceMonitor) -> PairedBlock:
        """The first step is no sample: it ends the rest, and the CPU issues all others while the GPU is at work on it."""
        import torch

        def event() -> torch.cuda.Event:
            return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

        triples = [(event(), event(), event()) for _ in range(count)]
        reset_persisting_l2()
        self.step()
        clock = clock_of_device()
        clock.start()
        for begun, between, ended in triples:
            begun.record()
            self.stand_in()
            between.record()
            self.step()
            ended.record()
            clock.stamp()
        telemetry = monitor.read()
        torch.cuda.synchronize()
        stand_in = [begun.elapsed_time(between) * 1e3 for begun, between, _ in triples]
        step = [between.elapsed_time(ended) * 1e3 for _, between, ended in triples]
        return PairedBlock(step, clock.mhz(), [*telemetry, *monitor.read()], stand_in)

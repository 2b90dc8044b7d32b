"""Times a planned backend: CUDA graph replays between device events over a cold L2, or a wall clock on a CPU.

What is returned says what was done, not what was asked for.
"""

from __future__ import annotations

import math
import statistics
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from kernels.stats import ci95_of_median

if TYPE_CHECKING:
    import torch

    from kernels.adapter import Runner

BATCH = 10  # samples between two looks at the stopping rule
HOST_CALLS = 5


class Timing(BaseModel):
    """How carefully to measure: stop once the median is known to `ci95_rel`, within these bounds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "custom"
    min_samples: PositiveInt = 50
    max_samples: PositiveInt = 200
    max_seconds: PositiveFloat = 0.5  # of sampling; one batch of 10 samples is taken all the same
    ci95_rel: PositiveFloat = 0.005
    warmup: PositiveInt = 3
    l2: Literal["cold", "warm"] = "cold"
    l2_flush_factor: Annotated[float, Field(ge=1)] = 2.0  # bytes written before each sample, over the size of the L2


@dataclass(frozen=True)
class Measurement:
    """Samples in the order they were taken, and how: `stop_reason` is `ci95`, `max_samples` or `max_seconds`."""

    samples_us: list[float]
    timer: str
    cuda_graph: bool
    l2: str
    stop_reason: str
    host_us: float  # median time the CPU needs to issue one call


class Timer(ABC):
    """Times one runner. `replay` does once, untimed, exactly what a sample does; the check reads what it wrote."""

    name: str
    cuda_graph = False
    l2: str
    host_us: float

    def __init__(self, runner: Runner, timing: Timing) -> None:
        self.runner, self.timing = runner, timing

    @abstractmethod
    def replay(self) -> None: ...

    @abstractmethod
    def sample(self, count: int) -> list[float]:
        """Takes `count` samples, microseconds each."""

    def measure(self) -> Measurement:
        """Samples until the stopping rule holds."""
        samples: list[float] = []
        start = time.perf_counter()
        while not (reason := self._stop(samples, time.perf_counter() - start)):
            samples += self.sample(min(BATCH, self.timing.max_samples - len(samples)))
        return Measurement(samples, self.name, self.cuda_graph, self.l2, reason, self.host_us)

    def _stop(self, samples: list[float], elapsed_s: float) -> str:
        if len(samples) >= self.timing.min_samples and ci95_of_median(sorted(samples)) <= self.timing.ci95_rel:
            return "ci95"
        if len(samples) >= self.timing.max_samples:
            return "max_samples"
        return "max_seconds" if samples and elapsed_s >= self.timing.max_seconds else ""

    def _host_time(self) -> float:
        def issue() -> float:
            start = time.perf_counter()
            self.runner()
            return (time.perf_counter() - start) * 1e6

        return statistics.median(issue() for _ in range(HOST_CALLS))


class WallClock(Timer):
    """`time.perf_counter` around each call, on a CPU, whose caches nothing empties."""

    name = "perf_counter"
    l2 = "uncontrolled"

    def __init__(self, runner: Runner, timing: Timing) -> None:
        super().__init__(runner, timing)
        runner()
        self.host_us = math.nan  # a CPU does the work itself: there is no launch to tell apart

    def replay(self) -> None:
        self.runner()

    def sample(self, count: int) -> list[float]:
        samples = []
        for _ in range(count):
            start = time.perf_counter_ns()
            self.runner()
            samples.append((time.perf_counter_ns() - start) / 1e3)
        return samples


class DeviceEvents(Timer):
    """Events around each call or graph replay. The flush before each sample keeps the GPU busy while the CPU issues it."""

    def __init__(self, runner: Runner, timing: Timing) -> None:
        import torch

        super().__init__(runner, timing)
        self.l2 = timing.l2
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # capture forbids the default stream, so warm up where it will happen
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(timing.warmup):
                runner()
            torch.cuda.synchronize()
            self.host_us = self._host_time()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    @property
    def name(self) -> str:  # type: ignore[override]
        return "cuda_graph_events" if self.cuda_graph else "cuda_events"

    def replay(self) -> None:
        import torch

        self._once()
        torch.cuda.synchronize()

    def _once(self) -> None:
        self.runner()

    def sample(self, count: int) -> list[float]:
        import torch

        flush = _flush_buffer(torch.cuda.current_device(), self.timing.l2_flush_factor)
        pairs = [(_event(), _event()) for _ in range(count)]
        for start, end in pairs:
            if self.l2 == "cold":
                flush.zero_()
            start.record()
            self._once()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in pairs]


class GraphReplay(DeviceEvents):
    """Replays of one captured call: what a serving engine does, and no launch cost between the kernels."""

    cuda_graph = True

    def __init__(self, runner: Runner, timing: Timing) -> None:
        import torch

        super().__init__(runner, timing)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            runner()

    def _once(self) -> None:
        self.graph.replay()


def _event() -> torch.cuda.Event:
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@cache
def _flush_buffer(device: int, factor: float) -> torch.Tensor:
    import torch

    size = int(torch.cuda.get_device_properties(device).L2_cache_size * factor)
    return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")


def timer_for(runner: Runner, timing: Timing) -> Timer:
    """The timer for where the runner's output lies; the runner has been warmed up when this returns."""
    return GraphReplay(runner, timing) if runner.out.is_cuda else WallClock(runner, timing)

"""The three timers of a CUDA device and the one of a CPU. The row names the timer, and none is replaced by another silently."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from kernels.adapter import Runner
from kernels.lazy import torch
from kernels.timing.caches import Caches, reset_persisting_l2
from kernels.timing.energy import EnergyUnknown, IssuedWork
from kernels.timing.graphs import capture, timed_event, wait_for
from kernels.timing.nvml import DeviceMonitor, Telemetry
from kernels.timing.profiled import events_of
from kernels.timing.sm_clock import Clock, clock_of_device
from kernels.timing.sustained import spread_samples

TimerName = Literal["graph", "eager", "cupti"]

HOST_CALLS, HOST_CALLS_IF_LONG = 5, 2
LONG_WARMUP_S = 0.005  # a call that takes longer is warm after two, if time is to be saved
SPIN_CYCLES = 100_000  # about 50 µs of one thread, in which the CPU issues what comes next; it touches no memory
CYCLES_PER_US = 2000
LONGEST_LEAD_US = 5000.0  # of the spin before a block
SAMPLE = "attention_orchestrator_sample"


@dataclass(frozen=True)
class Block:
    """Samples taken in a row: microseconds, the mean SM clock of each in MHz, and telemetry from meanwhile.

    A clock is the mean since the previous sample, including the flush of the L2 in between; NaN if it is not known.
    """

    us: list[float]
    mhz: list[float] = field(default_factory=list)
    telemetry: list[Telemetry] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.mhz) != len(self.us):
            object.__setattr__(self, "mhz", [math.nan] * len(self.us))


class Timer:
    """Times one runner. `replay` does exactly what a sample does, once and untimed; the check reads what it wrote."""

    name: str
    cuda_graph = False
    l2: str  # the state of the caches at the start of a sample, as `Caches` names it
    icache: str
    host_us: float  # median time the CPU needs to issue one call

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def replay(self, wait: bool = True) -> None:
        """Returns when it is done. Without `wait` a graph, whose kernels all come before what the stream gets next, may go on.

        Of a graph that nobody waits for the caches may be in any state.
        """
        self._before()
        self._once()

    def block(self, count: int, monitor: DeviceMonitor) -> Block:
        """Takes `count` samples in a row, and reads the monitor meanwhile."""
        on_device = self.runner.out.is_cuda
        pairs = [(timed_event(on_device), timed_event(on_device)) for _ in range(count)]
        clock = self._lead_in(count)
        for start, end in pairs:
            self._before()
            start.record()
            self._once()
            end.record()
            clock.stamp()
        telemetry = monitor.read()
        wait_for(on_device)
        return Block([start.elapsed_time(end) * 1e3 for start, end in pairs], clock.mhz(), [*telemetry, *monitor.read()])

    def sustained(self, count: int, monitor: DeviceMonitor) -> Block:
        """About `count` samples of a second's load without a pause (`sustained.py`)."""
        return Block(*spread_samples(count, self._before, self._once, monitor, self.runner.out.is_cuda))

    def _lead_in(self, count: int) -> Clock:
        """What comes before a block of `count` samples, and their clock, started."""
        return Clock()

    def _before(self) -> None:
        """What comes before each sample, outside of it."""
        self.runner.ready()

    def _once(self) -> None:
        """What a sample spans."""
        self.runner()

    def issue(self, cycles: int, with_call: bool = True) -> IssuedWork:
        """Issues cycles: the caches into their state, then the call. Returns what tells of their end. May raise EnergyUnknown."""
        raise EnergyUnknown("only CUDA devices count energy")


class WallClock(Timer):
    """`time.perf_counter` around each call, on a CPU. Nothing empties its caches."""

    name = "perf_counter"
    l2 = icache = "uncontrolled"

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        runner()
        self.host_us = math.nan  # a CPU does the work itself: it has no launch to time separately


class DeviceEvents(Timer):
    """CUDA events around each eager call. Work before it keeps the GPU busy while the CPU issues the call."""

    name = "cuda_events"

    def __init__(self, runner: Runner, warmup: int, caches: Caches, *, brief: bool = False) -> None:
        super().__init__(runner)
        self.caches, self.l2, self.icache = caches, caches.l2, caches.icache
        caches.restore()  # raises here, before anything is timed, if it cannot
        # Capture forbids the default stream, so warm up where it will happen.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # A capture allocates nothing and loads no code, as the first call of cuDNN does, so a graph needs a call before it.
            is_long = warm_up(runner, max(warmup, self.cuda_graph), torch.cuda.synchronize, brief)
            self.host_us = self._host_time(HOST_CALLS_IF_LONG if is_long else HOST_CALLS) if warmup else math.nan
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        # Twice as long as the CPU takes for the call: otherwise the time would include waiting for the CPU.
        issue_us = 0.0 if self.cuda_graph or math.isnan(self.host_us) else 2 * self.host_us
        self._spin = max(SPIN_CYCLES, int(issue_us * CYCLES_PER_US))

    def _host_time(self, calls: int) -> float:
        def issue() -> float:
            start = time.perf_counter()
            self.runner()
            return (time.perf_counter() - start) * 1e6

        return statistics.median(issue() for _ in range(calls))

    def replay(self, wait: bool = True) -> None:
        wait = wait or not self.cuda_graph
        self._before() if wait else self.runner.ready()
        self._once()
        wait_for(wait)

    def issue(self, cycles: int, with_call: bool = True) -> torch.cuda.Event:
        """As in `Timer`. Nothing spins, unlike before a sample: a spin would add energy of its own."""
        for _ in range(cycles):
            self.caches.restore()
            if with_call:
                self._once()
        end: torch.cuda.Event = timed_event()
        end.record()
        return end

    def _lead_in(self, count: int) -> Clock:
        """Makes one call that is no sample: the first after idle time takes up to 100 µs longer. Starts the clock, and spins.

        The spin is twice as long as the CPU needs to issue the block, by that call: a sample that it issues late contains the wait.
        Beside three busy programs on its core calls of 7 to 18 µs had a 95th percentile of up to 3 times the median, now 1.1.
        """
        reset_persisting_l2()
        begun = time.perf_counter()
        self._before()
        self._once()
        issue_us = (time.perf_counter() - begun) * 1e6
        lead_us = min(2 * count * issue_us, LONGEST_LEAD_US)
        torch.cuda._sleep(max(self._spin, int(lead_us * CYCLES_PER_US)))  # type: ignore[no-untyped-call]
        (clock := clock_of_device()).start()  # behind the spin, whose clock is that of an idle GPU
        return clock

    def _before(self) -> None:
        """Brings back what the call overwrites, then the caches into their state; spins where the CPU takes longer than a flush.

        That is with a warm L2, an eager call, and a state to bring back: calls of 7 µs had samples of 30 µs.
        """
        self.runner.ready()
        self.caches.restore()
        if self.l2 == "warm" or not self.cuda_graph or self.runner.restore:
            torch.cuda._sleep(self._spin)  # type: ignore[no-untyped-call]


class GraphReplay(DeviceEvents):
    """CUDA events around replays of one captured call, as a serving engine runs it: no launch cost between the kernels."""

    name = "cuda_graph_events"
    cuda_graph = True

    def __init__(self, runner: Runner, warmup: int, caches: Caches, *, brief: bool = False) -> None:
        super().__init__(runner, warmup, caches, brief=brief)
        self.graph = capture(runner)

    def _once(self) -> None:
        self.graph.replay()


class Cupti(GraphReplay):
    """From the start of a replay's first kernel to the end of its last, by CUPTI in torch's profiler. RuntimeError without it."""

    name = "cupti_graph_kernels"

    def block(self, count: int, monitor: DeviceMonitor) -> Block:
        from torch.profiler import ProfilerActivity, profile, record_function

        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True) as profiler:
            clock = self._lead_in(count)  # the device idles while the profiler starts
            for _ in range(count):
                self._before()
                with record_function(SAMPLE):
                    self._once()
                clock.stamp()
            telemetry = monitor.read()
            torch.cuda.synchronize()
        spans = [e.duration_ns / 1e3 for e in events_of(profiler) if e.name == SAMPLE and e.on_device]
        if len(spans) != count:
            raise RuntimeError(f"CUPTI saw {len(spans)} of {count} replays; is another profiler at work? type timing.timer=graph")
        return Block(spans, clock.mhz(), [*telemetry, *monitor.read()])


TIMERS: dict[TimerName, type[DeviceEvents]] = {"graph": GraphReplay, "eager": DeviceEvents, "cupti": Cupti}


def warm_up(call: Callable[[], object], count: int, wait: Callable[[], object], brief: bool) -> bool:
    """Makes `count` calls and waits; if `brief`, two if the second is long: the first loads code. Whether it was cut short."""
    for number in range(count):
        if brief:
            wait()
        started = time.perf_counter()
        call()
        if brief and number == 1:
            wait()
            if time.perf_counter() - started > LONG_WARMUP_S:
                return True
    wait()
    return False


def timer_for(runner: Runner, name: TimerName, warmup: int, caches: Caches, *, brief: bool = False) -> Timer:
    """The timer of that name, warmed up, or the wall clock for an output on a CPU. If `brief`, a call over `LONG_WARMUP_S` less."""
    return TIMERS[name](runner, warmup, caches, brief=brief) if runner.out.is_cuda else WallClock(runner)

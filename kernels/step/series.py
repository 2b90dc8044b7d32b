"""The measurement of one backend in a step: paired differences, until their median is known well enough.

The timer replays the step and the same step with the stand-in, in turns.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from functools import partial

from kernels.adapter import Runner
from kernels.timing.caches import reset_persisting_l2
from kernels.timing.config import MIN_SAMPLES
from kernels.timing.graphs import timed_event, wait_for
from kernels.timing.nvml import DeviceMonitor
from kernels.timing.series import Series
from kernels.timing.sm_clock import Clock, clock_of_device
from kernels.timing.stats import interval_of_blocks
from kernels.timing.stopping import StopReason
from kernels.timing.sustained import Call, spread_samples
from kernels.timing.timers import Block, Timer

SHORT_US = 20.0  # a shorter call need not be known better than one of so many microseconds
LIMITS = 2.0  # a difference of two steps may be so many times as uncertain, relatively, as the median of an isolated call
PAIRS_OF_A_BLOCK = 2  # at least
Loads = dict[int, list[float]]  # µs of the step with the stand-in under its own load, by turn


@dataclass(frozen=True)
class StepMeasurement:
    """The columns of a row that are about steps, in microseconds.

    `in_step_samples_us` are (step - stand-in) / layers of each pair, in the order they were taken, and `in_step_low_us` to
    `in_step_high_us` is the 95% interval of their median. Throttled pairs are left out, unless too few others remain.
    """

    step_layers: int
    step_us: float
    stand_in_us: float
    in_step_us: float
    in_step_low_us: float
    in_step_high_us: float
    in_step_samples_us: list[float]
    step_stop_reason: StopReason


@dataclass
class StepSeries(Series):
    """A series whose timer is a `StepTimer`.

    It is complete once the 95% interval of the median difference of a layer is within +- `LIMITS` times `timing.limit` of it (1% by
    default), calls below `SHORT_US` counting as that long; or by the limits on samples and seconds that every series has.
    """

    def _next_size(self) -> int:
        taken = [pair for block in self._samples.blocks for pair in _pairs(block)]
        if not taken:
            return PAIRS_OF_A_BLOCK
        if self.budget.waits_are_spent and len(taken) < MIN_SAMPLES:
            return MIN_SAMPLES - len(taken)
        pair_s = sum(step + stand_in for step, stand_in in taken) / len(taken) / 1e6
        fitting = max(PAIRS_OF_A_BLOCK, int(self.timing.block_seconds / pair_s))
        return max(1, min(fitting, self.timing.block_samples, self.timing.max_samples - self._samples.num_unthrottled))

    def _blocks_to_judge(self) -> list[list[float]]:
        return self._samples.unthrottled_of(lambda block: [(step - stand_in) / self._layers for step, stand_in in _pairs(block)])

    def _is_enough(self, blocks_us: list[list[float]]) -> bool:
        low, high = interval_of_blocks(blocks_us)
        found_us = [us for block in blocks_us for us in block]
        median = statistics.median(found_us)
        return len(found_us) >= MIN_SAMPLES and max(high - median, median - low) <= LIMITS * self.timing.criterion_limit * max(
            abs(median), SHORT_US
        )

    def step_result(self) -> StepMeasurement:
        """What was measured, once `stop_reason` is set."""
        measured = self.result()
        blocks = self._samples.unthrottled_of(_pairs) if measured.only_unthrottled else [_pairs(b) for b in self._samples.blocks]
        pairs = [pair for block in blocks for pair in block]
        blocks_us = [[(step - stand_in) / self._layers for step, stand_in in block] for block in blocks]
        differences = [us for block in blocks_us for us in block]
        return StepMeasurement(
            self._layers,
            statistics.median(step for step, _ in pairs),
            statistics.median(stand_in for _, stand_in in pairs),
            statistics.median(differences),
            *interval_of_blocks(blocks_us),
            differences,
            measured.stop_reason,
        )

    @property
    def _layers(self) -> int:
        assert isinstance(self.timer, StepTimer)
        return self.timer.layers


def _pairs(block: Block) -> list[tuple[float, float]]:
    """The time of each step of a block, and of the step with the stand-in before it."""
    assert isinstance(block, PairedBlock)
    return list(zip(block.us, block.stand_in_us, strict=True))


@dataclass(frozen=True)
class PairedBlock(Block):
    """Samples of a step, and for each one the sample of the step with the stand-in that was taken just before, in microseconds."""

    stand_in_us: list[float] = field(default_factory=list)


class StepTimer(Timer):
    """A sample is one step. Before each, and in the same block, one step with the stand-in: A B A B.

    Without a pause each has a load of its own. Nothing is flushed: a step finds in the caches what the one before left there, as in
    an engine. Both end with the same MLP of the same last layer, so both find the same.
    """

    l2 = icache = "as the step leaves them"
    host_us = math.nan

    def __init__(self, runner: Runner, step: Call, stand_in: Call, layers: int, loads: Loads | None = None) -> None:
        super().__init__(runner)
        self.step, self.stand_in, self.layers = step, stand_in, layers
        self.loads, self._turns = {} if loads is None else loads, 0
        self.cuda_graph = runner.out.is_cuda
        self.name = "cuda_graph_events" if self.cuda_graph else "perf_counter"

    def replay(self, wait: bool = True) -> None:
        self.step()
        wait_for(self.cuda_graph)

    def block(self, count: int, monitor: DeviceMonitor) -> PairedBlock:
        """On a GPU the first step is no sample: it ends the rest, and the CPU issues all others while the GPU is at work on it."""
        triples = [[timed_event(self.cuda_graph) for _ in range(3)] for _ in range(count)]
        clock = clock_of_device() if self.cuda_graph else Clock()
        if self.cuda_graph:
            reset_persisting_l2()
            self.step()
        clock.start()
        for begun, between, ended in triples:
            begun.record()
            self.stand_in()
            between.record()
            self.step()
            ended.record()
            clock.stamp()
        telemetry = monitor.read()
        wait_for(self.cuda_graph)
        stand_in = [begun.elapsed_time(between) * 1e3 for begun, between, _ in triples]
        step = [between.elapsed_time(ended) * 1e3 for _, between, ended in triples]
        return PairedBlock(step, clock.mhz(), [*telemetry, *monitor.read()], stand_in)

    def sustained(self, count: int, monitor: DeviceMonitor) -> PairedBlock:
        """The step alone, as an engine replays it. The one with the stand-in has its own load, once a turn for all backends."""
        load = partial(spread_samples, count, lambda: None, monitor=monitor, on_device=self.cuda_graph)
        us, mhz, telemetry = load(self.step)
        self._turns += 1
        if self._turns not in self.loads:
            self.loads[self._turns] = load(self.stand_in)[0]
        others = self.loads[self._turns]
        return PairedBlock(us, mhz, telemetry, [others[at * len(others) // len(us)] for at in range(len(us))])

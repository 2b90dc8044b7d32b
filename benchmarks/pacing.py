"""What a device's power cap does to a kernel, and what short blocks at a lower duty cycle do about it.

    python benchmarks/pacing.py +sweep=specdec_long_ctx sweep.batch_size=[64] sweep.s_kv=[131072] sweep.s_qo=[4]

Loads the device with each point's kernel for SECONDS at a fixed block and duty cycle: how fast its clock ran, how long it took,
and in which share of the blocks the clock was throttled. Then at the duty cycle that `kernels.timing.pacing` finds by itself.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import prepared
from orchestrator import tables
from orchestrator.tables import Grid

if TYPE_CHECKING:
    from kernels.timing.nvml import DeviceMonitor
    from kernels.timing.timers import Timer

SECONDS, SETTLE_S = 2.0, 1.0
FIXED = [(0.024, 1.0), (0.024, 1 / 2), (0.006, 1.0), (0.006, 2 / 3), (0.006, 1 / 2)]  # seconds of a block, duty cycle
HEADER = ("kernel", "µs alone", "block", "duty cycle", "µs", "SM MHz", "throttled blocks", "unthrottled samples a second")


@dataclass
class Load:
    """The result of loading the device for a while."""

    us: list[float]
    mhz: list[float]
    throttled: list[bool]  # each block
    unthrottled_samples: int
    wall_s: float

    def cells(self) -> tuple[str, ...]:
        return (
            f"{statistics.median(self.us):,.1f}",
            f"{statistics.median(self.mhz):.0f}",
            f"{statistics.mean(self.throttled):.0%} of {len(self.throttled)}",
            f"{self.unthrottled_samples / self.wall_s:.0f}",
        )


def main(overrides: list[str]) -> None:
    """One row of the table a point and pace."""
    from kernels.timing.timers import timer_for

    rows, monitor = [], prepared.pacer().monitor
    for timing, point, prepare in prepared.points(overrides):
        timer = timer_for(prepare(), "graph", timing.warmup, timing.caches)
        time.sleep(SETTLE_S)
        alone_us = timer.block(1, monitor).us[0]
        p, loads = point.problem, []
        for block_s, duty_cycle in FIXED:
            time.sleep(SETTLE_S)
            load = at_fixed_duty_cycle(timer, monitor, max(1, int(block_s * 1e6 / alone_us)), duty_cycle)
            loads.append((block_s, f"{duty_cycle:.0%}", load))
        time.sleep(SETTLE_S)
        block_s = timing.block_seconds
        load, duty_cycle = at_the_pacer_s_duty_cycle(timer, monitor, max(1, int(block_s * 1e6 / alone_us)))
        loads.append((block_s, f"{duty_cycle:.0%}, found", load))
        shape = (
            f"{point.backend}, batch {p.batch_size}, s_kv {p.s_kv:,}, s_qo {p.s_qo}, {p.q_dtype}/{p.kv_dtype}",
            f"{alone_us:,.1f}",
        )
        rows += [(*shape, f"{block_s * 1e3:.0f} ms", duty_cycle, *load.cells()) for block_s, duty_cycle, load in loads]
        del timer
    print(tables.markdown([Grid("", HEADER, tuple(rows))]).partition("\n\n")[2])


def at_fixed_duty_cycle(timer: Timer, monitor: DeviceMonitor, count: int, duty_cycle: float) -> Load:
    """Blocks of `count` samples, each followed by idle time, so that blocks take `duty_cycle` of the time."""
    return _load(timer, monitor, count, lambda block_s, throttled: time.sleep((1 / duty_cycle - 1) * block_s))


def at_the_pacer_s_duty_cycle(timer: Timer, monitor: DeviceMonitor, count: int) -> tuple[Load, float]:
    """... each followed by the idle time that a new `Pacer` asks for; and its duty cycle in the end."""
    from kernels.timing.pacing import Pacer

    pacer = Pacer(monitor)

    def idle(block_s: float, throttled: bool) -> None:
        pacer.after_block(block_s, throttled)
        pacer.idle_before_block()

    return _load(timer, monitor, count, idle), pacer.duty_cycle


def _load(timer: Timer, monitor: DeviceMonitor, count: int, idle: Callable[[float, bool], object]) -> Load:
    load, start = Load([], [], [], 0, 0.0), time.perf_counter()
    while load.wall_s < SECONDS:
        began = time.perf_counter()
        block = timer.block(count, monitor)
        throttled = any(telemetry.throttled_by for telemetry in block.telemetry)
        load.us += block.us
        load.mhz += block.mhz
        load.throttled.append(throttled)
        load.unthrottled_samples += 0 if throttled else count
        idle(time.perf_counter() - began, throttled)
        load.wall_s = time.perf_counter() - start
    return load


if __name__ == "__main__":
    main(sys.argv[1:])

"""What a device's power cap does to a kernel, and what short blocks and rests between them do about it.

    python benchmarks/pacing.py +sweep=specdec_long_ctx sweep.batch_size=[64] sweep.s_kv=[131072] sweep.s_qo=[4]

Loads the device with each point's kernel for SECONDS at a fixed block and rest: how fast its clock ran, how long it took, and in
which share of the blocks NVML named what held the clock down. Then with the rests that `kernels.timing.pacing` finds by itself.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import prepared
from orchestrator import tables
from orchestrator.tables import Grid

if TYPE_CHECKING:
    from kernels.timing.nvml import DeviceMonitor
    from kernels.timing.timers import Timer

SECONDS, SETTLE_S = 2.0, 1.0
FIXED = [(0.024, 0.0), (0.024, 1.0), (0.006, 0.0), (0.006, 0.5), (0.006, 1.0)]  # of a block: seconds; the rest over it
HEADER = ("kernel", "µs alone", "block", "rest / block", "µs", "SM MHz", "throttled blocks", "unthrottled samples a second")


@dataclass
class Load:
    """What came of loading the device for a while."""

    us: list[float]
    mhz: list[float]
    held: list[bool]
    free_samples: int
    wall_s: float

    def cells(self) -> tuple[str, ...]:
        return (
            f"{statistics.median(self.us):,.1f}",
            f"{statistics.median(self.mhz):.0f}",
            f"{statistics.mean(self.held):.0%} of {len(self.held)}",
            f"{self.free_samples / self.wall_s:.0f}",
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
        for block_s, ratio in FIXED:
            time.sleep(SETTLE_S)
            loads.append((block_s, f"{ratio:g}", fixed(timer, monitor, max(1, int(block_s * 1e6 / alone_us)), ratio)))
        time.sleep(SETTLE_S)
        block_s = timing.block_seconds
        load, ratio = found(timer, monitor, max(1, int(block_s * 1e6 / alone_us)))
        loads.append((block_s, f"{ratio:.2f}, found", load))
        what = (
            f"{point.backend}, batch {p.batch_size}, s_kv {p.s_kv:,}, s_qo {p.s_qo}, {p.q_dtype}/{p.kv_dtype}",
            f"{alone_us:,.1f}",
        )
        rows += [(*what, f"{block_s * 1e3:.0f} ms", ratio, *load.cells()) for block_s, ratio, load in loads]
        del timer
    print(tables.markdown([Grid("", HEADER, tuple(rows))]).partition("\n\n")[2])


def fixed(timer: Timer, monitor: DeviceMonitor, count: int, ratio: float) -> Load:
    """Blocks of `count` samples, each followed by a rest of `ratio` times its length."""
    return _load(timer, monitor, count, lambda block_s, held: time.sleep(ratio * block_s))


def found(timer: Timer, monitor: DeviceMonitor, count: int) -> tuple[Load, float]:
    """... each followed by what a new `Pacer` asks for; and its ratio in the end."""
    from kernels.timing.pacing import Pacer

    pacer = Pacer(monitor)

    def after(block_s: float, held: bool) -> None:
        pacer.after_block(block_s, held)
        pacer.rest_before_block()

    return _load(timer, monitor, count, after), pacer.ratio


def _load(timer: Timer, monitor: DeviceMonitor, count: int, after: Any) -> Load:
    load, start = Load([], [], [], 0, 0.0), time.perf_counter()
    while load.wall_s < SECONDS:
        began = time.perf_counter()
        block = timer.block(count, monitor)
        held = any(telemetry.throttled_by for telemetry in block.telemetry)
        load.us += block.us
        load.mhz += block.mhz
        load.held.append(held)
        load.free_samples += 0 if held else count
        after(time.perf_counter() - began, held)
        load.wall_s = time.perf_counter() - start
    return load


if __name__ == "__main__":
    main(sys.argv[1:])

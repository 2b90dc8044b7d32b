"""Samples without a pause, as an engine calls (timing.pace=sustained): what the power cap does then is a part of the time.

A *turn* is one load of about a second. The first half does not count: the cap of an H200 acts within 50 ms (`pacing.py`), so that
the clock settles long before. The samples are spread over the second half, since the cap lets the clock swing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kernels.timing.caches import reset_persisting_l2
from kernels.timing.graphs import timed_event, wait_for
from kernels.timing.nvml import DeviceMonitor, Telemetry
from kernels.timing.sm_clock import MAX_STAMPS, Clock, clock_of_device

ORDERS = (1, -1)  # of the backends of a problem: a GPU that grows warmer then makes none of them slower than another
HALF_S = 0.4  # seconds of each half of a turn
FEWEST = 5  # samples of a turn, however long a call takes
SECONDS = len(ORDERS) * 2 * HALF_S  # of all turns of a call
PROBE_S = 0.02  # of calls that tell how many fill a half

Call = Callable[[], object]


def spread_samples(
    count: int, before: Call, call: Call, monitor: DeviceMonitor, on_device: bool
) -> tuple[list[float], list[float], list[Telemetry]]:
    """One turn of `before` and `call` in a loop: µs of about `count` of the calls, the mean MHz since the sample before, telemetry.

    The CPU issues all of it ahead, waits for the middle of the samples and for the last, and asks the monitor then.
    """

    def cycle() -> None:
        before()
        call()

    cycles = _cycles_in(HALF_S, cycle, on_device)
    samples = max(FEWEST, min(count, cycles, MAX_STAMPS - 1))
    spans = [(timed_event(on_device), timed_event(on_device)) for _ in range(samples)]
    clock = clock_of_device() if on_device else Clock()
    if on_device:
        reset_persisting_l2()
    for _ in range(cycles):
        cycle()
    clock.start()
    for number, (begun, ended) in enumerate(spans):
        for _ in range((number + 1) * cycles // samples - number * cycles // samples - 1):
            cycle()
        before()
        begun.record()
        call()
        ended.record()
        clock.stamp()
    telemetry: list[Telemetry] = []
    for begun, _ in (spans[samples // 2], spans[-1]):
        begun.synchronize()
        telemetry += monitor.read()
    wait_for(on_device)
    return [begun.elapsed_time(ended) * 1e3 for begun, ended in spans], clock.mhz(), telemetry


def _cycles_in(seconds: float, cycle: Call, on_device: bool) -> int:
    """How many cycles take so long, by the time of so many as take `PROBE_S`."""
    count, took = 1, 0.0
    while took < PROBE_S:
        wait_for(on_device)
        begun = time.perf_counter()
        for _ in range(count):
            cycle()
        wait_for(on_device)
        count, took = 2 * count, time.perf_counter() - begun
    return max(1, round(seconds / took * count / 2))

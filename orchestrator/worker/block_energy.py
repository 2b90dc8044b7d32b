"""The energy of each prepared backend's call, after its samples were taken: `timing.energy=true`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial

from kernels.timing import energy
from kernels.timing.energy import Energy, EnergyUnknown, Rate
from kernels.timing.nvml import DeviceMonitor
from kernels.timing.timers import Timer
from orchestrator.storage.row import Row
from orchestrator.worker.prepared import PreparedBackend

FLUSH_S = 40e-6  # about what a flush takes; how much is issued at once follows it


def measure_energy(timed: Sequence[PreparedBackend], monitor: DeviceMonitor) -> None:
    """Adds the columns of energy to the rows: one block for the flush, then one for each backend that was timed.

    An exception of a backend becomes the error of its series, as in a sample. Seconds go to `measure_s` and `total_s`.
    """
    flush: Rate | EnergyUnknown | None = None
    for one in timed:
        started = time.perf_counter()
        try:
            timer = one.series.timer
            if flush is None and (timer.l2 != "warm" or timer.icache == "cold"):
                flush = _flush_rate(timer, monitor)
            if isinstance(flush, EnergyUnknown):
                raise flush
            one.row |= _columns(_energy(one, timer, flush, monitor), one.shared.inputs.problem.num_q_tokens)
            one.row["energy_note"] = _throttled_note(monitor)
        except EnergyUnknown as reason:
            one.row["energy_note"] = str(reason)
        except Exception as error:  # a kernel library may raise anything
            one.series.error = error
        one.series.end_turn()
        one.series.budget.wall_s += time.perf_counter() - started


def _energy(one: PreparedBackend, timer: Timer, flush: Rate | None, monitor: DeviceMonitor) -> Energy:
    call_s = statistics.median(one.series.samples_us()) / 1e6
    cycle = energy.measure(timer.issue, call_s + (flush.seconds if flush else 0.0), monitor)
    return energy.energy_of(cycle, flush)


def _flush_rate(timer: Timer, monitor: DeviceMonitor) -> Rate | EnergyUnknown:
    try:
        return energy.measure(partial(timer.issue, with_call=False), FLUSH_S, monitor)
    except EnergyUnknown as reason:
        return reason


def _columns(found: Energy, tokens: int) -> Row:
    return {
        "energy_j": found.joules,
        "energy_token_j": found.joules / tokens,
        "energy_rel": found.rel,
        "energy_flush_j": found.flush_joules,
        "energy_us": found.us,
    }


def _throttled_note(monitor: DeviceMonitor) -> str | None:
    """Of the end of the block: NVML tells of about the last tenth of a second."""
    causes = monitor.throttled_by()
    return f"throttled: {', '.join(sorted(causes))}" if causes else None

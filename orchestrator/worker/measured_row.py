"""From a measurement to its row: times, rates, energy, host time, notes. A call that equals another's may have its time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import cast

from kernels.device import Device
from kernels.environment.remote import RemoteTimer
from kernels.problem import Problem
from kernels.timing import energy, host_time
from kernels.timing.ceilings import Ceilings
from kernels.timing.config import Timing
from kernels.timing.energy import EnergyUnknown, Rate
from kernels.timing.host_time import HostCost
from kernels.timing.nvml import DeviceMonitor, Telemetry
from kernels.timing.racing import WITHIN, rough_interval_rel
from kernels.timing.series import Measurement
from kernels.timing.stats import summarize
from kernels.timing.timers import GraphReplay, Timer
from orchestrator.errors import WroteInputs
from orchestrator.storage.row import Row
from orchestrator.worker.prepared import PreparedBackend
from orchestrator.worker.provenance import Provenance
from orchestrator.worker.step_part import step_note
from orchestrator.worker.task_row import add_seconds, classify_exception, finish_row

# A rate this far above a measured ceiling cannot be true: the ceiling's own samples spread by about half as much.
MAX_OVER_CEILING = 1.02
FLUSH_S = 40e-6  # about what a flush takes; how much is issued at once follows it


def measured_row(one: PreparedBackend, others: str, timing: Timing, device: Device, provenance: Provenance) -> Row:
    """The row of a backend whose series has ended. `others` are other processes that used the device meanwhile."""
    row, series = one.row, one.series
    budgets = [series.budget, *([one.step.series.budget] if one.step else [])]
    row["rest_s"] = sum(budget.idle_s for budget in budgets)
    add_seconds(row, "measure_s", sum(budget.wall_s for budget in budgets))
    add_seconds(row, "total_s", sum(budget.wall_s + budget.idle_s for budget in budgets))
    if isinstance(series.error, WroteInputs):
        row["check"] = "failed"
        return finish_row(row, one.task, "mismatch", f"right before it was timed, and then: {series.error}")
    if series.error:
        return finish_row(row, one.task, *classify_exception(series.error))
    if one.verdict and one.failed_check:
        return finish_row(row, one.task, "mismatch", f"right before it was timed, and then: {one.verdict.reason}")
    timed = one.measured_as or one
    measurement = timed.series.result()
    if not measurement.only_unthrottled and timing.throttled == "refuse":
        return finish_row(row, one.task, "failed", f"{throttled_note(measurement)}; timing.throttled=refuse")
    problem, l2 = one.shared.inputs.problem, provenance.l2_bytes
    row |= time_columns(measurement) | {"other_processes": others or None}
    if (source := one.measured_as) is not None:
        energy_of_source = {name: value for name, value in source.row.items() if name.startswith("energy_")}
        row |= cast(Row, {"measured_as": source.task.point.backend, **energy_of_source})
    row["working_set_over_l2"] = problem.bytes / l2 if l2 else None
    assert row["median_us"] is not None
    row |= rate_columns(problem, row["median_us"], one.runner.compute_dtype, device, provenance.ceilings)
    row |= one.step.columns() if one.step else {}
    row["own_us"] = own_us(row, provenance.ceilings)
    notes = [caveats(row, measurement), step_note(row)]
    if rival := timed.decided_by:
        decided = f"decided: over {WITHIN - 1:.0%} slower than {rival.task.point.backend} for certain; its time is rough"
        notes.insert(1, decided)
    return finish_row(row, one.task, "ok", " | ".join(filter(None, notes)))


def time_columns(measurement: Measurement) -> Row:
    """The summary, the samples, and the device's clocks (MHz), temperature (°C) and power (W) while they were taken."""
    summary = summarize(measurement.blocks_us)
    if measurement.stop_reason == "decided":
        ordered = sorted(sample for block in measurement.blocks_us for sample in block)
        summary = replace(summary, ci95_rel=rough_interval_rel(ordered))
    telemetry, known = measurement.telemetry, [mhz for mhz in measurement.mhz if not math.isnan(mhz)]
    columns: Row = {
        **cast(Row, asdict(summary)),
        "samples_us": [sample for block in measurement.blocks_us for sample in block],
        "samples_mhz": [None if math.isnan(mhz) else round(mhz) for mhz in measurement.mhz] if known else [],
        "block_sizes": [len(block) for block in measurement.blocks_us],
        "set_aside_us": measurement.throttled_us,
        "num_set_aside": len(measurement.throttled_us),
        "stop_reason": measurement.stop_reason,
    }
    return columns | state_columns(telemetry, measurement.throttled_by, known)


def state_columns(telemetry: Sequence[Telemetry], throttled_by: Iterable[str], mhz: Sequence[float] = ()) -> Row:
    """The state of the device while it was measured; nothing if it is not known. `mhz` are clocks that were measured better."""
    if not telemetry:
        return {}
    return {
        "sm_clock_mhz": round(statistics.median(mhz or [r.sm_clock_mhz for r in telemetry])),
        "mem_clock_mhz": int(statistics.median(r.mem_clock_mhz for r in telemetry)),
        "temperature_c": max(r.temperature_c for r in telemetry),
        "power_w": max(r.power_w for r in telemetry),
        "throttle_reasons": ", ".join(sorted(throttled_by)) or "none",
    }


def rate_columns(problem: Problem, median_us: float, compute_dtype: str, device: Device, ceilings: Ceilings | None) -> Row:
    """Rates at the median time, and their distance to the datasheet and to the measured ceilings.

    `bound` names the ceiling that binds: memory, compute or launch, whichever would take longest.
    `kv_read_amplification` is how often memory could have delivered the KV cache in the time of a memory-bound point.
    It is 1 for one read at the ceiling, and near `s_qo` for a kernel that reads the cache again for each draft token.
    """
    seconds = median_us / 1e6
    columns: Row = {"tflops": problem.flops / seconds / 1e12, "tb_per_sec": problem.bytes / seconds / 1e12}
    if device.kind == "cuda" and device.source:
        datasheet = min_seconds(problem, device.tb_per_sec, device.peak_tflops(compute_dtype))
        columns |= {"bound": max(datasheet, key=lambda k: datasheet[k]), "frac_of_datasheet": max(datasheet.values()) / seconds}
    if ceilings is None:
        return columns
    times = min_seconds(problem, ceilings.tb_per_sec, ceilings.peak_tflops(compute_dtype))
    times["launch"] = ceilings.launch_us / 1e6
    bound = max(times, key=lambda k: times[k])
    amplification = seconds * ceilings.tb_per_sec * 1e12 / problem.kv_bytes
    return columns | {
        "bound": bound,
        "frac_of_peak": times[bound] / seconds,
        "kv_read_amplification": amplification if bound == "memory" else None,
        "peak_tb_per_sec": ceilings.tb_per_sec,
        "peak_tflops": ceilings.peak_tflops(compute_dtype),
        "launch_us": ceilings.launch_us,
    }


def own_us(row: Row, ceilings: Ceilings | None) -> float | None:
    """The call's own time: in the step, or the median less a graph's launch; None if that is unknown (`analysis/keys.py`)."""
    if row.get("in_step_us") is not None or row["timer"] != GraphReplay.name:
        return row.get("in_step_us") or row["median_us"]
    real, median_us = ceilings.call_launch_us if ceilings else None, row["median_us"]
    return None if real is None or median_us is None else median_us - real if real < median_us else median_us


def min_seconds(problem: Problem, tb_per_sec: float, tflops: float) -> dict[str, float]:
    """The least seconds that memory and arithmetic take at these rates."""
    return {"memory": problem.bytes / (tb_per_sec * 1e12), "compute": problem.flops / (tflops * 1e12)}


def caveats(row: Row, measurement: Measurement) -> str:
    """What a reader of an `ok` row must know about its time; empty if nothing is wrong."""
    return " | ".join(filter(None, (_impossible(row), throttled_note(measurement), shared_note(row))))


def throttled_note(measurement: Measurement) -> str:
    """How many samples of a throttled point were excluded, and which ones its median is of; empty for any other point."""
    if measurement.stop_reason != "throttled":
        return ""
    aside, by = len(measurement.throttled_us), ", ".join(sorted(measurement.throttled_by))
    taken = aside + (measurement.num_samples if measurement.only_unthrottled else measurement.num_samples - aside)
    median_of = f"the other {measurement.num_samples}" if measurement.only_unthrottled else "all of them"
    return f"throttled: {aside} of {taken} samples were taken while the clock was throttled ({by}); the median is of {median_of}"


def shared_note(row: Row) -> str:
    return f"shared: other processes on the device: {row['other_processes']}" if row.get("other_processes") else ""


def _impossible(row: Row) -> str:
    """Why a time cannot be true: it beats memory, arithmetic or one launch at the measured ceilings, or at the datasheet's rates
    if none were measured. A warm L2 cache that holds the whole problem may beat memory."""
    in_cache = row["l2"] == "warm" and (row["working_set_over_l2"] or 1) < 1
    tb_per_sec = ("tb_per_sec", row["tb_per_sec"], row.get("peak_tb_per_sec"))
    tflops = ("tflops", row["tflops"], row.get("peak_tflops"))
    for rate, reached, ceiling in (tb_per_sec, tflops):
        if ceiling and reached and reached > MAX_OVER_CEILING * ceiling and not (in_cache and rate == "tb_per_sec"):
            return f"impossible: {rate} {reached:.4g} is above this device's measured ceiling of {ceiling:.4g}"
    launch_us, median_us = row.get("launch_us"), row["median_us"]
    if launch_us and median_us and median_us * MAX_OVER_CEILING < launch_us:
        return f"impossible: {median_us:.3g} µs is less than the {launch_us:.3g} µs of a launch that does nothing"
    fraction = row.get("frac_of_datasheet") or 0.0
    if row.get("peak_tb_per_sec") is None and fraction > MAX_OVER_CEILING and not in_cache:
        return f"impossible: {fraction:.3g} of what the device's datasheet allows"
    return ""


def measure_host(timed: Sequence[PreparedBackend]) -> None:
    """Adds the host's time to rows that were timed. A plan that leaves the backend wrong makes the row a mismatch."""
    for one in timed:
        with _turn_of(one):
            inputs, timer = one.shared.inputs, one.series.timer
            there = timer.host_cost() if isinstance(timer, RemoteTimer) else None
            # A graph's plan has padding too.
            one.row |= host_columns(there or host_time.measure(one.runner, inputs.padded or inputs))


@contextmanager
def _turn_of(one: PreparedBackend) -> Iterator[None]:
    """An exception of a backend becomes the error of its series, as in a sample. Seconds go to `measure_s` and `total_s`."""
    started = time.perf_counter()
    try:
        yield
    except Exception as error:  # a kernel library may raise anything
        one.series.error = error
    one.series.end_turn()
    one.series.budget.wall_s += time.perf_counter() - started


def host_columns(cost: HostCost) -> Row:
    row: Row = {"host_note": cost.note or None}
    if cost.plan is not None:
        row |= {"plan_host_us": cost.plan.median_us, "plan_host_p95_us": cost.plan.p95_us, "plan_host_ci95_rel": cost.plan.ci95_rel}
    if cost.call is not None:
        row |= {"call_host_us": cost.call.median_us, "call_host_p95_us": cost.call.p95_us}
    if (plan := cost.of_plan) is not None:
        row |= {"plan_syncs": plan.syncs, "plan_d2h_copies": plan.d2h_copies, "plan_h2d_copies": plan.h2d_copies}
        row |= {"plan_kernels": plan.kernels, "plan_device_us": plan.device_us}
    if (call := cost.of_call) is not None:
        row |= {"call_syncs": call.syncs, "call_copies": call.d2h_copies + call.h2d_copies, "call_kernels": call.kernels}
    return row


def measure_energy(timed: Sequence[PreparedBackend], monitor: DeviceMonitor) -> None:
    """Adds the columns of energy to the rows: one block for the flush, then one for each backend that was timed."""
    flush: Rate | EnergyUnknown | None = None
    for one in timed:
        with _turn_of(one):
            timer = one.series.timer
            try:
                if flush is None and (timer.l2 != "warm" or timer.icache == "cold"):
                    flush = _flush_rate(timer, monitor)
                if isinstance(flush, EnergyUnknown):
                    raise flush
                cycle_s = statistics.median(one.series.samples_us()) / 1e6 + (flush.seconds if flush else 0.0)
                found = energy.energy_of(energy.measure(timer.issue, cycle_s, monitor), flush)
                causes = monitor.throttled_by()  # in about the last tenth of a second
                of_token = found.energy_j / one.shared.inputs.problem.num_q_tokens
                one.row |= cast(Row, asdict(found)) | {"energy_token_j": of_token}
                one.row["energy_note"] = f"throttled: {', '.join(sorted(causes))}" if causes else None
            except EnergyUnknown as reason:
                one.row["energy_note"] = str(reason)


def _flush_rate(timer: Timer, monitor: DeviceMonitor) -> Rate | EnergyUnknown:
    try:
        return energy.measure(partial(timer.issue, with_call=False), FLUSH_S, monitor)
    except EnergyUnknown as reason:
        return reason

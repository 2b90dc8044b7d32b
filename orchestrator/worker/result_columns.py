"""A measurement as columns: its times, its rates compared with the device's ceilings, and notes on their limits."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, cast

from kernels.device import Device
from kernels.problem import Problem
from kernels.timing.ceilings import Ceilings
from kernels.timing.racing import WITHIN, rough_interval_rel
from kernels.timing.series import Measurement
from kernels.timing.stats import summarize
from orchestrator.storage.row import Row

if TYPE_CHECKING:
    from orchestrator.worker.prepared import PreparedBackend

# A rate this far above a measured ceiling cannot be true: the ceiling's own samples spread by about half as much.
MAX_OVER_CEILING = 1.02


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
    if telemetry:
        columns |= {
            "sm_clock_mhz": round(statistics.median(known or [r.sm_clock_mhz for r in telemetry])),
            "mem_clock_mhz": int(statistics.median(r.mem_clock_mhz for r in telemetry)),
            "temperature_c": max(r.temperature_c for r in telemetry),
            "power_w": max(r.power_w for r in telemetry),
            "throttle_reasons": ", ".join(sorted(measurement.throttled_by)) or "none",
        }
    return columns


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


def min_seconds(problem: Problem, tb_per_sec: float, tflops: float) -> dict[str, float]:
    """The least seconds that memory and arithmetic take at these rates."""
    return {"memory": problem.bytes / (tb_per_sec * 1e12), "compute": problem.flops / (tflops * 1e12)}


def caveats(row: Row, measurement: Measurement) -> str:
    """What a reader of an `ok` row must know about its time; empty if nothing is wrong."""
    found = (_impossible(row), throttled_note(measurement), _shared(row))
    return " | ".join(filter(None, found))


def throttled_note(measurement: Measurement) -> str:
    """How many samples of a throttled point were excluded, and which ones its median is of; empty for any other point."""
    if measurement.stop_reason != "throttled":
        return ""
    aside, by = len(measurement.throttled_us), ", ".join(sorted(measurement.throttled_by))
    taken = aside + (measurement.num_samples if measurement.only_unthrottled else measurement.num_samples - aside)
    median_of = f"the other {measurement.num_samples}" if measurement.only_unthrottled else "all of them"
    return f"throttled: {aside} of {taken} samples were taken while the clock was throttled ({by}); the median is of {median_of}"


def decided_note(by: PreparedBackend | None) -> str:
    """Why a time is rough; empty for one of full precision."""
    return (
        "" if by is None else f"decided: over {WITHIN - 1:.0%} slower than {by.task.point.backend} for certain; its time is rough"
    )


def _shared(row: Row) -> str:
    return f"shared: other processes on the device: {row['other_processes']}" if row["other_processes"] else ""


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

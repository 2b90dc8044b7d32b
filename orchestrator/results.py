"""A measurement as columns: what the samples say, how far they are from what the device can do, and what to know of them."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict

from kernels.ceilings import Ceilings
from kernels.device import Device
from kernels.problem import Problem
from kernels.stats import summarize
from kernels.timing import Measurement
from orchestrator.row import Row

# A rate so far above a measured ceiling is no rate: the ceiling's own samples spread by about half of it.
POSSIBLE = 1.02


def time_columns(measurement: Measurement) -> Row:
    """The summary, the samples themselves, and the device's clocks, heat and power while they were taken."""
    readings, known = measurement.readings, [mhz for mhz in measurement.mhz if not math.isnan(mhz)]
    columns: Row = {
        **asdict(summarize(measurement.blocks_us)),
        "samples_us": [sample for block in measurement.blocks_us for sample in block],
        "samples_mhz": [None if math.isnan(mhz) else round(mhz) for mhz in measurement.mhz] if known else [],
        "block_sizes": [len(block) for block in measurement.blocks_us],
        "set_aside_us": measurement.set_aside_us,
        "num_set_aside": len(measurement.set_aside_us),
        "stop_reason": measurement.stop_reason,
    }
    if readings:
        columns |= {
            "sm_clock_mhz": round(statistics.median(known or [r.sm_clock_mhz for r in readings])),
            "mem_clock_mhz": int(statistics.median(r.mem_clock_mhz for r in readings)),
            "temperature_c": max(r.temperature_c for r in readings),
            "power_w": max(r.power_w for r in readings),
            "throttle_reasons": ", ".join(sorted(measurement.held_down_by)) or "none",
        }
    return columns


def rate_columns(problem: Problem, median_us: float, compute_dtype: str, device: Device, ceilings: Ceilings | None) -> Row:
    """Rates of the median time, and its distance to the datasheet's and to the measured ceilings.

    `bound` names the ceiling that binds: the largest of the times that memory, arithmetic and one launch would take.
    `kv_read_amplification` is how often the memory could have delivered the KV cache in the time of a memory-bound point: 1 is one
    read at the ceiling, and a kernel that reads the cache anew for each draft token comes out near `s_qo`.
    """
    seconds = median_us / 1e6
    columns: Row = {"tflops": problem.flops / seconds / 1e12, "tb_per_sec": problem.bytes / seconds / 1e12}
    if device.kind == "cuda" and device.source:
        datasheet = least_seconds(problem, device.tb_per_sec, device.peak_tflops(compute_dtype))
        columns |= {"bound": max(datasheet, key=lambda k: datasheet[k]), "frac_of_datasheet": max(datasheet.values()) / seconds}
    if ceilings is None:
        return columns
    times = least_seconds(problem, ceilings.tb_per_sec, ceilings.peak_tflops(compute_dtype))
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


def least_seconds(problem: Problem, tb_per_sec: float, tflops: float) -> dict[str, float]:
    """The time that memory and arithmetic take at least, at these rates."""
    return {"memory": problem.bytes / (tb_per_sec * 1e12), "compute": problem.flops / (tflops * 1e12)}


def caveats(row: Row, measurement: Measurement) -> str:
    """What a reader of an `ok` row must know of its time; nothing where nothing is amiss."""
    found = (_impossible(row), held_down(measurement), _shared(row))
    return " | ".join(filter(None, found))


def held_down(measurement: Measurement) -> str:
    """Of a point that waited for its clock in vain: how many samples that cost, and what its median is of; else nothing."""
    if measurement.stop_reason != "throttled":
        return ""
    aside, by = len(measurement.set_aside_us), ", ".join(sorted(measurement.held_down_by))
    taken = aside + (measurement.num_samples if measurement.of_free_clock else measurement.num_samples - aside)
    median_of = f"the other {measurement.num_samples}" if measurement.of_free_clock else "all of them"
    return f"throttled: {aside} of {taken} samples were taken while the clock was held down ({by}); the median is of {median_of}"


def _shared(row: Row) -> str:
    return f"shared: other processes on the device: {row['other_processes']}" if row["other_processes"] else ""


def _impossible(row: Row) -> str:
    """A time that cannot be true: below what memory, arithmetic or one launch take at the measured ceilings, or at the datasheet's
    where none were measured. A warm L2 that holds the whole problem is faster than memory."""
    in_cache = row["l2"] == "warm" and (row["working_set_over_l2"] or 1) < 1
    for rate, peak in (("tb_per_sec", "peak_tb_per_sec"), ("tflops", "peak_tflops")):
        reached, ceiling = row[rate], row.get(peak)
        if ceiling and reached > POSSIBLE * ceiling and not (in_cache and rate == "tb_per_sec"):
            return f"impossible: {rate} {reached:.4g} is above this device's measured ceiling of {ceiling:.4g}"
    least_us = row.get("launch_us")
    if least_us and row["median_us"] * POSSIBLE < least_us:
        return f"impossible: {row['median_us']:.3g} µs is less than the {least_us:.3g} µs of a launch that does nothing"
    fraction = row.get("frac_of_datasheet") or 0.0
    if row.get("peak_tb_per_sec") is None and fraction > POSSIBLE and not in_cache:
        return f"impossible: {fraction:.3g} of what the device's datasheet allows"
    return ""

"""Rates and what binds them, from figures worked out by hand; what a reader must know."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from kernels.device import Device
from kernels.problem import Problem
from kernels.timing.ceilings import Ceilings
from kernels.timing.nvml import Telemetry
from kernels.timing.series import Measurement
from orchestrator.machines import cpu
from orchestrator.worker.measured_row import caveats, own_us, rate_columns, throttled_note, time_columns

GPU = Device(name="x", kind="cuda", memory_bytes=1, tb_per_sec=4.0, tflops={"fp32": 50.0, "bf16": 1000.0}, source="datasheet")
CEILINGS = Ceilings(
    tb_per_sec=3.0,
    copy_tb_per_sec=2.5,
    tflops={"fp32": 40.0, "bf16": 800.0},
    launch_us=2.0,
    call_launch_us=3.0,
    call_launch_spread_us=0.3,
    reached_by={},
)
SHAPE = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128, "page_size": 64}


def measurement(**keys: object) -> Measurement:
    quiet = Measurement([[10.0] * 10, [12.0] * 10], [math.nan] * 20, "ci95", [], True, frozenset(), [], 0.1)
    return replace(quiet, **keys)  # type: ignore[arg-type]


def test_a_decode_is_bound_by_memory_and_reads_its_cache_so_often():
    p = Problem.model_validate({**SHAPE, "batch_size": 1, "s_qo": 1, "s_kv": 131072})
    kv = 131072 * 8 * 256 * 2
    columns = rate_columns(p, 300.0, "bf16", GPU, CEILINGS)

    assert columns["bound"] == "memory"
    assert columns["tb_per_sec"] == pytest.approx((kv + 2 * 64 * 128 * 2) / 300e-6 / 1e12)
    assert columns["frac_of_peak"] == pytest.approx(columns["tb_per_sec"] / 3.0)
    assert columns["frac_of_datasheet"] == pytest.approx(columns["tb_per_sec"] / 4.0)
    assert columns["kv_read_amplification"] == pytest.approx(300e-6 * 3e12 / kv)
    assert (columns["peak_tb_per_sec"], columns["peak_tflops"]) == (3.0, 800.0)


def test_a_prompt_is_bound_by_arithmetic_and_a_tiny_problem_by_its_launch():
    prompt = Problem.model_validate({**SHAPE, "routine": "paged_prefill", "batch_size": 1, "s_qo": 8192, "s_kv": 8192})
    columns = rate_columns(prompt, 2000.0, "bf16", GPU, CEILINGS)
    tiny = rate_columns(Problem.model_validate({**SHAPE, "batch_size": 1, "s_qo": 1, "s_kv": 64}), 4.0, "bf16", GPU, CEILINGS)

    assert (columns["bound"], columns["kv_read_amplification"]) == ("compute", None)
    assert columns["frac_of_peak"] == pytest.approx(columns["tflops"] / 800)
    assert (tiny["bound"], tiny["frac_of_peak"]) == ("launch", pytest.approx(0.5))


def test_nothing_is_said_of_a_device_without_a_datasheet_or_ceilings(problem: Callable[..., Problem]):
    columns = rate_columns(problem(), 10.0, "bf16", cpu(), None)

    assert set(columns) == {"tflops", "tb_per_sec"}


def row_of(**keys: object) -> dict[str, object]:
    clean = {"tb_per_sec": 2.9, "peak_tb_per_sec": 3.0, "tflops": 1.0, "peak_tflops": 800.0, "median_us": 9.0, "launch_us": 2.0}
    return {**clean, "l2": "cold", "working_set_over_l2": 5.0, "other_processes": None, **keys}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, ""),
        ({"tb_per_sec": 3.05}, ""),  # within the spread of the ceiling itself
        ({"tb_per_sec": 3.2}, "impossible: tb_per_sec 3.2 is above this device's measured ceiling of 3"),
        ({"tflops": 900.0}, "impossible: tflops 900 is above"),
        ({"tb_per_sec": 9.0, "l2": "warm", "working_set_over_l2": 0.5}, ""),
        ({"tb_per_sec": 9.0, "l2": "warm", "working_set_over_l2": 2.0}, "impossible"),
        ({"median_us": 1.5}, "impossible: 1.5 µs is less than the 2 µs of a launch that does nothing"),
        ({"peak_tb_per_sec": None, "peak_tflops": None, "launch_us": None, "tb_per_sec": 9e9}, ""),  # a CPU
        (
            {"peak_tb_per_sec": None, "peak_tflops": None, "launch_us": None, "frac_of_datasheet": 1.2},
            "impossible: 1.2 of what the device's datasheet allows",
        ),
        ({"other_processes": "71 (python)"}, "shared: other processes on the device: 71 (python)"),
    ],
)
def test_what_is_amiss_is_said(keys: dict[str, object], words: str):
    said = caveats(row_of(**keys), measurement())

    assert said.startswith(words) if words else said == ""


def test_a_throttled_point_says_how_many_samples_were_excluded():
    aside = {"stop_reason": "throttled", "throttled_by": frozenset({"SwPowerCap"}), "throttled_us": [15.0] * 14}
    some = throttled_note(measurement(**aside))
    none = throttled_note(measurement(**aside | {"only_unthrottled": False}))

    words = "samples were taken while the clock was throttled (SwPowerCap); the median is of"
    assert some == f"throttled: 14 of 34 {words} the other 20"
    assert none == f"throttled: 14 of 20 {words} all of them"
    assert throttled_note(measurement(throttled_us=[15.0])) == ""


def test_the_clock_s_readings_become_columns():
    seen = [Telemetry(1980, 3201, 41, 500.0), Telemetry(1600, 3201, 43, 690.0), Telemetry(1980, 3201, 42, 600.0)]
    known: dict[str, object] = {"throttled_us": [15.0] * 10, "throttled_by": frozenset({"SwPowerCap"}), "telemetry": seen}
    columns = time_columns(measurement(**known))

    assert (columns["sm_clock_mhz"], columns["mem_clock_mhz"], columns["temperature_c"], columns["power_w"]) == (
        1980,
        3201,
        43,
        690.0,
    )
    assert columns["throttle_reasons"] == "SwPowerCap"
    assert (columns["median_us"], columns["num_samples"], columns["num_set_aside"], columns["block_sizes"]) == (
        11,
        20,
        10,
        [10, 10],
    )
    assert time_columns(measurement(**known, mhz=[1931.6] * 20))["sm_clock_mhz"] == 1932
    half = time_columns(measurement(mhz=[1900.4] * 10 + [math.nan] * 10))
    assert half["samples_mhz"] == [1900] * 10 + [None] * 10
    assert time_columns(measurement())["samples_mhz"] == []
    assert "sm_clock_mhz" not in time_columns(measurement())


@pytest.mark.parametrize(
    ("keys", "ceilings", "us"),
    [
        ({}, CEILINGS, 17.0),
        ({"median_us": 2.5}, CEILINGS, 2.5),  # shorter than what a launch adds
        ({"timer": "cupti_graph_kernels"}, CEILINGS, 20.0),
        ({"timer": "perf_counter"}, None, 20.0),
        ({"in_step_us": 15.0}, CEILINGS, 15.0),
        ({}, CEILINGS.model_copy(update={"call_launch_us": None}), None),  # CUPTI did not answer
    ],
)
def test_the_own_time_is_without_the_launch_of_a_real_call(keys: dict[str, object], ceilings: Ceilings | None, us: float | None):
    assert own_us({"median_us": 20.0, "timer": "cuda_graph_events", **keys}, ceilings) == us

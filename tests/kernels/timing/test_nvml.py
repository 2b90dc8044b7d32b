"""What the monitor makes of NVML's answers, and of answers that do not come. No GPU: NVML's functions are replaced."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from kernels.timing.nvml import NvmlMonitor, reasons


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What each function answers; an exception is raised."""
    answers: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByUUID": "handle",
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetDefaultApplicationsClock": 1980,
        "nvmlDeviceGetClockInfo": 1900,
        "nvmlDeviceGetCurrentClocksEventReasons": 0,
        "nvmlDeviceGetTemperature": 40,
        "nvmlDeviceGetPowerUsage": 512_000,
        "nvmlDeviceGetTotalEnergyConsumption": 123_456_789,
        "nvmlDeviceGetEccMode": [1, 1],
        "nvmlDeviceGetMigMode": pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED),
        "nvmlDeviceGetPersistenceMode": 0,
    }

    def answering(name: str) -> Any:
        def answer(*_asked: object) -> Any:
            if isinstance(answers[name], Exception):
                raise answers[name]
            return answers[name]

        return answer

    for name in answers:
        monkeypatch.setattr(pynvml, name, answering(name))
    return answers


def test_telemetry_names_what_throttles_the_device(nvml: dict[str, Any]):
    monitor = NvmlMonitor("GPU-x")
    assert monitor.read()[0].throttled_by == frozenset()

    nvml["nvmlDeviceGetCurrentClocksEventReasons"] = pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonGpuIdle
    (telemetry,) = monitor.read()
    assert (telemetry.throttled_by, telemetry.power_w) == (frozenset({"SwPowerCap"}), 512.0)

    nvml["nvmlDeviceGetCurrentClocksEventReasons"], nvml["nvmlDeviceGetClockInfo"] = 0, 1400
    assert monitor.read()[0].throttled_by == {"SM clock under 75% of 1980 MHz"}


def test_energy_is_in_millijoules_and_none_where_it_is_not_counted(nvml: dict[str, Any]):
    assert NvmlMonitor("GPU-x").energy_mj() == 123_456_789

    nvml["nvmlDeviceGetTotalEnergyConsumption"] = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert NvmlMonitor("GPU-x").energy_mj() is None


@pytest.mark.parametrize("harmless", ["GpuIdle", "ApplicationsClocksSetting", "UserDefinedClocks"])
def test_a_clock_that_somebody_chose_is_not_throttled(nvml: dict[str, Any], harmless: str):
    nvml["nvmlDeviceGetCurrentClocksEventReasons"] = getattr(pynvml, f"nvmlClocksEventReason{harmless}")

    assert NvmlMonitor("GPU-x").read()[0].throttled_by == frozenset()


def test_modes_that_the_driver_does_not_know_are_question_marks(nvml: dict[str, Any]):
    assert NvmlMonitor("GPU-x").modes() == "ecc=on mig=? persistence=off"


def test_a_driver_that_stops_answering_gives_no_telemetry(nvml: dict[str, Any]):
    monitor = NvmlMonitor("GPU-x")
    nvml["nvmlDeviceGetTemperature"] = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    assert monitor.read() == []


def test_reasons_are_named_as_nvml_names_them():
    assert reasons(pynvml.nvmlClocksThrottleReasonHwThermalSlowdown) == {"HwThermalSlowdown"}
    assert reasons(0) == frozenset()

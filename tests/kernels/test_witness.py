"""What NVML is asked, and what becomes of an answer that it does not give. No GPU: NVML's own functions are put in its place."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from kernels.witness import Nvml, reasons


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Answers by function; an exception is raised."""
    answers: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByUUID": "handle",
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetDefaultApplicationsClock": 1980,
        "nvmlDeviceGetClockInfo": 1900,
        "nvmlDeviceGetCurrentClocksEventReasons": 0,
        "nvmlDeviceGetTemperature": 40,
        "nvmlDeviceGetPowerUsage": 512_000,
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


def test_a_reading_names_what_holds_the_clock_down(nvml: dict[str, Any]):
    witness = Nvml("GPU-x")
    assert witness.read()[0].held_down_by == frozenset()

    nvml["nvmlDeviceGetCurrentClocksEventReasons"] = pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonGpuIdle
    (reading,) = witness.read()
    assert (reading.held_down_by, reading.power_w) == (frozenset({"SwPowerCap"}), 512.0)

    nvml["nvmlDeviceGetCurrentClocksEventReasons"], nvml["nvmlDeviceGetClockInfo"] = 0, 1400
    assert witness.read()[0].held_down_by == {"SM clock under 75% of 1980 MHz"}


@pytest.mark.parametrize("harmless", ["GpuIdle", "ApplicationsClocksSetting", "UserDefinedClocks"])
def test_a_clock_that_somebody_chose_is_not_held_down(nvml: dict[str, Any], harmless: str):
    nvml["nvmlDeviceGetCurrentClocksEventReasons"] = getattr(pynvml, f"nvmlClocksEventReason{harmless}")

    assert Nvml("GPU-x").read()[0].held_down_by == frozenset()


def test_modes_that_the_driver_does_not_tell_are_a_question_mark(nvml: dict[str, Any]):
    assert Nvml("GPU-x").modes() == "ecc=on mig=? persistence=off"


def test_a_driver_that_stops_answering_leaves_no_reading(nvml: dict[str, Any]):
    witness = Nvml("GPU-x")
    nvml["nvmlDeviceGetTemperature"] = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    assert witness.read() == []


def test_reasons_are_named_as_nvml_names_them():
    assert reasons(pynvml.nvmlClocksThrottleReasonHwThermalSlowdown) == {"HwThermalSlowdown"}
    assert reasons(0) == frozenset()

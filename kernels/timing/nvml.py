"""Telemetry of a device while it is measured: clocks, temperature, power, causes of throttling, other processes on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

# NVML's clock event reasons that are no throttling: an idle GPU, and a clock that somebody chose, which has two names.
HARMLESS = frozenset({"GpuIdle", "ApplicationsClocksSetting", "UserDefinedClocks"})
MIN_DEFAULT_FRACTION = 0.75  # of the default SM clock, below which it counts as throttled; nvbench's threshold


@dataclass(frozen=True)
class Telemetry:
    """The state of the device at one moment. MHz, degrees Celsius, watts. `throttled_by` is empty if it is unthrottled."""

    sm_clock_mhz: int
    mem_clock_mhz: int
    temperature_c: int
    power_w: float
    throttled_by: frozenset[str] = frozenset()


class DeviceMonitor:
    """Null monitor, for CPUs and for GPUs that NVML does not know."""

    def read(self) -> list[Telemetry]:
        """The state of the device, or an empty list if it is not known."""
        return []

    def throttled_by(self) -> frozenset[str]:
        """What throttles the device now; empty if nothing does or if it is not known."""
        return frozenset()

    def energy_mj(self) -> int | None:
        """Energy since the driver was loaded, in mJ; None if it is not counted."""
        return None


class NvmlMonitor(DeviceMonitor):
    """Asks NVML about one GPU. Raises pynvml.NVMLError if NVML does not know it, as inside some containers."""

    def __init__(self, uuid: str) -> None:
        import pynvml

        self._nvml: Any = pynvml
        pynvml.nvmlInit()
        self._handle: Any = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self._others_at_start = set(self._processes())
        self._own = {os.getpid()}
        # MHz: the highest clock if the driver says no default, 0 if it says neither.
        clocks = (self._answer(name, 0, pynvml.NVML_CLOCK_SM) for name in ("DefaultApplicationsClock", "MaxClockInfo"))
        self._default_mhz = next(filter(None, clocks), 0)

    @property
    def driver(self) -> str:
        return str(self._nvml.nvmlSystemGetDriverVersion())

    def _ask(self, name: str, *args: Any) -> Any:
        """What `nvmlDeviceGet<name>` says. Raises pynvml.NVMLError."""
        return getattr(self._nvml, f"nvmlDeviceGet{name}")(self._handle, *args)

    def _answer(self, name: str, otherwise: Any, *args: Any) -> Any:
        """The same, or `otherwise` if the driver does not say it."""
        try:
            return self._ask(name, *args)
        except self._nvml.NVMLError:
            return otherwise

    def modes(self) -> str:
        """Whether ECC, MIG and persistence mode are on, such as `ecc=on mig=off persistence=on`; `?` if the driver does not say."""
        found = {"ecc": self._answer("EccMode", [2])[0], "mig": self._answer("MigMode", [2])[0]}
        found["persistence"] = self._answer("PersistenceMode", 2)
        return " ".join(f"{name}={('off', 'on', '?')[is_on]}" for name, is_on in found.items())

    def read(self) -> list[Telemetry]:
        nvml = self._nvml
        try:
            sm = self._ask("ClockInfo", nvml.NVML_CLOCK_SM)
            causes = self._causes()
            if self._default_mhz and sm < MIN_DEFAULT_FRACTION * self._default_mhz:
                causes |= {f"SM clock under {MIN_DEFAULT_FRACTION:.0%} of {self._default_mhz} MHz"}
            heat = self._ask("Temperature", nvml.NVML_TEMPERATURE_GPU)
            return [Telemetry(sm, self._ask("ClockInfo", nvml.NVML_CLOCK_MEM), heat, self._ask("PowerUsage") / 1000, causes)]
        except nvml.NVMLError:
            return []

    def throttled_by(self) -> frozenset[str]:
        try:
            return self._causes()
        except self._nvml.NVMLError:
            return frozenset()

    def energy_mj(self) -> int | None:
        found: int | None = self._answer("TotalEnergyConsumption", None)  # None of a GPU older than Volta, of a MIG slice
        return found

    def _causes(self) -> frozenset[str]:
        """Takes microseconds, and all of `read` a tenth of a millisecond. Raises pynvml.NVMLError."""
        return reasons(self._ask("CurrentClocksEventReasons")) - HARMLESS

    def note_own_processes(self) -> None:
        """Call once this process computes on the device: inside a container, NVML may know it by another process id."""
        self._own |= set(self._processes()) - self._others_at_start

    def other_processes(self) -> list[str]:
        """Other processes on the device, each as process id and name."""
        return [f"{pid} ({_name_of(pid)})" for pid in self._processes() if pid not in self._own]

    def _processes(self) -> list[int]:
        return sorted(process.pid for process in self._answer("ComputeRunningProcesses", []))


@cache
def _bits() -> dict[str, int]:
    import pynvml

    prefix = "nvmlClocksEventReason"
    named = {name.removeprefix(prefix): getattr(pynvml, name) for name in dir(pynvml) if name.startswith(prefix)}
    return {name: bit for name, bit in named.items() if isinstance(bit, int) and bit and bit & (bit - 1) == 0}


def reasons(mask: int) -> frozenset[str]:
    """Names of the clock event reasons whose bits are set, without NVML's prefix: `SwPowerCap`, `HwThermalSlowdown`."""
    return frozenset(name for name, bit in _bits().items() if mask & bit)


def _name_of(pid: int) -> str:
    import pynvml

    try:
        return str(pynvml.nvmlSystemGetProcessName(pid))
    except pynvml.NVMLError:
        return "name unknown"

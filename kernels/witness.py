"""What a device says of itself while it is measured: clocks, heat, power, what holds its clock down, who else is on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

# NVML's clock event reasons that hold no clock down: nothing to do, and a clock that somebody chose, which goes by two names.
HARMLESS = frozenset({"GpuIdle", "ApplicationsClocksSetting", "UserDefinedClocks"})
LEAST_OF_DEFAULT = 0.75  # of the default SM clock; nvbench's threshold


@dataclass(frozen=True)
class Reading:
    """One look at the device. MHz, degrees Celsius, watts; `held_down_by` is empty where the clock is left alone."""

    sm_clock_mhz: int
    mem_clock_mhz: int
    temperature_c: int
    power_w: float
    held_down_by: frozenset[str] = frozenset()


class Witness:
    """Knows nothing: for a CPU, and for a GPU that NVML does not know."""

    def read(self) -> list[Reading]:
        """One reading, or none where nothing can be known."""
        return []

    def held_down_by(self) -> frozenset[str]:
        """What holds the clock down now; nothing where it is left alone, and where nothing can be known."""
        return frozenset()


class Nvml(Witness):
    """NVML's answers for one GPU. Raises pynvml.NVMLError where NVML does not know it, as inside some containers."""

    def __init__(self, uuid: str) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._handle: Any = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self._strangers = set(self._processes())
        self._own = {os.getpid()}
        self._default_mhz = self._default_sm_clock()

    @property
    def driver(self) -> str:
        import pynvml

        return str(pynvml.nvmlSystemGetDriverVersion())

    def modes(self) -> str:
        """Whether ECC, MIG and persistence mode are on: `ecc=on mig=off persistence=on`, `?` where the driver does not tell."""
        import pynvml as nvml

        asks = {
            "ecc": lambda: nvml.nvmlDeviceGetEccMode(self._handle)[0],
            "mig": lambda: nvml.nvmlDeviceGetMigMode(self._handle)[0],
            "persistence": lambda: nvml.nvmlDeviceGetPersistenceMode(self._handle),
        }
        return " ".join(f"{name}={_on_or_off(ask)}" for name, ask in asks.items())

    def read(self) -> list[Reading]:
        import pynvml as nvml

        try:
            sm = nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)
            causes = self._causes()
            if self._default_mhz and sm < LEAST_OF_DEFAULT * self._default_mhz:
                causes |= {f"SM clock under {LEAST_OF_DEFAULT:.0%} of {self._default_mhz} MHz"}
            memory = nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_MEM)
            heat = nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU)
            return [Reading(sm, memory, heat, nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000, causes)]
        except nvml.NVMLError:
            return []

    def held_down_by(self) -> frozenset[str]:
        import pynvml

        try:
            return self._causes()
        except pynvml.NVMLError:
            return frozenset()

    def _causes(self) -> frozenset[str]:
        """Takes microseconds, where a whole reading takes a tenth of a millisecond. Raises pynvml.NVMLError."""
        import pynvml

        return reasons(pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)) - HARMLESS

    def learn_own(self) -> None:
        """Call once this process computes on the device: inside a container NVML may know it by another number."""
        self._own |= set(self._processes()) - self._strangers

    def others(self) -> list[str]:
        """Processes on the device that are not this one, by number and name."""
        return [f"{pid} ({_name_of(pid)})" for pid in self._processes() if pid not in self._own]

    def _processes(self) -> list[int]:
        import pynvml

        try:
            return sorted(process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        except pynvml.NVMLError:
            return []

    def _default_sm_clock(self) -> int:
        """MHz; the highest where the driver tells no default, 0 where it tells neither."""
        import pynvml

        for ask in (pynvml.nvmlDeviceGetDefaultApplicationsClock, pynvml.nvmlDeviceGetMaxClockInfo):
            try:
                return int(ask(self._handle, pynvml.NVML_CLOCK_SM))
            except pynvml.NVMLError:
                continue
        return 0


def _on_or_off(ask: Callable[[], int]) -> str:
    import pynvml

    try:
        return "on" if ask() else "off"
    except pynvml.NVMLError:
        return "?"


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

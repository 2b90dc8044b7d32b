"""What the device says of itself while points run: who it is, its clocks, its heat. NVML's answers; null where it has none."""

from __future__ import annotations

import platform
from typing import Any

from kernels.device import Device
from orchestrator.row import Row


class DeviceWitness:
    """Reads the device that this process computes on."""

    def __init__(self, cuda: bool) -> None:
        self._handle: Any = None
        self._identity: Row = {"host": platform.node()}
        if cuda:
            self._open()

    def _open(self) -> None:
        import pynvml
        import torch

        properties = torch.cuda.get_device_properties(0)
        uuid = f"GPU-{properties.uuid}"
        self._identity |= {"device_uuid": uuid, "cuda": torch.version.cuda}
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self._identity["driver"] = pynvml.nvmlSystemGetDriverVersion()
        except pynvml.NVMLError:  # inside some containers and MIG slices NVML does not know the device
            self._handle = None

    def identity(self, device: Device) -> Row:
        """device_name, device_uuid, compute_capability, driver, cuda, host."""
        capability = ".".join(map(str, device.compute_capability)) if device.compute_capability else None
        return self._identity | {"device_name": device.name, "compute_capability": capability}

    def state(self) -> Row:
        """Clocks in MHz, degrees Celsius, watts, and what holds the clock down, now."""
        if self._handle is None:
            return {}
        import pynvml

        try:
            return {
                "sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM),
                "mem_clock_mhz": pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_MEM),
                "temperature_c": pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU),
                "power_w": pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1000,
                "throttle_reasons": _throttle_reasons(pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)),
            }
        except pynvml.NVMLError:
            return {}


def _throttle_reasons(mask: int) -> str:
    """The names of the bits that are set, `none` where there are none."""
    import pynvml

    prefix = "nvmlClocksEventReason"
    bits = {name.removeprefix(prefix): getattr(pynvml, name) for name in dir(pynvml) if name.startswith(prefix)}
    named = [name for name, bit in sorted(bits.items()) if isinstance(bit, int) and bit and bit & (bit - 1) == 0 and mask & bit]
    return ", ".join(named) or "none"

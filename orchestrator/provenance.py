"""Who measured a row: the device's identity, its driver, its measured ceilings, and who else computed on it."""

from __future__ import annotations

import platform

from kernels.ceilings import Ceilings
from kernels.device import Device
from kernels.pace import Pace
from kernels.witness import Nvml, Witness
from orchestrator import calibration
from orchestrator.row import Row


class Provenance:
    """Of the device that this process computes on."""

    def __init__(self, device: Device, recalibrate: bool = False) -> None:
        self.device = device
        self.pace = Pace(Witness())
        self.ceilings: Ceilings | None = None
        self.l2_bytes: int | None = None
        self._nvml: Nvml | None = None
        capability = ".".join(map(str, device.compute_capability)) if device.compute_capability else None
        self.identity: Row = {"host": platform.node(), "device_name": device.name, "compute_capability": capability}
        if device.kind == "cuda":
            self._open(recalibrate)

    def _open(self, recalibrate: bool) -> None:
        import pynvml
        import torch

        properties = torch.cuda.get_device_properties(0)
        uuid = f"GPU-{properties.uuid}"
        self.l2_bytes = int(properties.L2_cache_size)
        self.identity |= {"device_uuid": uuid}
        driver = "unknown"
        try:
            self._nvml = Nvml(uuid)
            self.pace = Pace(self._nvml)
            self.identity["driver"] = driver = self._nvml.driver
            self.identity["device_modes"] = self._nvml.modes()
        except pynvml.NVMLError:  # inside some containers and MIG slices NVML does not know the device
            self._nvml = None
        torch.zeros(1, device="cuda")
        if self._nvml:
            self._nvml.learn_own()
        known = None if recalibrate else calibration.cached(uuid, driver)
        self.ceilings = known or calibration.calibrate(uuid, driver, alone=not self.others())

    def others(self) -> list[str]:
        """Other processes on the device, where NVML knows."""
        return self._nvml.others() if self._nvml else []

"""Where a row was measured: device, driver, other processes, and ceilings, cached by device, driver and torch version."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError

from kernels.compile.module_cache import cache_folder
from kernels.device import Device
from kernels.lazy import torch
from kernels.timing.ceilings import Ceilings, measure
from kernels.timing.nvml import DeviceMonitor, NvmlMonitor
from kernels.timing.pacing import Pacer
from orchestrator.storage.row import Row
from orchestrator.untrusted.files import write_whole

FOLDER = "attention-orchestrator/ceilings"


class Provenance:
    """Facts of this process's device, fewer without NVML. `pacer` sets its duty cycle in sampling; `l2_bytes` is its L2."""

    def __init__(self, device: Device, recalibrate: bool = False) -> None:
        self.device = device
        self.pacer = Pacer(DeviceMonitor())
        self.ceilings: Ceilings | None = None
        self.l2_bytes: int | None = None
        self._nvml: NvmlMonitor | None = None
        capability = ".".join(map(str, device.compute_capability)) if device.compute_capability else None
        self.identity: Row = {"host": platform.node(), "device_name": device.name, "compute_capability": capability}
        if device.kind == "cuda":
            self._open(recalibrate)

    def _open(self, recalibrate: bool) -> None:
        import pynvml

        properties = torch.cuda.get_device_properties(0)
        uuid = f"GPU-{properties.uuid}"
        self.l2_bytes = int(properties.L2_cache_size)
        self.identity |= {"device_uuid": uuid}
        driver = "unknown"
        try:
            self._nvml = NvmlMonitor(uuid)
            self.pacer = Pacer(self._nvml)
            self.identity["driver"] = driver = self._nvml.driver
            self.identity["device_modes"] = self._nvml.modes()
        except pynvml.NVMLError:  # inside some containers and MIG slices NVML does not know the device
            self._nvml = None
        torch.zeros(1, device="cuda")
        if self._nvml:
            self._nvml.note_own_processes()
        known = None if recalibrate else cached(uuid, driver)
        self.ceilings = known or calibrate(uuid, driver, keep=not self.other_processes())

    def note_own_processes(self) -> None:
        """Call once this worker's environments compute on the device: their processes are no others."""
        if self._nvml:
            self._nvml.note_own_processes()

    def other_processes(self) -> list[str]:
        """Other processes on the device, as far as NVML knows."""
        return self._nvml.other_processes() if self._nvml else []


def cached(uuid: str, driver: str) -> Ceilings | None:
    """What was measured before on this device with this driver; None if nothing was, or if it cannot be read."""
    try:
        return Ceilings.model_validate_json(_file(uuid, driver).read_text())
    except (OSError, ValidationError):
        return None


def calibrate(uuid: str, driver: str, keep: bool = True) -> Ceilings:
    """Measures the current CUDA device. With `keep`, the result is cached if the cache folder can be written."""
    found = measure()
    if keep:
        with suppress(OSError):
            (file := _file(uuid, driver)).parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, found.model_dump_json(indent=1).encode())
    return found


def _file(uuid: str, driver: str) -> Path:
    return cache_folder(FOLDER) / f"{uuid}-{driver}-torch{version('torch')}.json"

"""What a machine has: its devices, its CPU cores and compiler, its library versions. Imports neither torch nor Ray."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import yaml

import conf
from kernels.compile.module_cache import cuda_of_torch
from kernels.contract.toolchain import find_nvcc
from kernels.device import Device
from orchestrator import libraries
from orchestrator.errors import UserError

# Conservative rates for GPUs that conf/device does not know, so that no point is skipped wrongly.
UNKNOWN_TB_PER_SEC, UNKNOWN_TFLOPS = 0.5, {"fp32": 10.0, "fp16": 80.0, "bf16": 80.0}


@dataclass(frozen=True)
class Machine:
    """A node as it described itself: `devices` of a worker each, `cores` for compilers, `isa` of libraries, such as x86_64."""

    host: str
    devices: tuple[Device, ...]
    versions: dict[str, str | None]
    node_id: str = ""
    cores: int = 1
    has_nvcc: bool = False
    isa: str = ""

    def with_gpus(self, count: int) -> Machine:
        """The same machine with at most `count` of its GPUs, or with its CPU alone if that leaves none."""
        gpus = tuple(device for device in self.devices if device.kind == "cuda")[:count]
        return replace(self, devices=gpus or (cpu(),))


def mixed(machine: Machine) -> str:
    """Why a machine with GPUs of several kinds cannot be used: a worker may get any of them. Empty if all are of one kind."""
    kinds = sorted({device.name for device in machine.devices})
    if len(kinds) < 2:
        return ""
    return (
        f"{machine.host} has GPUs of several kinds ({', '.join(kinds)}), and Ray would give a worker any of them; "
        "show it one kind, by CUDA_VISIBLE_DEVICES for cluster=local, by a container for a node of another Ray"
    )


def describe(node_id: str = "", names: tuple[str, ...] = ()) -> Machine:
    """This machine. Without a CUDA device it has one worker, on its CPU. `names` are libraries that plugins need."""
    devices, cores = tuple(_cuda_devices()) or (cpu(),), len(os.sched_getaffinity(0))
    compiles = find_nvcc() is not None
    return Machine(platform.node(), devices, versions(names), node_id, cores, compiles, isa=platform.machine())


def cpu() -> Device:
    """This machine's CPU with the memory it has."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return known_devices()["cpu"].model_copy(update={"memory_bytes": memory})


@cache
def known_devices() -> dict[str, Device]:
    folder = files(conf).joinpath("device")
    return {
        entry.name.removesuffix(".yaml"): Device.model_validate(yaml.safe_load(entry.read_text()))
        for entry in sorted(folder.iterdir(), key=lambda e: e.name)
        if entry.name.endswith(".yaml")
    }


@cache
def versions(names: tuple[str, ...] = ()) -> dict[str, str | None]:
    """Versions here by a row's columns and by distributions (kernel libraries, `names`), of metadata: nothing is imported."""
    # Columns of a row, by which people ask. `libraries` names every kernel library, FlashInfer among them.
    columns = {"torch_version": "torch", "flashinfer_version": "flashinfer-python", "ray_version": "ray"}
    of_columns = {column: libraries.installed(package) for column, package in columns.items()}
    return {**of_columns, "cuda": cuda_of_torch(), **libraries.versions(names)}


def differences(planned: Mapping[str, object], found: Mapping[str, object]) -> str:
    """How `found` differs from what was planned, in words; empty if it does not."""
    other = [name for name, version in planned.items() if found.get(name) != version]
    return ", ".join(f"{name}={found.get(name)} where the plan has {planned[name]}" for name in other)


def require_same_versions(found: Sequence[Mapping[str, str | None]]) -> Mapping[str, str | None]:
    """The library versions that all machines of a run share.

    Raises UserError if machines differ, or if they have another version of a kernel library than this machine, by whose rules the
    plan was made: their rows could not be compared. PyTorch may differ: no rule of a kernel library is read from it.
    """
    rules = {name: of for name, of in libraries.versions().items() if name != "torch" and of and found[0].get(name)}
    for planned, other in ((rules, found[0]), *((found[0], other) for other in found[1:])):
        if difference := differences(planned, other):
            raise UserError(
                f"cluster: a machine has {difference}; allowed: the same everywhere; "
                f"to record them in each row instead, type versions=any"
            )
    return found[0]


def _cuda_devices() -> list[Device]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    visible = _visible(pynvml.nvmlDeviceGetCount())
    return [_cuda_device(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in visible]


def _visible(count: int) -> list[int]:
    """The GPU indices that CUDA_VISIBLE_DEVICES allows. If it names GPUs by UUID, Ray deals with it."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None or not all(part.strip().isdigit() for part in named.split(",") if part.strip()):
        return list(range(count))
    return [int(part) for part in named.split(",") if part.strip() and int(part) < count]


def _cuda_device(handle: object) -> Device:
    import pynvml

    name = pynvml.nvmlDeviceGetName(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total
    for device in known_devices().values():
        if name in device.match:
            return device.model_copy(update={"memory_bytes": memory, "name": name})
    capability = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Device(
        name=name, compute_capability=capability, memory_bytes=memory, tb_per_sec=UNKNOWN_TB_PER_SEC, tflops=UNKNOWN_TFLOPS
    )

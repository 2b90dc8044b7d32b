"""What a machine has: its devices by name and identity, its library versions. Imports neither torch nor Ray."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import yaml

from kernels.build import find_nvcc
from kernels.device import Device
from kernels.modules import cuda_of_torch

# A CUDA device that conf/device does not know is planned for with rates that no point is skipped for in error.
UNKNOWN_TB_PER_SEC, UNKNOWN_FP32_TFLOPS, UNKNOWN_HALF_TFLOPS = 0.5, 10.0, 80.0
ROOT = Path(__file__).resolve().parent.parent
COMMIT_VARIABLE = "ORCHESTRATOR_COMMIT"  # for images that carry the code without its .git


@dataclass(frozen=True)
class Machine:
    """One node as it described itself. `devices` has one entry for each exclusive worker it can hold."""

    host: str
    devices: tuple[Device, ...]
    versions: dict[str, str | None]
    node_id: str = ""
    cores: int = 1  # for compilers
    has_nvcc: bool = False
    isa: str = ""  # what its shared objects are made of, such as x86_64

    def with_gpus(self, count: int) -> Machine:
        """The same machine with at most `count` of its GPUs, or with its CPU alone where that leaves none."""
        gpus = tuple(device for device in self.devices if device.kind == "cuda")[:count]
        return replace(self, devices=gpus or (cpu(),))

    def with_cores(self, count: int) -> Machine:
        """The same machine with `count` of its cores for compilers; one that gives none has no compiler to offer."""
        return replace(self, cores=max(1, count), has_nvcc=self.has_nvcc and count > 0)


def mixed(machine: Machine) -> str:
    """Why a machine cannot be used whose GPUs are of several kinds: a worker gets any of them. Nothing where they are alike."""
    kinds = sorted({device.name for device in machine.devices})
    if len(kinds) < 2:
        return ""
    return (
        f"{machine.host} has GPUs of several kinds ({', '.join(kinds)}), of which Ray gives a worker any; show it one kind, "
        f"by CUDA_VISIBLE_DEVICES for cluster=local, by a container for a node of another Ray"
    )


def describe(node_id: str = "") -> Machine:
    """This machine. A machine without a CUDA device holds one worker, on its CPU."""
    devices = tuple(_cuda_devices()) or (cpu(),)
    return Machine(
        platform.node(),
        devices,
        versions(),
        node_id,
        cores=len(os.sched_getaffinity(0)),
        has_nvcc=find_nvcc() is not None,
        isa=platform.machine(),
    )


def cpu() -> Device:
    """This machine's CPU with the memory it has."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return known_devices()["cpu"].model_copy(update={"memory_bytes": memory})


@cache
def known_devices() -> dict[str, Device]:
    """The devices of conf/device by file name."""
    folder = files("conf").joinpath("device")
    return {
        entry.name.removesuffix(".yaml"): Device.model_validate(yaml.safe_load(entry.read_text()))
        for entry in sorted(folder.iterdir(), key=lambda e: e.name)
        if entry.name.endswith(".yaml")
    }


@cache
def versions() -> dict[str, str | None]:
    """Versions of the libraries on this machine, as a row records them, from package metadata: nothing is imported."""
    columns = {"torch_version": "torch", "flashinfer_version": "flashinfer-python", "ray_version": "ray"}
    return {column: _version(package) for column, package in columns.items()} | {"cuda": cuda_of_torch()}


def differences(planned: Mapping[str, str | None], found: Mapping[str, str | None]) -> str:
    """What of `found` is not as planned, in words; nothing where all is."""
    other = [name for name, version in planned.items() if found.get(name) != version]
    return ", ".join(f"{name}={found.get(name)} where the plan has {planned[name]}" for name in other)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def own_version(plugins: tuple[str, ...] = ()) -> str:
    """This project's version with the git commit it runs from.

    Where files differ from that commit, or adapters come from `plugins`, it ends in a hash of the code that counts: an edited
    backend is another version, and its points run again.
    """
    base, commit = _version("attention-orchestrator") or "unknown", os.environ.get(COMMIT_VARIABLE)
    changed: str | None = None
    if commit is None and (ROOT / ".git").exists():
        commit = (_git("rev-parse", "--short=12", "HEAD") or "").strip() or None
        changed = _git("status", "--porcelain", "--", "kernels", "orchestrator")
    version = f"{base}+g{commit}" if commit else base
    if not changed and not plugins:
        return version
    own = [path for folder in ("kernels", "orchestrator") for path in (ROOT / folder).rglob("*.py")] if changed else []
    specs = [find_spec(plugin) for plugin in plugins]
    files_of_plugins = [Path(spec.origin) for spec in specs if spec and spec.origin]
    code = hashlib.sha256(b"".join(path.read_bytes() for path in [*sorted(own), *files_of_plugins])).hexdigest()[:8]
    return f"{version}{'.dirty' if changed else ''}.{code}"


def _git(*args: str) -> str | None:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _cuda_devices() -> list[Device]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    visible = _visible(pynvml.nvmlDeviceGetCount())
    return [_cuda_device(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in visible]


def _visible(count: int) -> list[int]:
    """Indices that CUDA_VISIBLE_DEVICES leaves; identities given otherwise than by index are left to Ray."""
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
    tflops = {"fp32": UNKNOWN_FP32_TFLOPS, "fp16": UNKNOWN_HALF_TFLOPS, "bf16": UNKNOWN_HALF_TFLOPS}
    return Device(
        name=name,
        compute_capability=pynvml.nvmlDeviceGetCudaComputeCapability(handle),
        memory_bytes=memory,
        tb_per_sec=UNKNOWN_TB_PER_SEC,
        tflops=tflops,
    )

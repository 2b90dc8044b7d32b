"""Compiles the kernel modules of points with the libraries of this environment, whose own adapters say which modules they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from kernels import registry
from kernels.adapter import Module
from kernels.compile import records
from kernels.compile.build import build, builds_at_once, share_cores
from kernels.device import Device
from kernels.problem import Problem

OnBuilt = Callable[[str, float, "str | None", "list[int]"], None]  # module, seconds, the error, and which points need it


def compile_for(points: Sequence[tuple[str, Problem]], device: Device, plugins: tuple[str, ...], on_built: OnBuilt) -> None:
    """Compiles each module of (backend, problem) points once, and keeps it where the workers of this machine look."""
    needed: dict[Module, list[int]] = {}
    for index, (backend, problem) in enumerate(points):
        for module in registry.get_installed(problem.routine, backend, plugins).modules(problem, device):
            needed.setdefault(module, []).append(index)
    cores = len(os.sched_getaffinity(0))
    share_cores(cores)
    with ThreadPoolExecutor(builds_at_once(cores)) as threads:
        for future in as_completed([threads.submit(build, module, device.arch) for module in needed]):
            built, error = future.result(), future.result().error
            if built.library is not None:
                try:
                    records.put(device.arch, built.module, built.library, built.compiled_on, built.sources)
                except OSError as found:
                    error = f"it cannot be kept for the workers: {found}"
            on_built(str(built.module), built.seconds, error, needed[built.module])

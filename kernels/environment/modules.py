"""Compiles the kernel modules of points with the libraries of this environment, whose own adapters say which modules they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernels import registry
from kernels.adapter import Module
from kernels.compile import module_cache, records
from kernels.compile.build import build, builds_at_once, share_cores
from kernels.compile.module_cache import Library
from kernels.device import Device
from kernels.problem import Problem

# What was built: see `_told`. And which points need it.
OnBuilt = Callable[[dict[str, Any], "list[int]"], None]


def compile_for(
    points: Sequence[tuple[str, Problem]],
    device: Device,
    plugins: tuple[str, ...],
    archived: Iterable[Mapping[str, Any]],
    on_built: OnBuilt,
) -> None:
    """Compiles each module of (backend, problem) points once, and keeps it where the workers of this machine look.

    `archived` are modules for this environment that need not be compiled: generator, arguments, name, and the file that holds it.
    """
    needed: dict[Module, list[int]] = {}
    for index, (backend, problem) in enumerate(points):
        for module in registry.get_installed(problem.routine, backend, plugins).modules(problem, device):
            needed.setdefault(module, []).append(index)
    _keep(archived, needed, device.arch)
    cores = len(os.sched_getaffinity(0))
    share_cores(cores)
    with ThreadPoolExecutor(builds_at_once(cores)) as threads:
        for future in as_completed([threads.submit(build, module, device.arch) for module in needed]):
            built = future.result()
            error, file = built.error, None
            if built.library is not None:
                if words := module_cache.other_cuda(built.library, module_cache.cuda_of_torch()):
                    error = f"{words}; give the compiler and its torch one CUDA"
                else:
                    try:
                        records.put(device.arch, built.module, built.library, built.compiled_on, built.sources)
                        file = _file_of(built.module, built.library, device.arch)
                    except OSError as found:
                        error = f"it cannot be kept for the workers: {found}"
            on_built(_told(built.module, built.seconds, error, file), needed[built.module])


def _keep(archived: Iterable[Mapping[str, Any]], needed: Iterable[Module], arch: str) -> None:
    """Puts those modules that are needed where `build` finds them. One that cannot be kept or loaded here is compiled instead."""
    there = {(one["generator"], tuple(one["args"])): one for one in archived}
    for module in needed:
        if (one := there.get((module.generator, module.args))) is not None:
            with suppress(OSError):
                library = Library(one["name"], Path(one["file"]).read_bytes())
                if not module_cache.other_cuda(library, module_cache.cuda_of_torch()):
                    records.put(arch, module, library)


def _file_of(module: Module, library: Library, arch: str) -> Path | None:
    """Where a module is kept; None for one of no known library, which is of no version that an archive could name."""
    toolchain = module.toolchain
    return module_cache.file_in(module_cache.folder_of(arch, toolchain), library.name) if toolchain.library else None


def _told(module: Module, seconds: float, error: str | None, file: Path | None) -> dict[str, Any]:
    """What the worker gets to know of a module, in JSON."""
    about = {"generator": module.generator, "args": list(module.args), "library": module.toolchain.library}
    return {**about, "seconds": seconds, "error": error, "file": None if file is None else str(file)}

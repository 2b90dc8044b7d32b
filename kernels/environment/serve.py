"""What the process of an environment does: it prepares, launches and times backends as the worker that started it says.

It decides nothing. The worker has the reference, judges every output, reads the device's clocks, and says whose block is next, so
that an old library does not judge itself and one backend runs while all others wait.

It also compiles the kernel modules of points with the libraries here, whose own adapters say which modules they are.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from kernels import registry
from kernels.adapter import Module
from kernels.compile import module_cache, records
from kernels.compile.build import build, builds_at_once, install, share_cores
from kernels.compile.module_cache import Library
from kernels.contract.runner import said
from kernels.cuda import answers, free_unused
from kernels.device import Device
from kernels.environment.drawn import Answer, Blobs, DrawnProblem
from kernels.environment.wire import ConnectionClosed, Header, Wire
from kernels.inputs.generate import draw
from kernels.problem import Problem
from kernels.timing.nvml import DeviceMonitor, Telemetry
from kernels.timing.sm_clock import clock_of_device


class ForwardingMonitor(DeviceMonitor):
    """Tells the worker when a timer reads the device's clocks. The worker reads them."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def read(self) -> list[Telemetry]:
        self.wire.send({"event": "read"})
        return []


class EnvironmentServer:
    """One process. Each public method answers the request of its name; `OpenDevice` and `DrawnProblem` answer the others."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.opened: OpenDevice | None = None  # from `open` on
        self.engine: Any = None  # from `start` on

    def open(self, device: dict[str, Any], plugins: list[str], imports: list[str]) -> Header:
        """Loads torch, the adapters and the kernel libraries. An import that fails fails again in `prepare`, and is a row then."""
        self.opened = OpenDevice(Device.model_validate(device), tuple(plugins), imports, ForwardingMonitor(self.wire))
        return {"torch": str(torch.__version__), "pid": os.getpid()}

    def start(self, program: str, spec: Header) -> Header:
        """Starts an engine by the module of its program; what it says of itself, as columns of rows."""
        self.engine, about = importlib.import_module(program).start(spec)
        return {"about": about}

    def point(self, **keys: Any) -> Header:
        """Measures a point inside the engine. The worker is told when to read the device's clocks."""
        return {"found": self.engine.point(**keys, read=lambda: self.wire.send({"event": "read"}))}

    def compile(
        self, points: list[tuple[str, dict[str, Any]]], device: dict[str, Any], plugins: list[str], archived: list[dict[str, Any]]
    ) -> None:
        """Compiles the modules of (backend, problem) points, and tells of each as it ends. For a process that was not opened."""
        asked = [(backend, Problem.model_validate(problem)) for backend, problem in points]
        for built in compile_for(asked, Device.model_validate(device), tuple(plugins), archived):
            self.wire.send({"event": "built", **built})

    def answer(self, request: Header) -> tuple[Header, Blobs]:
        """The answer to one request. An exception is an answer too, and says whether the device still answers."""
        try:
            found: Answer = self._method(request.pop("do"))(**request)
        except ConnectionClosed:
            raise
        except Exception as error:  # a kernel library may raise anything
            healthy = self.opened is None or answers(self.opened.device)
            healthy = getattr(error, "healthy", healthy and self.engine is None)  # an engine may have requests left
            return {"error": {"kind": type(error).__name__, "message": said(error).partition(": ")[2]}, "healthy": healthy}, ()
        return found if isinstance(found, tuple) else (found or {}, ())

    def _method(self, name: str) -> Any:
        """The method of this name of whatever is there by now. Raises RuntimeError if what has it was not made yet."""
        for one in (self, self.opened, self.opened and self.opened.drawn):
            if hasattr(one, name):
                return getattr(one, name)
        raise RuntimeError(f"asked for {name!r}, which needs {'drawn inputs' if self.opened else 'an open device'}")


class OpenDevice:
    """A device with its libraries loaded, and the problem whose inputs it has, if any."""

    def __init__(self, device: Device, plugins: tuple[str, ...], imports: list[str], monitor: ForwardingMonitor) -> None:
        self.device, self.plugins, self.monitor = device, plugins, monitor
        self.drawn: DrawnProblem | None = None
        torch.set_grad_enabled(False)
        registry.adapters(self.plugins)
        if self.device.kind == "cuda":
            torch.zeros(1, device="cuda")
            for package in imports:
                with suppress(Exception):
                    importlib.import_module(package)
            clock_of_device()

    def draw(self, problem: dict[str, Any]) -> Header:
        """Draws the inputs of a problem, in place of those before, and gives their checksums."""
        self.release()
        inputs = draw(Problem.model_validate(problem), self.device.kind)
        self.drawn = DrawnProblem(inputs, self.device, self.plugins, self.monitor)
        return self.drawn.sums()

    def release(self) -> None:
        """Forgets inputs and calls and gives their memory back."""
        if self.drawn is not None:
            self.drawn = None
            free_unused(self.device)


def serve(reads: int, writes: int) -> None:
    """Answers requests until the worker closes the connection."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints goes to the log
    wire = Wire(reads, writes)
    server = EnvironmentServer(wire)
    try:
        while True:
            wire.send(*server.answer(wire.receive()[0]))
    except ConnectionClosed:
        os._exit(0)  # at once: threads may wait in it


def compile_for(
    points: Sequence[tuple[str, Problem]], device: Device, plugins: tuple[str, ...], archived: Iterable[Mapping[str, Any]]
) -> Iterator[Header]:
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
            built = install(future.result())
            file = None if built.library is None else _file_of(built.module, built.library, device.arch)
            of = {"generator": built.module.generator, "args": list(built.module.args), "library": built.module.toolchain.library}
            file_name = None if file is None else str(file)
            yield {**of, "seconds": built.seconds, "error": built.error, "file": file_name, "points": needed[built.module]}


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

"""What the process of an environment does: it prepares, launches and times backends as the worker that started it says.

It decides nothing. The worker has the reference, judges every output, reads the device's clocks, and says whose block is next, so
that an old library does not judge itself and one backend runs while all others wait.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from kernels import registry
from kernels.device import Device
from kernels.environment.drawn import Blobs, DrawnProblem, free_memory
from kernels.environment.wire import ConnectionClosed, Header, Wire
from kernels.problem import Problem
from kernels.timing.nvml import DeviceMonitor, Telemetry

MAX_MESSAGE = 2000  # characters of an exception that travel


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

    def open(self, device: dict[str, Any], plugins: list[str], imports: list[str]) -> Header:
        """Loads torch, the adapters and the kernel libraries. An import that fails fails again in `prepare`, and is a row then."""
        import torch

        self.opened = OpenDevice(Device.model_validate(device), tuple(plugins), imports, ForwardingMonitor(self.wire))
        return {"torch": str(torch.__version__), "pid": os.getpid()}

    def compile(self, points: list[tuple[str, dict[str, Any]]], device: dict[str, Any], plugins: list[str]) -> Header:
        """Compiles the modules of (backend, problem) points, and tells of each as it ends. For a process that was not opened."""
        from kernels.environment.modules import compile_for

        def tell(module: str, seconds: float, error: str | None, needed_by: list[int]) -> None:
            self.wire.send({"event": "built", "module": module, "seconds": seconds, "error": error, "points": needed_by})

        asked = [(backend, Problem.model_validate(problem)) for backend, problem in points]
        compile_for(asked, Device.model_validate(device), tuple(plugins), tell)
        return {}

    def answer(self, request: Header) -> tuple[Header, Blobs]:
        """The answer to one request. An exception is an answer too, and says whether the device still answers."""
        try:
            found = self._method(request.pop("do"))(**request)
        except ConnectionClosed:
            raise
        except Exception as error:  # a kernel library may raise anything
            words = {"kind": type(error).__name__, "message": str(error)[:MAX_MESSAGE]}
            return {"error": words, "healthy": self.opened is None or self.opened.is_healthy()}, ()
        return found if isinstance(found, tuple) else (found, ())

    def _method(self, name: str) -> Callable[..., Header | tuple[Header, Blobs]]:
        """The method of this name of whatever is there by now. Raises RuntimeError if what has it was not made yet."""
        drawn = self.opened.drawn if self.opened else None
        for one in (self, self.opened, drawn):
            if (method := getattr(one, name, None)) is not None:
                found: Callable[..., Header | tuple[Header, Blobs]] = method
                return found
        raise RuntimeError(f"asked for {name!r}, which needs {'drawn inputs' if self.opened else 'an open device'}")


class OpenDevice:
    """A device with its libraries loaded, and the problem whose inputs it has, if any."""

    def __init__(self, device: Device, plugins: tuple[str, ...], imports: list[str], monitor: ForwardingMonitor) -> None:
        import importlib
        from contextlib import suppress

        import torch

        self.device, self.plugins, self.monitor = device, plugins, monitor
        self.drawn: DrawnProblem | None = None
        torch.set_grad_enabled(False)
        registry.adapters(self.plugins)
        if self.device.kind == "cuda":
            torch.zeros(1, device="cuda")
            for package in imports:
                with suppress(Exception):
                    importlib.import_module(package)
            from kernels.timing.sm_clock import clock_of_device

            clock_of_device()

    def draw(self, problem: dict[str, Any]) -> Header:
        """Draws the inputs of a problem, in place of those before, and gives their checksums."""
        from kernels.inputs.generate import draw

        self.release()
        inputs = draw(Problem.model_validate(problem), self.device.kind)
        self.drawn = DrawnProblem(inputs, self.device, self.plugins, self.monitor)
        return self.drawn.sums()

    def release(self) -> Header:
        """Forgets inputs and calls and gives their memory back."""
        if self.drawn is not None:
            self.drawn = None
            free_memory(self.device)
        return {}

    def is_healthy(self) -> bool:
        """Whether the device still answers."""
        import torch

        try:
            if self.device.kind == "cuda":
                torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True


def serve(reads: int, writes: int) -> None:
    """Answers requests until the worker closes the connection."""
    import torch  # noqa: F401 - now, while the worker starts other processes

    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints goes to the log
    wire = Wire(reads, writes)
    server = EnvironmentServer(wire)
    try:
        while True:
            request, _ = wire.receive()
            wire.send(*server.answer(request))
    except ConnectionClosed:
        os._exit(0)

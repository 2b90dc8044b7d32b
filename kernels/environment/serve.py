"""What the process of an environment does: it prepares, launches and times backends as the worker that started it says.

It decides nothing. The worker has the reference, judges every output, reads the device's clocks, and says whose block is next, so
that an old library does not judge itself and one backend runs while all others wait.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kernels import registry
from kernels.device import Device
from kernels.environment.tensors import to_bytes
from kernels.environment.wire import Closed, Header, Wire
from kernels.problem import Problem
from kernels.timed_call import Outputs, prepare_timer
from kernels.timing.config import Timing
from kernels.timing.nvml import DeviceMonitor, Telemetry

if TYPE_CHECKING:
    from kernels.inputs import Inputs
    from kernels.timing.energy import Pending
    from kernels.timing.timers import Timer

Blobs = tuple[bytes, ...]
MAX_MESSAGE = 2000  # characters of an exception that travel


class AskingMonitor(DeviceMonitor):
    """Tells the worker when a timer reads the device's clocks. The worker reads them."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def read(self) -> list[Telemetry]:
        self.wire.send({"event": "read"})
        return []


class Server:
    """One process on one device. Each public method answers the request of its name."""

    def __init__(self, wire: Wire) -> None:
        self.wire, self.monitor = wire, AskingMonitor(wire)
        self.device: Device | None = None
        self.plugins: tuple[str, ...] = ()
        self.inputs: Inputs | None = None
        self.calls: dict[int, tuple[Timer, Outputs]] = {}
        self.issued: dict[int, Pending] = {}
        self.issues = 0

    def open(self, device: dict[str, Any], plugins: list[str], imports: list[str]) -> Header:
        """Loads torch, the adapters and the kernel libraries. An import that fails fails again in `prepare`, and is a row then."""
        import importlib
        from contextlib import suppress

        import torch

        torch.set_grad_enabled(False)
        self.device, self.plugins = Device.model_validate(device), tuple(plugins)
        registry.adapters(self.plugins)
        if self.device.kind == "cuda":
            torch.zeros(1, device="cuda")
            for package in imports:
                with suppress(Exception):
                    importlib.import_module(package)
            from kernels.timing.sm_clock import clock_of_device

            clock_of_device()
        return {"torch": str(torch.__version__), "pid": os.getpid()}

    def compile(self, points: list[tuple[str, dict[str, Any]]], device: dict[str, Any], plugins: list[str]) -> Header:
        """Compiles the modules of (backend, problem) points, and tells of each as it ends. For a process that was not opened."""
        from kernels.environment.modules import compile_for

        def tell(module: str, seconds: float, error: str | None, needed_by: list[int]) -> None:
            self.wire.send({"event": "built", "module": module, "seconds": seconds, "error": error, "points": needed_by})

        asked = [(backend, Problem.model_validate(problem)) for backend, problem in points]
        compile_for(asked, Device.model_validate(device), tuple(plugins), tell)
        return {}

    def draw(self, problem: dict[str, Any]) -> Header:
        """Draws the inputs of a problem, in place of those before, and gives their checksums."""
        from kernels.inputs.generate import draw

        assert self.device is not None  # opened first
        if self.inputs is not None:
            self.release()
        self.inputs = draw(Problem.model_validate(problem), self.device.kind)
        return self.sums()

    def sums(self) -> Header:
        """Checksums of the inputs as the worker takes them: unused slots filled with a number."""
        from kernels.inputs.checksums import checksums
        from kernels.inputs.generate import UNUSED_SLOT, poison_unused_slots

        poison_unused_slots(self._inputs, UNUSED_SLOT)
        return {"sums": checksums(self._inputs).tolist()}

    def fill(self, nan: bool) -> Header:
        from kernels.inputs.generate import UNUSED_SLOT, poison_unused_slots

        poison_unused_slots(self._inputs, float("nan") if nan else UNUSED_SLOT)
        return {}

    def redraw(self) -> Header:
        from kernels.inputs.generate import redraw

        redraw(self._inputs)
        return {}

    def draw_other_values(self, number: int) -> Header:
        from kernels.inputs.generate import draw_other_values

        draw_other_values(self._inputs, number)
        return self.sums()

    def flip_token(self, request: int, position: int) -> Header:
        from kernels.inputs.tensors import flip_token

        flip_token(self._inputs, request, position)
        return {}

    def prepare(self, call: int, backend: str, timing: dict[str, Any], arch: str) -> Header:
        """Prepares a backend on the inputs, and says what is known of its call."""
        from kernels.compile import module_cache

        assert self.device is not None  # opened first
        inputs, problem = self._inputs, self._inputs.problem
        adapter = registry.get_installed(problem.routine, backend, self.plugins)
        if self.device.kind == "cuda":
            module_cache.look_for(adapter.modules(problem, self.device), arch)
        before = self._memory(reset=True)
        timer = prepare_timer(adapter, inputs, self.device, Timing.model_validate(timing))
        self.calls[call] = timer, Outputs(timer, problem.return_lse)
        runner = timer.runner
        of_runner = ("resolved_backend", "compute_dtype", "caller_scale", "accumulator_dtype", "lse_base")
        of_timer = ("name", "cuda_graph", "l2", "icache", "host_us")
        return {
            "runner": {name: getattr(runner, name) for name in of_runner},
            "timer": {name: getattr(timer, name) for name in of_timer},
            "kernel_config": adapter.config_of(runner, problem),
            "gathers": runner.gather is not None,
            "peak_mem_bytes": None if before is None else (self._memory() or 0) - before,
        }

    def refresh(self, call: int) -> Header:
        self.calls[call][0].runner.refresh()
        return {}

    def poison(self, call: int) -> Header:
        self.calls[call][1].poison()
        return {}

    def launch(self, call: int) -> Header:
        self.calls[call][1].launch()
        return {}

    def look(self, call: int) -> Header:
        self.calls[call][1].look()
        return {}

    def begin(self, call: int) -> Header:
        self.calls[call][1].begin()
        return {}

    def begin_again(self, call: int) -> Header:
        self.calls[call][1].begin_again()
        return {}

    def are_intact(self, call: int) -> Header:
        return {"intact": self.calls[call][1].are_intact()}

    def now(self, call: int) -> tuple[Header, Blobs]:
        return _packed(self.calls[call][1].now())

    def furthest(self, call: int) -> tuple[Header, Blobs]:
        return _packed(self.calls[call][1].furthest())

    def block(self, call: int, count: int) -> Header:
        """Takes samples in a row, by the same timer that the worker's own backends have."""
        block = self.calls[call][0].block(count, self.monitor)
        return {"us": block.us, "mhz": block.mhz}

    def issue(self, call: int, cycles: int, with_call: bool) -> Header:
        self.issues += 1
        self.issued[self.issues] = self.calls[call][0].issue(cycles, with_call)
        return {"pending": self.issues}

    def query(self, pending: int) -> Header:
        done = bool(self.issued[pending].query())
        if done:
            del self.issued[pending]
        return {"done": done}

    def host(self, call: int) -> Header:
        """What a step costs on the host of this environment: its own Python plans and issues."""
        from kernels.timing import host_time

        inputs = self._inputs
        return {"cost": asdict(host_time.measure(self.calls[call][0].runner, inputs.padded or inputs))}

    def drop(self, call: int) -> Header:
        """Forgets a call and gives its memory back."""
        self.calls.pop(call, None)
        self._free()
        return {}

    def release(self) -> Header:
        """Forgets inputs and calls and gives their memory back."""
        self.calls.clear()
        self.issued.clear()
        self.inputs = None
        self._free()
        return {}

    @property
    def _inputs(self) -> Inputs:
        assert self.inputs is not None  # drawn first
        return self.inputs

    def _memory(self, reset: bool = False) -> int | None:
        """Bytes of device memory at the peak since the last reset; with `reset`, those of now."""
        import torch

        if self.device is None or self.device.kind != "cuda":
            return None
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated() if reset else torch.cuda.max_memory_allocated())

    def _free(self) -> None:
        import gc

        import torch

        gc.collect()
        gc.freeze()  # what lives now lives long, so the next collection need not look at all of torch again
        if self.device is not None and self.device.kind == "cuda":
            torch.cuda.empty_cache()

    def answer(self, request: Header) -> tuple[Header, Blobs]:
        """The answer to one request. An exception is an answer too, and says whether the device still answers."""
        method: Callable[..., Header | tuple[Header, Blobs]] = getattr(self, request.pop("do"))
        try:
            found = method(**request)
        except Closed:
            raise
        except Exception as error:  # a kernel library may raise anything
            words = {"kind": type(error).__name__, "message": str(error)[:MAX_MESSAGE]}
            return {"error": words, "healthy": self._is_healthy()}, ()
        return found if isinstance(found, tuple) else (found, ())

    def _is_healthy(self) -> bool:
        import torch

        try:
            if self.device is not None and self.device.kind == "cuda":
                torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True


def _packed(found: Any) -> tuple[Header, Blobs]:
    packed = [None if tensor is None else to_bytes(tensor) for tensor in found]
    return {"tensors": [None if one is None else one[0] for one in packed]}, tuple(one[1] for one in packed if one)


def serve(reads: int, writes: int) -> None:
    """Answers requests until the worker closes the connection."""
    import torch  # noqa: F401 - now, while the worker starts other processes

    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints goes to the log
    wire = Wire(reads, writes)
    server = Server(wire)
    try:
        while True:
            request, _ = wire.receive()
            wire.send(*server.answer(request))
    except Closed:
        os._exit(0)

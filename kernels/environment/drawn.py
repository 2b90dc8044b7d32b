"""The inputs of a problem in the process of an environment, and the backends that are prepared and timed on them there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from kernels import registry
from kernels.compile import module_cache
from kernels.cuda import free_unused
from kernels.device import Device
from kernels.environment.wire import Header, to_bytes
from kernels.inputs import Inputs
from kernels.inputs.checksums import checksums
from kernels.inputs.copied_tokens import copied_tokens
from kernels.inputs.generate import draw_other_values, redraw
from kernels.inputs.small_inputs import SmallInputs
from kernels.inputs.unused_slots import UnusedSlots
from kernels.lazy import torch
from kernels.timed_call import Changed, LaunchComparison, LocalOutputs, prepare_timer
from kernels.timing import host_time
from kernels.timing.config import Timing
from kernels.timing.energy import IssuedWork
from kernels.timing.nvml import DeviceMonitor
from kernels.timing.timers import Timer

Blobs = tuple[bytes, ...]
Answer = Header | tuple[Header, Blobs] | None


def _asks(of: str, name: str) -> Callable[[DrawnProblem, int], Answer]:
    """A request that calls the method of this name of what `DrawnProblem` has of a call."""
    return lambda drawn, call: _packed(getattr(getattr(drawn, of)[call], name)())


class DrawnProblem:
    """Inputs on a device. Each public method answers the request of its name; calls and work have the worker's numbers."""

    def __init__(self, inputs: Inputs, device: Device, plugins: tuple[str, ...], monitor: DeviceMonitor) -> None:
        self.inputs, self.device, self.plugins, self.monitor = inputs, device, plugins, monitor
        self._timers: dict[int, Timer] = {}  # by call, as the next two
        self._outputs: dict[int, LocalOutputs] = {}
        self._comparisons: dict[int, LaunchComparison] = {}
        self._issued: dict[int, IssuedWork] = {}
        self._issues = 0
        self._copied = ExitStack()
        self._unused, self._small = UnusedSlots([inputs]), SmallInputs([inputs])

    def sums(self) -> Header:
        """Checksums of the inputs as the worker takes them, and whether backends left slots without a token as they were."""
        return {"sums": self._sums(), "unused_intact": bool(self._unused.were_intact())}

    def restore_small(self) -> Header:
        """Puts small inputs back, and says whether somebody had changed them."""
        return {"changed": bool(self._small.restore(wait=True))}

    def fill(self, nan: bool) -> None:
        self._unused.fill(nan)

    def redraw(self) -> None:
        self._unused.look()
        redraw(self.inputs)
        self._unused.drawn_again()

    def draw_other_values(self, number: int) -> Header:
        self._unused.look()
        draw_other_values(self.inputs, number)
        self._unused.drawn_again()
        return {"sums": self._sums()}

    def copy_tokens(self, copied: Any) -> None:
        """Tokens change from now on until `restore_tokens`, as `ChangedTokens.copied` says."""
        self._copied.enter_context(copied_tokens(self.inputs, copied))

    def restore_tokens(self) -> None:
        self._copied.close()

    def prepare(self, call: int, backend: str, timing: dict[str, Any], arch: str) -> Header:
        """Prepares a backend on the inputs, and says what is known of its call."""
        problem = self.inputs.problem
        adapter = registry.get_installed(problem.routine, backend, self.plugins)
        if self.device.kind == "cuda":
            module_cache.look_for(adapter.modules(problem, self.device), arch)
        before = self._memory(reset=True)
        timer = prepare_timer(adapter, self.inputs, self.device, Timing.model_validate(timing))
        self._timers[call], self._outputs[call] = timer, LocalOutputs(timer, problem.has_second_output)
        runner = timer.runner
        of_runner = ("resolved_backend", "compute_dtype", "caller_scale", "accumulator_dtype", "lse_base", "rounded_merges")
        of_timer = ("name", "cuda_graph", "l2", "icache", "host_us")
        return {
            "runner": {name: getattr(runner, name) for name in of_runner},
            "timer": {name: getattr(timer, name) for name in of_timer},
            "kernel_config": adapter.config_of(runner, problem),
            "copies": bool(runner.copies),
            "peak_mem_bytes": None if before is None else (self._memory() or 0) - before,
        }

    def refresh(self, call: int) -> None:
        self._timers[call].runner.refresh()

    poison, launch, now, are_intact = (_asks("_outputs", name) for name in ("poison", "launch", "now", "are_intact"))

    def compare_launches(self, call: int) -> None:
        """The launches of a call are compared with the last one from now on, by the next three."""
        self._comparisons[call] = self._outputs[call].compare_launches()

    compare, restart, most_different = (_asks("_comparisons", name) for name in ("compare", "restart", "most_different"))

    def block(self, call: int, count: int, sustained: bool = False) -> Header:
        """Takes samples in a row or without a pause, by the same timer that the worker's own backends have."""
        timer = self._timers[call]
        block = (timer.sustained if sustained else timer.block)(count, self.monitor)
        return {"us": block.us, "mhz": block.mhz}

    def issue(self, call: int, cycles: int, with_call: bool) -> Header:
        self._issues += 1
        self._issued[self._issues] = self._timers[call].issue(cycles, with_call)
        return {"pending": self._issues}

    def query(self, pending: int) -> Header:
        done = bool(self._issued[pending].query())
        if done:
            del self._issued[pending]
        return {"done": done}

    def host(self, call: int) -> Header:
        """What a step costs on the host of this environment: its own Python plans and issues."""
        return {"cost": asdict(host_time.measure(self._timers[call].runner, self.inputs.padded or self.inputs))}

    def drop(self, call: int) -> None:
        """Forgets a call and gives its memory back."""
        for of_call in (self._timers, self._outputs, self._comparisons):
            of_call.pop(call, None)
        free_unused(self.device)

    def _sums(self) -> list[int]:
        """Checksums with a number in the slots that hold no token."""
        self._unused.fill(nan=False)
        sums: list[int] = checksums(self.inputs).tolist()
        return sums

    def _memory(self, reset: bool = False) -> int | None:
        """Bytes of device memory at the peak since the last reset; with `reset`, those of now."""
        if self.device.kind != "cuda":
            return None
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated() if reset else torch.cuda.max_memory_allocated())


def _packed(found: torch.Tensor | Changed | None) -> Answer:
    if not isinstance(found, tuple):
        return {"found": None if found is None else bool(found)}
    packed = [None if tensor is None else to_bytes(tensor) for tensor in found]
    return {"tensors": [None if one is None else one[0] for one in packed]}, tuple(one[1] for one in packed if one)

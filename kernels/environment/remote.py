"""A call in the process of an environment, which this process uses like a timer and like outputs of its own.

The loop that measures, the check and the rows then treat it as any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from kernels.contract.runner import Runner
from kernels.environment.process import Process
from kernels.environment.wire import from_bytes
from kernels.inputs.copies import InputCopy
from kernels.lazy import torch
from kernels.timed_call import Changed, LaunchComparison, OutAndLse, Outputs
from kernels.timing.config import Timing
from kernels.timing.host_time import HostCost, HostTime
from kernels.timing.nvml import DeviceMonitor, Telemetry
from kernels.timing.profiled import Work
from kernels.timing.timers import Block, Timer

_numbers = count(1)


@dataclass
class Call:
    """One prepared call in a process. A request that takes longer than `seconds` ends the process."""

    process: Process
    seconds: float
    number: int = field(default_factory=lambda: next(_numbers))

    def ask(self, do: str, on_event: Callable[[Any], object] | None = None, **keys: Any) -> tuple[dict[str, Any], list[bytes]]:
        return self.process.ask(do, self.seconds, on_event, call=self.number, **keys)


@dataclass(frozen=True)
class _RemoteCopies(InputCopy):
    """The copies of inputs that a call in another process reads."""

    call: Call

    def refresh(self) -> None:
        self.call.ask("refresh")


class RemoteTimer(Timer):
    """The timer of a call in another process, which times there. Clocks and power are read here, meanwhile."""

    def __init__(self, call: Call, prepared: dict[str, Any]) -> None:
        about = prepared["timer"]
        self.call, self.name, self.cuda_graph = call, about["name"], about["cuda_graph"]
        self.l2, self.icache, self.host_us = about["l2"], about["icache"], about["host_us"]
        copies = (_RemoteCopies(call),) if prepared["copies"] else ()
        nothing = torch.empty(0)  # the output lies in the other process
        super().__init__(Runner(self.replay, nothing, **prepared["runner"], kernel_config=prepared["kernel_config"], copies=copies))

    def replay(self, wait: bool = True) -> None:
        self.call.ask("launch")

    def sustained(self, count: int, monitor: DeviceMonitor) -> Block:
        return self.block(count, monitor, sustained=True)

    def block(self, count: int, monitor: DeviceMonitor, **how: bool) -> Block:
        telemetry: list[Telemetry] = []
        found, _ = self.call.ask("block", lambda event: telemetry.extend(monitor.read()), count=count, **how)
        return Block(found["us"], found["mhz"], telemetry)

    def issue(self, cycles: int, with_call: bool = True) -> RemoteWork:
        return RemoteWork(self.call, self.call.ask("issue", cycles=cycles, with_call=with_call)[0]["pending"])

    def host_cost(self) -> HostCost:
        """What `kernels.timing.host_time.measure` gives in the other process."""
        cost = self.call.ask("host")[0]["cost"]
        plan, call = (None if cost[name] is None else HostTime(**cost[name]) for name in ("plan", "call"))
        of_plan, of_call = (None if cost[name] is None else Work(**cost[name]) for name in ("of_plan", "of_call"))
        return HostCost(plan, call, of_plan, of_call, cost["note"])


@dataclass(frozen=True)
class RemoteWork:
    """Work that was issued in another process."""

    call: Call
    number: int

    def query(self) -> bool:
        return bool(self.call.process.ask("query", self.call.seconds, pending=self.number)[0]["done"])


class RemoteOutputs(Outputs):
    """Outputs in another process. They are compared there, launch by launch; what is judged comes here."""

    def __init__(self, call: Call, device: torch.device) -> None:
        self.call, self.device = call, device

    def poison(self) -> None:
        self.call.ask("poison")

    def launch(self, wait: bool = True) -> None:
        self.call.ask("launch")

    def now(self) -> OutAndLse:
        out, lse = _fetch(self.call, "now", self.device)
        if out is None:
            raise RuntimeError("the process of its environment sent no output")
        return out, lse

    def compare_launches(self) -> RemoteComparison:
        return RemoteComparison(self.call, self.device)

    def are_intact(self) -> bool:
        return bool(self.call.ask("are_intact")[0]["found"])


class RemoteComparison(LaunchComparison):
    """Compares launches of a call in another process. They are counted here."""

    def __init__(self, call: Call, device: torch.device) -> None:
        self.call, self.device = call, device
        self._count = 1
        call.ask("compare_launches")

    @property
    def count(self) -> int:
        return self._count

    def compare(self) -> None:
        self.call.ask("compare")
        self._count += 1

    def restart(self) -> None:
        self.call.ask("restart")
        self._count = 1

    def most_different(self) -> Changed:
        return _fetch(self.call, "most_different", self.device)


def _fetch(call: Call, do: str, device: torch.device) -> Changed:
    """An output and a log-sum-exp, copied from the other process."""
    about, blobs = call.ask(do)
    left = iter(blobs)
    out, lse = (None if one is None else from_bytes(one, next(left), device) for one in about["tensors"])
    return out, lse


def prepare(process: Process, backend: str, timing: Timing, arch: str, seconds: float = math.inf) -> tuple[Call, dict[str, Any]]:
    """Prepares a backend on the inputs of a process; what `DrawnProblem.prepare` says of it."""
    call = Call(process, seconds)
    about, _ = call.ask("prepare", backend=backend, timing=timing.model_dump(by_alias=True, mode="json"), arch=arch)
    return call, about

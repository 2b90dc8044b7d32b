"""A stand-in for a GPU's clock and profiler, for engines that exist in tests alone. Packed into their wheels."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

launched: list[tuple[str, str, int, int]] = []  # device, name, nanoseconds, and those before the last one's end


class Event:
    """A CUDA event on a clock that steps by a millisecond."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        Event.now += 1.0
        self.at = Event.now

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


class Profile:
    """torch.profiler.profile: what was launched while it was open."""

    def __init__(self, activities: Any) -> None:
        self.profiler = SimpleNamespace(kineto_results=SimpleNamespace(events=self._events))

    def _events(self) -> list[Launched]:
        events, now = [], 0
        for device, name, ns, before in self.found:
            events.append(Launched(device, name, now - before, ns))
            now += ns - before
        return events

    def __enter__(self) -> Profile:
        launched.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self.found = list(launched)


@dataclass
class Launched:
    device: str
    named: str
    begun: int
    ns: int

    def device_type(self) -> str:
        return f"DeviceType.{self.device}"

    def name(self) -> str:
        return self.named

    def start_ns(self) -> int:
        return self.begun

    def duration_ns(self) -> int:
        return self.ns


torch.cuda.Event, torch.cuda.synchronize = Event, lambda *_: None  # type: ignore[misc, assignment]
torch.profiler.profile = Profile  # type: ignore[misc, assignment]

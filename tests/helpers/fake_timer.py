"""A timer that measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from kernels.adapter import Runner
from kernels.timing.nvml import DeviceMonitor
from kernels.timing.timers import Block, Timer


class Scripted(Timer):
    """A timer whose samples come from an iterator, so that a test sees the measuring loop alone."""

    name, l2, icache, host_us = "scripted", "none", "none", 0.0

    mhz_of: Callable[[float], float] | None = None

    def __init__(self, samples: Iterator[float], diary: list[str] | None = None) -> None:
        super().__init__(Runner(lambda: None, torch.empty(0), "none", "fp32"))
        self.samples, self.diary = samples, diary

    def replay(self, wait: bool = True) -> None:
        self.runner()

    def block(self, count: int, monitor: DeviceMonitor) -> Block:
        if self.diary is not None:
            self.diary.append(self.name)
        taken = [next(self.samples) for _ in range(count)]
        return Block(taken, [self.mhz_of(sample) for sample in taken] if self.mhz_of else [], monitor.read())


def forever(sample: Callable[[int], float]) -> Iterator[float]:
    """sample(0), sample(1), ... without end."""
    n = 0
    while True:
        yield sample(n)
        n += 1

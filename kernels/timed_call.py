"""Prepares one call for timing; poisons, launches, compares and reads its outputs for the check.

A worker does this with its own backends, and the process of another environment with those that run there.
"""

# T = query tokens of all requests, H = num_qo_heads

from __future__ import annotations

from typing import Protocol

from kernels.adapter import Adapter
from kernels.check.launches import LaunchLog
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.inputs.guards import guards_are_intact
from kernels.inputs.tensors import other_cache, other_queries
from kernels.lazy import Tensor
from kernels.timing.config import Timing
from kernels.timing.timers import Timer, timer_for

OutAndLse = tuple["Tensor", "Tensor | None"]  # output [T, H, D_vo] in the problem's order, log-sum-exp [T, H]
Changed = tuple["Tensor | None", "Tensor | None"]  # the same, with None for what never changed


def prepare_timer(adapter: Adapter, inputs: Inputs, device: Device, timing: Timing) -> Timer:
    """Prepares a backend and its timer, and launches it once, with other queries and cache than later: what it keeps is wrong."""
    with other_cache(inputs):
        with other_queries(inputs):
            runner = adapter.prepared(inputs, device)
            timer = timer_for(runner, timing.timer, timing.warmup, timing.caches, brief=timing.races)
        timer.replay()
    runner.refresh()
    return timer


class Outputs(Protocol):
    """The output of a timed call, and its log-sum-exp if the problem asks for one and the backend gives it."""

    def poison(self) -> None:
        """Fills both with NaN."""

    def launch(self, wait: bool = True) -> None:
        """Does once exactly what is timed. Without `wait` a captured call may still run when it returns."""

    def now(self) -> OutAndLse:
        """What the last launch left."""

    def compare_launches(self) -> LaunchComparison:
        """A comparison of the launches from now on with the last one."""

    def are_intact(self) -> Tensor | bool:
        """Whether nobody wrote around them in memory: a bool [] on their device, or a number of the host."""


class LaunchComparison(Protocol):
    """Compares what launch after launch leaves with what the first one left, bit by bit."""

    @property
    def count(self) -> int:
        """Launches that were compared, the first among them."""

    def compare(self) -> None:
        """Compares what the last launch left with the first."""

    def restart(self) -> None:
        """Takes what the last launch left as the first, and forgets those before it."""

    def most_different(self) -> Changed:
        """The output and the log-sum-exp that differ most from the first; None for one that never changed."""


class LocalOutputs(Outputs):
    """Outputs of a call in this process."""

    def __init__(self, timer: Timer, with_lse: bool) -> None:
        self.timer, self.with_lse = timer, with_lse
        # What the graph was captured with: a library that makes a new tensor in each call may be captured again, for a step.
        self._captured_lse = timer.runner.written_lse() if timer.cuda_graph else None

    def poison(self) -> None:
        self.timer.runner.out.fill_(float("nan"))
        if (lse := self._lse()) is not None:
            lse.fill_(float("nan"))

    def launch(self, wait: bool = True) -> None:
        self.timer.replay(wait)

    def now(self) -> OutAndLse:
        runner, lse = self.timer.runner, self._lse()
        return runner.as_asked(runner.out), None if lse is None else runner.without_padding(lse)

    def compare_launches(self) -> LocalComparison:
        return LocalComparison(self)

    def are_intact(self) -> Tensor:
        runner = self.timer.runner
        return guards_are_intact(runner.out, *(() if runner.lse is None or isinstance(runner.lse, str) else (runner.lse,)))

    def in_kernel_order(self) -> tuple[Tensor, Tensor | None]:
        """What the last launch left, without padding, in the order that the kernel writes."""
        runner, lse = self.timer.runner, self._lse()
        return runner.without_padding(runner.out), None if lse is None else runner.without_padding(lse)

    def _lse(self) -> Tensor | None:
        if not self.with_lse:
            return None
        return self.timer.runner.written_lse() if self._captured_lse is None else self._captured_lse


class LocalComparison(LaunchComparison):
    """Compares launches of a call in this process."""

    def __init__(self, outputs: LocalOutputs) -> None:
        out, lse = outputs.in_kernel_order()
        self.outputs = outputs
        self._log, self._lse_log = LaunchLog(out), None if lse is None else LaunchLog(lse)

    @property
    def count(self) -> int:
        return self._log.count

    def compare(self) -> None:
        self._log.compare()
        if self._lse_log is not None:
            _, lse = self.outputs.in_kernel_order()
            self._lse_log.compare(lse)

    def restart(self) -> None:
        _, lse = self.outputs.in_kernel_order()
        self._log.restart()
        if self._lse_log is not None:
            self._lse_log.restart(lse)

    def most_different(self) -> Changed:
        out = self._log.most_different()
        return (
            None if out is None else self.outputs.timer.runner.as_asked(out),
            None if self._lse_log is None else self._lse_log.most_different(),
        )

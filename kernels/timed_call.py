"""Prepares one call for timing; poisons, launches, compares and reads its outputs for the check.

A worker does this with its own backends, and the process of another environment with those that run there.
"""

# T = query tokens of all requests, H = num_qo_heads

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.check.launches import LaunchLog
from kernels.inputs.guards import guards_are_intact
from kernels.inputs.tensors import other_cache, other_queries
from kernels.timing.timers import timer_for

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.adapter import Adapter
    from kernels.device import Device
    from kernels.inputs import Inputs
    from kernels.timing.config import Timing
    from kernels.timing.timers import Timer

Found = tuple["Tensor | None", "Tensor | None"]  # an output [T, H, D_vo] in the problem's order, and a log-sum-exp [T, H]


def prepare_timer(adapter: Adapter, inputs: Inputs, device: Device, timing: Timing) -> Timer:
    """Prepares a backend and its timer, and launches it once. Whatever the backend raises comes through.

    A kernel that returns what it computed or copied in its preparation is wrong later: queries and cache differ then. One that
    remembers its answer to a query is wrong too: it saw this query with another cache.
    """
    with other_cache(inputs):
        with other_queries(inputs):
            runner = adapter.prepared(inputs, device)
            timer = timer_for(runner, timing.timer, timing.warmup, timing.caches, brief=timing.races)
        timer.replay()
    runner.refresh()
    return timer


class Outputs:
    """The output of a timed call, and its log-sum-exp if the problem asks for one and the backend gives it."""

    def __init__(self, timer: Timer, with_lse: bool) -> None:
        self.timer, self.with_lse = timer, with_lse
        # What the graph was captured with: a library that makes a new tensor in each call may be captured again, for a step.
        self._captured_lse = timer.runner.written_lse() if timer.cuda_graph else None
        self._log: LaunchLog | None = None
        self._lse_log: LaunchLog | None = None

    def poison(self) -> None:
        """Fills both with NaN."""
        self.timer.runner.out.fill_(float("nan"))
        if (lse := self._lse()) is not None:
            lse.fill_(float("nan"))

    def launch(self) -> None:
        """Does once exactly what is timed."""
        self.timer.replay()

    def now(self) -> Found:
        """What the last launch left."""
        runner, lse = self.timer.runner, self._lse()
        return runner.as_asked(runner.out), None if lse is None else runner.without_padding(lse)

    def begin(self) -> None:
        """Takes what is there now as the first of the launches that `look` compares."""
        runner, lse = self.timer.runner, self._lse()
        self._log = LaunchLog(runner.without_padding(runner.out))
        self._lse_log = None if lse is None else LaunchLog(runner.without_padding(lse))

    def begin_again(self) -> None:
        """As `begin`: what was left before says nothing."""
        assert self._log is not None  # after `begin` alone
        self._log.restart()
        if self._lse_log is not None and (lse := self._lse()) is not None:
            self._lse_log.restart(self.timer.runner.without_padding(lse))

    def look(self) -> None:
        """Compares what the last launch left with the first."""
        assert self._log is not None  # after `begin` alone
        self._log.look()
        if self._lse_log is not None and (lse := self._lse()) is not None:
            self._lse_log.look(self.timer.runner.without_padding(lse))

    @property
    def count(self) -> int | None:
        """How many launches were looked at, the first among them; None before `begin`."""
        return None if self._log is None else self._log.count

    def furthest(self) -> Found:
        """Those that differ most from the first; None for one that never changed."""
        assert self._log is not None  # after `begin` alone
        out = self._log.furthest()
        return (
            None if out is None else self.timer.runner.as_asked(out),
            None if self._lse_log is None else self._lse_log.furthest(),
        )

    def are_intact(self) -> bool:
        """Whether nobody wrote around them in memory."""
        runner = self.timer.runner
        given = (runner.out, *(() if runner.lse is None or callable(runner.lse) else (runner.lse,)))
        return all(bool(guards_are_intact(output)) for output in given)

    def _lse(self) -> Tensor | None:
        if not self.with_lse:
            return None
        return self.timer.runner.written_lse() if self._captured_lse is None else self._captured_lse

"""The capture of a call as a CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from kernels.lazy import torch

# With less free memory the allocator first gives back what it keeps, and the memory of ended graphs. No call that was measured here
# allocates as much in a capture (`workspace_bytes`).
LITTLE_BYTES = 16 * 2**30
MOST_OVER_US = 0.5  # of a call's launch over an empty graph's: 0.1 at most on 10 H200s; 3.1 on two, which running engines deny


def capture(call: Callable[[], object], shares_with: torch.cuda.CUDAGraph | None = None) -> torch.cuda.CUDAGraph:
    """A graph of what `call` launches. `call` must have run before, so that nothing is compiled or loaded in the capture.

    `torch.cuda.graph` does the same, but first gives back to the driver what the allocator keeps, since a capture cannot do that.
    After a check this takes longer than capturing an isolated call (docs/timing.md), so here it is done only if memory is
    short.

    A graph that is given another one shares its memory. The two must not be replayed at the same time.
    """
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    if free < LITTLE_BYTES:
        torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(_capture_stream(torch.cuda.current_device())):
        graph.capture_begin(pool=None if shares_with is None else shares_with.pool())
        try:
            call()
        except BaseException:
            with suppress(RuntimeError):  # the capture is invalid already, and what the call said matters
                graph.capture_end()
            raise
        graph.capture_end()
    return graph


class Moment:
    """An event of the CPU's clock, where the CPU does the work itself: there is nothing to wait for."""

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: Moment) -> float:
        return (other.at - self.at) * 1e3


def timed_event(on_device: bool = True) -> Any:
    """An event whose distance to another one can be asked for."""
    return torch.cuda.Event(enable_timing=True) if on_device else Moment()  # type: ignore[no-untyped-call]


def wait_for(on_device: bool) -> None:
    """Returns once all that was issued is done."""
    if on_device:
        torch.cuda.synchronize()


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """The stream of all captures on a device. Graphs that share memory must be captured on the same one."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

"""Two graphs that are replayed in turns: what each takes, the clock of each, and the kernels of each by CUPTI."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.timing.sm_clock import clock_of_device

Replay = Callable[[], object]
Span = tuple[str, float, float]  # a kernel's name, its start and end in microseconds
PAUSE_S = 0.002  # between two profiled replays; within one, no kernel waits half as long

WAITS = (" Sync", " Wait Event")  # what a profile may have beside kernels, copies and sets


@dataclass(frozen=True)
class Times:
    """For each graph the microseconds of its replays, and the SM clock of each in MHz (empty if unknown)."""

    us: list[list[float]]
    mhz: list[list[float]]


def timed(graphs: Sequence[Replay], rounds: int, on_gpu: bool = True) -> Times:
    """Replays A B A B. One round more comes first and does not count: the CPU issues the others meanwhile."""
    if not on_gpu:
        return _of_wall_clock(graphs, rounds)
    import torch

    def event() -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    spans = [[(event(), event()) for _ in graphs] for _ in range(rounds)]
    for replay in graphs:
        replay()
    clock = clock_of_device()
    clock.start()
    for of_round in spans:
        for (begun, ended), replay in zip(of_round, graphs, strict=True):
            begun.record()
            replay()
            ended.record()
            clock.stamp()
    torch.cuda.synchronize()
    us = [[begun.elapsed_time(ended) * 1e3 for begun, ended in column] for column in zip(*spans, strict=True)]
    mhz = clock.mhz()
    return Times(us, [mhz[number :: len(graphs)] for number in range(len(graphs))])


def _of_wall_clock(graphs: Sequence[Replay], rounds: int) -> Times:
    us: list[list[float]] = [[] for _ in graphs]
    for _ in range(rounds):
        for replay, found in zip(graphs, us, strict=True):
            begun = time.perf_counter_ns()
            replay()
            found.append((time.perf_counter_ns() - begun) / 1e3)
    return Times(us, [[] for _ in graphs])


def profiled(graphs: Sequence[Replay], rounds: int) -> list[list[list[Span]]]:
    """For each graph the kernels of each replay, in order. Raises RuntimeError if a replay cannot be told from the next."""
    import torch
    from torch.profiler import ProfilerActivity

    for replay in graphs:
        replay()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(rounds):
            for replay in graphs:
                replay()
                torch.cuda.synchronize()
                time.sleep(PAUSE_S)
    return _by_graph(_kernels(seen), len(graphs), rounds)


def _kernels(seen: Any) -> list[Span]:
    """The kernels of a profile, from its raw events: to make Python's own of thousands takes longer than the replays."""
    from torch.autograd import DeviceType  # type: ignore[attr-defined]

    every = seen.profiler.kineto_results.events()
    raw = [event for event in every if event.device_type() == DeviceType.CUDA and not event.name().endswith(WAITS)]
    zero = min((event.start_ns() for event in raw), default=0)  # a float cannot tell nanoseconds since 1970 apart
    starts = [(event.name(), event.start_ns() - zero, event.duration_ns()) for event in raw]
    return sorted(((name, start / 1e3, (start + ns) / 1e3) for name, start, ns in starts), key=lambda span: span[1])


def _by_graph(spans: list[Span], graphs: int, rounds: int) -> list[list[list[Span]]]:
    replays = cut(spans)
    if len(replays) != graphs * rounds:
        raise RuntimeError(f"the profile has {len(replays)} replays instead of {graphs * rounds}")
    return [replays[number::graphs] for number in range(graphs)]


def cut(spans: list[Span]) -> list[list[Span]]:
    """Kernels in order, cut wherever none runs for half of `PAUSE_S`."""
    if not spans:
        return []
    parts = [[spans[0]]]
    until = spans[0][2]
    for span in spans[1:]:
        if span[1] - until > PAUSE_S * 1e6 / 2:
            parts.append([])
        parts[-1].append(span)
        until = max(until, span[2])
    return parts

"""Counts what parts of the host's work ask of the GPU, in a profile of torch (CUPTI).

A part is a function. Between two parts the device is waited for, so all that it does belongs to the last part that began. Calls of
the CUDA runtime belong to the part during which they were made.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.lazy import torch

PART = "attention_orchestrator_part"
SKEW_S = 0.001  # idle before each part: more than the profile's clocks of host and device differ by
# The host waits in these. cudaMemcpy without "Async" does too. A copy between page-locked memory and the device does not, and
# `Tensor.item()` and `Tensor.cpu()` are an asynchronous copy and a wait for its stream.
WAITS = frozenset(
    {
        *("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "cudaMemcpy2D"),
        *("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2"),
    }
)
TO_HOST, TO_DEVICE = "Memcpy DtoH", "Memcpy HtoD"  # how names of copies begin on the device
# What a profile lists beside work: waits as activities of the device, if they are switched on.
NO_WORK = ("Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event")


class WorkUnknown(Exception):
    """The profile shows no counts; the message says why."""


@dataclass(frozen=True)
class Event:
    """An entry of a profile: a call on the host, or an activity of the device. Nanoseconds of one clock."""

    name: str
    on_device: bool
    start_ns: int
    duration_ns: int


@dataclass(frozen=True)
class Work:
    """What one part asked of the GPU."""

    syncs: int  # calls in which the host waits for the device
    d2h_copies: int
    h2d_copies: int
    kernels: int  # memory sets and copies within the device count as kernels
    device_us: float  # that the device took for all of it


def work_of(events: Iterable[Event], parts: int) -> list[Work]:
    """The work of each part, in order. Raises WorkUnknown if the profile does not have so many parts."""
    listed = list(events)
    marks = sorted((e for e in listed if e.name == PART and not e.on_device), key=lambda e: e.start_ns)
    if len(marks) != parts:
        raise WorkUnknown(f"the profile has {len(marks)} of {parts} parts; is another profiler at work?")
    starts = [mark.start_ns for mark in marks]
    found: list[list[Event]] = [[] for _ in marks]
    for event in listed:
        at = bisect_right(starts, event.start_ns) - 1
        if at < 0 or event.name == PART or event.name.startswith(NO_WORK):
            continue
        if event.on_device or event.start_ns <= starts[at] + marks[at].duration_ns:
            found[at].append(event)
    return [_counted(part) for part in found]


def _counted(events: Sequence[Event]) -> Work:
    on_device = [e for e in events if e.on_device]
    to_host = sum(e.name.startswith(TO_HOST) for e in on_device)
    to_device = sum(e.name.startswith(TO_DEVICE) for e in on_device)
    return Work(
        syncs=sum(e.name in WAITS for e in events if not e.on_device),
        d2h_copies=to_host,
        h2d_copies=to_device,
        kernels=len(on_device) - to_host - to_device,
        device_us=sum(e.duration_ns for e in on_device) / 1e3,
    )


def profile(parts: Sequence[Callable[[], object]]) -> list[Event]:
    """Runs parts one after another under torch's profiler. Needs a CUDA device."""
    from torch.profiler import ProfilerActivity, record_function
    from torch.profiler import profile as torch_profile

    with torch_profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        for part in parts:
            torch.cuda.synchronize()
            time.sleep(SKEW_S)
            with record_function(PART):
                part()
        torch.cuda.synchronize()
    return events_of(profiler)


def events_of(profiler: Any) -> list[Event]:
    """What an ended profile of torch has seen."""
    results = profiler.profiler.kineto_results
    assert results is not None
    on_device = torch._C._autograd.DeviceType.CUDA
    return [Event(e.name(), e.device_type() == on_device, e.start_ns(), e.duration_ns()) for e in results.events()]

"""What a step costs on the host: planning a backend for new lengths, and issuing its call without a graph.

A plan is timed as an engine makes it: on wrappers that exist, for lengths that were not planned before, which lie in the tensors
that kernels read and on the host. The device is idle when it begins, so a wait for the device costs what the call itself takes; in
an engine it also waits for all work before it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kernels.adapter import PlanStep, Runner, nothing_to_plan
from kernels.inputs import Inputs
from kernels.inputs.step_lengths import steps_before
from kernels.lazy import torch
from kernels.timing.profiled import Event, Work, WorkUnknown, profile, work_of
from kernels.timing.stats import ci95_of_median, quantile

WARMUP, PLANS = 8, 64  # plans, each for other lengths: what a library keeps for lengths it has seen does not help it
MIN_PLANS, MAX_SECONDS = 16, 0.25  # of plans that take long
BURSTS, BURST = 8, 8  # calls issued one after another, as a step's layers are, before the device is waited for
PROFILED = 3  # plans and calls whose work is counted
NO_WORK = Work(0, 0, 0, 0, 0.0)

Profile = Callable[[Sequence[Callable[[], object]]], list[Event]]


@dataclass(frozen=True)
class HostTime:
    """Microseconds of the host's clock. `ci95_rel` is the distance of the farther end of the median's 95% interval, over it."""

    median_us: float
    p95_us: float
    ci95_rel: float


@dataclass(frozen=True)
class HostCost:
    """Times and work of one plan and of one call. None: not known; `note` says why."""

    plan: HostTime | None = None
    call: HostTime | None = None
    of_plan: Work | None = None
    of_call: Work | None = None
    note: str = ""


UNSTATED = "the adapter does not say what it plans once a step (Runner.plan_step)"
NO_DEVICE = "kernels, copies and waits are counted only on CUDA devices"
NO_PLAN = HostTime(0.0, 0.0, 0.0)


def measure(runner: Runner, inputs: Inputs, profiler: Profile | None = None) -> HostCost:
    """Plans for the steps before the inputs' own, and last for these; then issues calls, and counts the work of both.

    The inputs' lengths change meanwhile and are as before on return, also after an exception of the backend. Without a CUDA device
    only the plan is timed, unless a `profiler` is given.
    """
    on_gpu = inputs.device.type == "cuda"
    profiler = profiler or (profile if on_gpu else None)
    try:
        plan = _time_plans(runner.plan_step, inputs) if runner.plan_step else None
        call = _time_calls(runner, inputs) if profiler else None
        counted = _count(runner, inputs, profiler) if profiler else NO_DEVICE
    except Exception:
        with suppress(RuntimeError):  # the device may be lost
            steps_before(inputs, 0).write_into(inputs)
        raise
    (of_plan, of_call), why = ((None, None), counted) if isinstance(counted, str) else (counted, "")
    return HostCost(plan, call, of_plan, of_call, "; ".join(filter(None, ("" if runner.plan_step else UNSTATED, why))))


def _time_plans(plan: PlanStep, inputs: Inputs) -> HostTime:
    """The last plan is for the inputs' own lengths."""
    if plan is nothing_to_plan:
        return NO_PLAN
    found: list[float] = []
    for back in reversed(range(1, WARMUP + PLANS)):
        found.append(_time_plan(plan, inputs, back))
        if len(found) >= WARMUP + MIN_PLANS - 1 and sum(found) / 1e6 > MAX_SECONDS:
            break
    found.append(_time_plan(plan, inputs, 0))
    return _summary(found[WARMUP:])


def _time_plan(plan: PlanStep, inputs: Inputs, back: int) -> float:
    step = steps_before(inputs, back)
    step.write_into(inputs)
    _wait(inputs)
    start = time.perf_counter_ns()
    plan(step.host)
    us = (time.perf_counter_ns() - start) / 1e3
    _wait(inputs)  # before the memory of `step` is given back, from which the plan may still be copying
    return us


def _time_calls(runner: Runner, inputs: Inputs) -> HostTime:
    """The first call of a burst warms the host's caches up, and is no sample."""
    found = []
    for _ in range(BURSTS):
        _wait(inputs)
        runner()
        for _ in range(BURST):
            start = time.perf_counter_ns()
            runner()
            found.append((time.perf_counter_ns() - start) / 1e3)
    _wait(inputs)
    return _summary(found)


def _summary(found: Sequence[float]) -> HostTime:
    ordered = sorted(found)
    return HostTime(statistics.median(ordered), quantile(ordered, 0.95), ci95_of_median(ordered))


def _count(runner: Runner, inputs: Inputs, profiler: Profile) -> tuple[Work | None, Work] | str:
    """The work of one plan and of one call, the middle of `PROFILED`; or why it cannot be counted. Writing lengths is no part."""
    plan = runner.plan_step
    backs = reversed(range(PROFILED)) if plan is not None and plan is not nothing_to_plan else ()
    planned = [steps_before(inputs, back) for back in backs]
    parts: list[Callable[[], object]] = []
    for step in planned:
        parts += [lambda step=step: step.write_into(inputs), lambda step=step: plan(step.host)]  # type: ignore[misc]
    parts += [runner] * PROFILED
    try:
        works = work_of(profiler(parts), len(parts))
    except WorkUnknown as reason:
        return str(reason)
    calls = works[2 * len(planned) :]
    if not all(work.kernels for work in calls):
        return "the profile shows no kernel of a call; is another profiler at work?"
    if plan is None:
        return None, _middle(calls)
    return (_middle(works[1 : 2 * len(planned) : 2]) if planned else NO_WORK), _middle(calls)


def _middle(works: Sequence[Work]) -> Work:
    return sorted(works, key=lambda w: (w.syncs, w.d2h_copies, w.h2d_copies, w.kernels, w.device_us))[len(works) // 2]


def _wait(inputs: Inputs) -> None:
    if inputs.device.type == "cuda":
        torch.cuda.synchronize()

"""What a step costs on the host, for each prepared backend, after its samples were taken: `timing.host=true`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kernels.environment.remote import RemoteTimer
from kernels.timing import host_time
from kernels.timing.host_time import HostCost
from orchestrator.storage.row import Row
from orchestrator.worker.prepared import PreparedBackend


def measure_host(timed: Sequence[PreparedBackend]) -> None:
    """Adds the columns of the host's time to the rows of the backends that were timed.

    An exception of a backend becomes the error of its series, as in a sample. Seconds go to `measure_s` and `total_s`. The last
    check of the output follows: a plan that leaves the backend wrong makes the row a mismatch.
    """
    for one in timed:
        started = time.perf_counter()
        try:
            inputs = one.shared.inputs
            timer = one.series.timer
            there = timer.host_cost() if isinstance(timer, RemoteTimer) else None
            one.row |= host_columns(
                there or host_time.measure(one.runner, inputs.padded or inputs)
            )  # a graph's plan has padding too
        except Exception as error:  # a kernel library may raise anything
            one.series.error = error
        one.series.end_turn()
        one.series.budget.wall_s += time.perf_counter() - started


def host_columns(cost: HostCost) -> Row:
    """The columns of a cost."""
    row: Row = {"host_note": cost.note or None}
    if cost.plan is not None:
        row |= {"plan_host_us": cost.plan.median_us, "plan_host_p95_us": cost.plan.p95_us, "plan_host_ci95_rel": cost.plan.ci95_rel}
    if cost.call is not None:
        row |= {"call_host_us": cost.call.median_us, "call_host_p95_us": cost.call.p95_us}
    if (plan := cost.of_plan) is not None:
        row |= {"plan_syncs": plan.syncs, "plan_d2h_copies": plan.d2h_copies, "plan_h2d_copies": plan.h2d_copies}
        row |= {"plan_kernels": plan.kernels, "plan_device_us": plan.device_us}
    if (call := cost.of_call) is not None:
        row |= {"call_syncs": call.syncs, "call_copies": call.d2h_copies + call.h2d_copies, "call_kernels": call.kernels}
    return row

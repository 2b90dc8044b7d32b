"""The row of a backend that was measured, or credited with the time of another one whose call is the same."""

from __future__ import annotations

from kernels.device import Device
from kernels.timing.config import Timing
from orchestrator.errors import WroteInputs
from orchestrator.storage.row import Row
from orchestrator.worker.failure import classify_exception
from orchestrator.worker.prepared import PreparedBackend
from orchestrator.worker.provenance import Provenance
from orchestrator.worker.result_columns import caveats, decided_note, rate_columns, throttled_note, time_columns
from orchestrator.worker.seconds import add_seconds
from orchestrator.worker.step_part import step_note
from orchestrator.worker.task_row import finish_row


def measured_row(one: PreparedBackend, others: str, timing: Timing, device: Device, provenance: Provenance) -> Row:
    """The row of a backend whose series has ended. `others` are other processes that used the device meanwhile."""
    row, series = one.row, one.series
    budgets = [series.budget, *([one.step.series.budget] if one.step else [])]
    row["rest_s"] = sum(budget.idle_s for budget in budgets)
    add_seconds(row, "measure_s", sum(budget.wall_s for budget in budgets))
    add_seconds(row, "total_s", sum(budget.wall_s + budget.idle_s for budget in budgets))
    if isinstance(series.error, WroteInputs):
        row["check"] = "failed"
        return finish_row(row, one.task, "mismatch", f"right before it was timed, and then: {series.error}")
    if series.error:
        return finish_row(row, one.task, *classify_exception(series.error))
    if one.verdict and one.failed_check:
        return finish_row(row, one.task, "mismatch", f"right before it was timed, and then: {one.verdict.reason}")
    timed = one.measured_as or one
    measurement = timed.series.result()
    if not measurement.only_unthrottled and timing.throttled == "refuse":
        return finish_row(row, one.task, "failed", f"{throttled_note(measurement)}; timing.throttled=refuse")
    problem, l2 = one.shared.inputs.problem, provenance.l2_bytes
    row |= time_columns(measurement) | {"other_processes": others or None}
    if one.measured_as is not None:
        row |= _credited(one.measured_as)
    row["working_set_over_l2"] = problem.bytes / l2 if l2 else None
    assert row["median_us"] is not None
    row |= rate_columns(problem, row["median_us"], one.runner.compute_dtype, device, provenance.ceilings)
    row |= one.step.columns() if one.step else {}
    notes = (caveats(row, measurement), decided_note(timed.decided_by), step_note(row))
    return finish_row(row, one.task, "ok", " | ".join(filter(None, notes)))


def _credited(source: PreparedBackend) -> Row:
    """What a row has from the backend that was measured in its place, beside the time."""
    energy = {name: value for name, value in source.row.items() if name.startswith("energy_")}
    return {"measured_as": source.task.point.backend, **energy}  # type: ignore[typeddict-item]

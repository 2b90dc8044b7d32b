"""Reads the evaluations of flashinfer-trace as rows: one for each trace that has one, marked as imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernels.device import Device
from kernels.problem import Problem
from orchestrator import machines
from orchestrator.formats import imported
from orchestrator.formats.flashinfer_trace.reader import GIVE, MAX_BYTES, root_of, rule_of, traces_of
from orchestrator.formats.flashinfer_trace.writer import AUTHOR
from orchestrator.point import Point, fingerprint
from orchestrator.remainder import Remainder
from orchestrator.storage.row import Row, Status, finish
from orchestrator.untrusted.files import read_bytes

ORIGIN = "flashinfer_trace"  # `orchestrator_version` of an imported row
MISMATCHES = ("INCORRECT_SHAPE", "INCORRECT_NUMERICAL", "INCORRECT_DTYPE")
STATUSES: dict[str, Status] = {
    "PASSED": "ok",
    **dict.fromkeys(MISMATCHES, "mismatch"),
    **dict.fromkeys(("RUNTIME_ERROR", "COMPILE_ERROR"), "failed"),
    "TIMEOUT": "timeout",
}


def read(path: str, device: Device | None, sweep: str) -> list[Row]:
    """A row for each evaluation, of two of one solution at one workload the last. The GPU is the one that the trace names.

    Raises UserError if no evaluation is left.
    """
    rest, root = Remainder(path), root_of(Path(path))
    common = imported.common(path, read_bytes(path, MAX_BYTES), sweep, ORIGIN)
    rows: dict[str, Row] = {}
    for number, (row, status, words) in rest.each(traces_of(path, rest), lambda trace: _row(trace, root, device, common)):
        reason = f"imported: line {number} of {common['cluster']}, {words}"
        rows[row["point_id"] + row["device_name"]] = finish(row, status, reason)
    rest.close(len(rows), GIVE)
    return list(rows.values())


def _row(trace: Mapping[str, Any], root: Path, device: Device | None, common: Row) -> tuple[Row, Status, str]:
    """The row of a trace, its status, and a word on it. Raises ValueError for a value without a counterpart."""
    evaluation, solution = trace.get("evaluation"), str(trace.get("solution"))
    if not isinstance(evaluation, dict):
        raise ValueError("no evaluation; +sweep.backend=[auto] makes a point of its workload")
    if (word := str(evaluation.get("status"))) not in STATUSES:
        raise ValueError(f"evaluation.status={word!r:.80}: allowed: {', '.join(STATUSES)}")
    keys, is_exact = rule_of(trace, root)
    environment, status, us = _mapping(evaluation, "environment"), STATUSES[word], None
    own = solution.removeprefix(f"{AUTHOR}_").removesuffix(f"_{trace['definition']}")
    libs = {name: str(version) for name, version in _mapping(environment, "libs").items()}
    error = _mapping(evaluation, "correctness").get("max_relative_error")
    if status == "ok":
        us = imported.microseconds("latency_ms", _mapping(evaluation, "performance").get("latency_ms"))
    backend = own if solution.startswith(AUTHOR) else solution
    row: Row = {
        **imported.timed(Point(Problem.model_validate(keys), backend, fingerprint([ORIGIN, solution])), us, common),
        "device_name": _device_name(str(environment.get("hardware", "")).replace("_", " "), device),
        "torch_version": libs.get("torch"),
        "cuda": libs.get("cuda"),
        "libraries": ", ".join(f"{k} {v}" for k, v in sorted(libs.items()) if k not in ("torch", "cuda", AUTHOR)) or None,
        "check": f"not_checked: imported; its max_relative_error is {error!r:.40}",
        "timer": f"{ORIGIN}, which does not say how",
    }
    return row, status, word if is_exact else f"{word}, lengths split evenly"


def _mapping(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = parent.get(key)
    return found if isinstance(found, dict) else {}


def _device_name(hardware: str, device: Device | None) -> str:
    """The driver's name of the GPU, of which traces may have the first words. Raises ValueError for another than `device`."""
    known = [device] if device is not None else machines.known_devices().values()
    found = next((one.name for one in known for name in (one.name, *one.match) if hardware and name.startswith(hardware)), None)
    if found is None and (device is not None or not hardware):
        raise ValueError(f"evaluation.environment.hardware={hardware!r:.80}: allowed: {device.name if device else 'a GPU'}")
    return found or hardware

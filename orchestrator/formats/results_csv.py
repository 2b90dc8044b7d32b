"""Reads the result files of FlashInfer's `flashinfer_benchmark.py`: a row of a dataset for each line, marked as imported."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from kernels.device import Device
from kernels.problem import Problem
from orchestrator import row as rows
from orchestrator.formats.complaints import Complaints
from orchestrator.formats.flashinfer import (
    COLUMNS,
    HEADS,
    ROUTINES,
    SEED,
    WHOLE,
    Case,
    our_backend,
    our_dtype,
    problem_keys,
    uncounted_flops,
)
from orchestrator.row import Row
from orchestrator.sweep import Point, fingerprint

ORIGIN = "flashinfer_benchmark"  # what measured an imported row: no version of this project

NEEDED = ("routine", "median_time", "backend", "batch_size", "s_kv", "num_qo_heads", "q_dtype", "kv_dtype")
NOTHING = frozenset({"", "None", "none", "default", "False"})  # what a cell holds of a column that is another routine's


def read(path: str, device: Device, sweep: str) -> list[Row]:
    """A row for each line of a result file, marked as imported; `device` is the GPU they were measured on, which no column says.

    Raises UserError that names every line and column that has no counterpart.
    """
    text = Path(path).read_text(encoding="utf-8")
    complaints = Complaints(path)
    lines = csv.reader(io.StringIO(text, newline=""))
    header = next(lines, [])
    if missing := [column for column in NEEDED if column not in header]:
        complaints.add(1, f"no column {', '.join(missing)}; allowed: a result file of flashinfer_benchmark.py --output_path")
        complaints.settle("give such a file")
    common = _common(path, text, device, sweep)
    found = [_row(complaints, lines.line_num, header, cells, common) for cells in lines if cells]
    complaints.settle("delete or mend these lines")
    return [row for row in found if row is not None]


def _common(path: str, text: str, device: Device, sweep: str) -> Row:
    """What is true of every row of a file. Its date stands for the time of measurement, which no column says."""
    written = datetime.fromtimestamp(Path(path).stat().st_mtime, UTC).isoformat()
    return {
        "run_id": f"imported-{hashlib.sha256(text.encode()).hexdigest()[:12]}",
        "sweep": sweep,
        "cluster": Path(path).name,
        "device_name": device.name,
        "orchestrator_version": ORIGIN,
        "check": "not_checked: imported; FlashInfer's refcheck compares backends with one another",
        "started_at": written,
        "finished_at": written,
    }


def _row(complaints: Complaints, line: int, header: list[str], cells: list[str], common: Row) -> Row | None:
    if len(cells) != len(header):
        complaints.add(line, f"{len(cells)} cells under {len(header)} columns; put quotes around a cell that holds a comma")
        return None
    said = dict(zip(header, cells, strict=True))
    if said["routine"] not in ROUTINES:
        complaints.add(line, f"routine={said['routine']!r} is no routine of this project; allowed: {', '.join(ROUTINES)}")
        return None
    for column in said.keys() - set(COLUMNS):
        if said[column] not in NOTHING:
            complaints.add(line, f"{column}={said[column]!r} has no counterpart here")
    if said.get("enable_pdl", "") not in NOTHING:
        complaints.add(line, f"enable_pdl={said['enable_pdl']!r}: no backend here launches so")
    case = complaints.hear(line, lambda: _case(said))
    return None if case is None else complaints.hear(line, lambda: _filled(line, said, case, common))


def _filled(line: int, said: Mapping[str, str], case: Case, common: Row) -> Row:
    """Raises ValueError for a cell that is no number, and for a problem that cannot be."""
    case, known = _with_lengths(case, said)
    problem = Problem.model_validate(problem_keys(case))
    how = fingerprint([ORIGIN, *(said.get(column, "") for column in ("no_cuda_graph", "use_cupti"))])
    point = Point(problem, our_backend(problem.routine, said["backend"]), how)
    times = {"median_us": _us(said, "median_time"), "std_us": _us(said, "std_time") if said.get("std_time") else None}
    return rows.finish(
        {
            **rows.describe(point),
            **common,
            **times,
            **_rates(problem, _us(said, "median_time") / 1e6, said, known),
            "resolved_backend": said.get("resolved_backend") or None,
            "command": said.get("repro_command") or None,
            "timer": f"{ORIGIN}, {'CUPTI' if said.get('use_cupti') == 'True' else 'CUDA events'} asked",
            "cuda_graph": False if said.get("no_cuda_graph") == "True" else None,  # else asked for, which is not used
        },
        "ok",
        _reason(line, said, common, known),
    )


def _rates(problem: Problem, seconds: float, said: Mapping[str, str], known: bool) -> Row:
    """Rates of the whole work; where the lengths are lost, the file's own, and no FLOPs and bytes."""
    if known:
        return {"tflops": problem.flops / seconds / 1e12, "tb_per_sec": problem.bytes / seconds / 1e12}
    tflops, tb_per_sec = (_number(said, key) for key in ("tflops", "tb_per_sec"))
    uncounted = uncounted_flops(problem) if problem.min_s_qo is None else 0
    return {
        "flops": None,
        "bytes": None,
        "tflops": None if tflops is None else tflops + uncounted / seconds / 1e12,
        "tb_per_sec": tb_per_sec,
    }


def _reason(line: int, said: Mapping[str, str], common: Row, known: bool) -> str:
    parts = [f"imported: line {line} of {common['cluster']}"]
    if tag := said.get("case_tag", ""):
        parts.append(f"case_tag {tag}")
    if not said.get("out_dtype") and our_dtype(said["q_dtype"]).startswith("fp8"):
        parts.append("out_dtype is not said and taken to be the query's")
    if not known:
        parts.append(f"lengths drawn there and lost, {said.get('avg_actual_seq_len') or 'unknown'} on average")
    return ", ".join(parts)


def _case(said: Mapping[str, str]) -> Case:
    if lacking := [key for key in ("batch_size", "s_kv", "num_qo_heads") if said[key] in NOTHING]:
        raise ValueError(f"{lacking[0]}={said[lacking[0]]!r}: allowed: a whole number")
    causal = _yes(said, "causal")
    fields: dict[str, Any] = {
        **{key: _whole(said, key) for key in (*WHOLE, *HEADS, "batch_size") if said.get(key, "") not in NOTHING},
        **{key: our_dtype(said[key]) for key in ("q_dtype", "kv_dtype", "out_dtype") if said.get(key)},
        "random_actual_seq_len": _yes(said, "random_actual_seq_len"),
        "random_seed": _whole(said, "random_seed") if said.get("random_seed") else SEED,
    }
    return Case(said["routine"], causal=causal, spec_dec_mask="causal" if causal else "full", **fields)


def _with_lengths(case: Case, said: Mapping[str, str]) -> tuple[Case, bool]:
    """The case, and whether its lengths are known: given, or drawn again with the average that the file has."""
    if not case.random_actual_seq_len:
        return case, True
    problem = Problem.model_validate(problem_keys(case))
    averages = {str(sum(lens) // case.batch_size) for lens in (problem.q_lens, problem.kv_lens)}
    if problem.seq_lens != "random" and said.get("avg_actual_seq_len") in averages:
        return case, True
    return replace(case, redraw=False), False


def _yes(said: Mapping[str, str], key: str) -> bool:
    if (word := said.get(key) or "False") not in ("True", "False"):
        raise ValueError(f"{key}={word!r}: allowed: True or False")
    return word == "True"


def _number(said: Mapping[str, str], key: str) -> float | None:
    try:
        return float(said[key]) if said.get(key) else None
    except ValueError:
        raise ValueError(f"{key}={said[key]!r}: allowed: a number") from None


def _whole(said: Mapping[str, str], key: str) -> int:
    try:
        return int(said[key])
    except ValueError:
        raise ValueError(f"{key}={said[key]!r}: allowed: a whole number") from None


def _us(said: Mapping[str, str], key: str) -> float:
    """Milliseconds of a cell as microseconds; the point moves in the decimal text, so that no digit changes."""
    try:
        us = float(Decimal(said[key]).scaleb(3))
    except InvalidOperation:
        raise ValueError(f"{key}={said[key]!r}: allowed: a number of milliseconds") from None
    if not 0 <= us < float("inf") or (key == "median_time" and not us):
        raise ValueError(f"{key}={said[key]!r}: allowed: a number of milliseconds above 0")
    return us

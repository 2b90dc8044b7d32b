"""Reads the result files of FlashInfer's `flashinfer_benchmark.py`: one row for each line, marked as imported."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

from kernels.device import Device
from kernels.problem import Problem
from orchestrator.errors import UserError
from orchestrator.formats import imported
from orchestrator.formats.flashinfer import (
    COLUMNS,
    HEAD_COLUMNS,
    LENGTH_COLUMNS,
    ROUTINES,
    SEED,
    BenchmarkCase,
    our_backend,
    our_dtype,
    problem_keys,
    uncounted_flops,
)
from orchestrator.point import Point, fingerprint
from orchestrator.remainder import NotTaken, Remainder
from orchestrator.storage.row import Row, describe, finish
from orchestrator.untrusted.files import read_text

T = TypeVar("T")

ORIGIN = "flashinfer_benchmark"  # `orchestrator_version` of an imported row: this project did not measure it

NEEDED_COLUMNS = ("routine", "median_time", "backend", "batch_size", "s_kv", "num_qo_heads", "q_dtype", "kv_dtype")
MAX_BYTES = 256 * 10**6
GIVE = "give a result file of flashinfer_benchmark.py"
EMPTY_CELLS = frozenset({"", "None", "none", "default", "False"})  # in a column of another routine


def read(path: str, device: Device, sweep: str) -> list[Row]:
    """One row for each line of attention in a result file, marked as imported.

    No column names the GPU, so `device` does. Raises UserError if no line is left.
    """
    text = read_text(path, "import", MAX_BYTES)
    if "\0" in text:
        raise UserError(f"{path}:{text.count(chr(10), 0, text.index(chr(0))) + 1}: a null character, so no text; {GIVE}")
    rest = Remainder(path)
    lines = _lines(path, text)
    header = lines[0][1] if lines else []
    if twice := [column for column, times in Counter(header).items() if times > 1 and column in COLUMNS]:
        rest.add(1, f"the column {twice[0]!r} stands there twice")
    if missing := [column for column in NEEDED_COLUMNS if column not in header]:
        rest.add(1, f"no column {', '.join(missing)}; allowed: a result file of flashinfer_benchmark.py --output_path")
    rest.close(0, GIVE)
    common: Row = {
        **imported.common(path, text.encode(), sweep, ORIGIN),
        "device_name": device.name,
        "check": "not_checked: imported; FlashInfer's refcheck compares backends with one another",
    }
    found = [
        rest.collect(number, lambda number=number, values=values: _row(number, header, values, common))  # type: ignore[misc]
        for number, values in lines[1:]
        if values
    ]
    rows = [row for row in found if row is not None]
    rest.close(len(rows), f"{GIVE} with lines of {', '.join(ROUTINES)}")
    return rows


def _lines(path: str, text: str) -> list[tuple[int, list[str]]]:
    """The cells of each line, with its number. Raises UserError for a text that is no CSV."""
    reader = csv.reader(io.StringIO(text, newline=""))
    found: list[tuple[int, list[str]]] = []
    try:
        found.extend((reader.line_num, values) for values in reader)
    except csv.Error:
        where = f"{path}:{reader.line_num}"
        raise UserError(f"{where}: not CSV: a cell has no end, or is far too long; {GIVE}") from None
    return found


def _row(line: int, header: list[str], values: list[str], common: Row) -> Row:
    """The row of a line. Raises ValueError for a cell that has no counterpart, and for keys that are no valid problem."""
    if len(values) != len(header):
        raise ValueError(f"{len(values)} cells under {len(header)} columns; put quotes around a cell that holds a comma")
    cells = dict(zip(header, values, strict=True))
    if cells["routine"] not in ROUTINES:
        raise NotTaken("of other routines", cells["routine"])
    if unknown := [column for column in header if column not in COLUMNS and cells[column] not in EMPTY_CELLS]:
        raise ValueError(f"{unknown[0]}={cells[unknown[0]]!r} has no counterpart here")
    case, known = _with_lengths(_case(cells), cells)
    problem = Problem.model_validate(problem_keys(case))
    how = fingerprint([ORIGIN, *(cells.get(column, "") for column in ("no_cuda_graph", "use_cupti"))])
    point = Point(problem, our_backend(problem.routine, cells["backend"]), how)
    median_us = _us(cells, "median_time")
    imported.microseconds("median_time", median_us / 1e3)
    times: Row = {"median_us": median_us, "std_us": _us(cells, "std_time") if cells.get("std_time") else None}
    return finish(
        {
            **describe(point),
            **common,
            **times,
            **_rates(problem, median_us / 1e6, cells, known),
            "resolved_backend": cells.get("resolved_backend") or None,
            "command": cells.get("repro_command") or None,
            "timer": f"{ORIGIN}, {'CUPTI' if cells.get('use_cupti') == 'True' else 'CUDA events'} asked",
            "cuda_graph": False
            if cells.get("no_cuda_graph") == "True"
            else None,  # otherwise a graph was requested, which does not say that one was used
        },
        "ok",
        _reason(line, cells, common, known),
    )


def _rates(problem: Problem, seconds: float, cells: Mapping[str, str], known: bool) -> Row:
    """TFLOP/s and TB/s from FLOPs and bytes; if the lengths are unknown, the file's own rates, without FLOPs and bytes."""
    if known:
        return {"tflops": problem.flops / seconds / 1e12, "tb_per_sec": problem.bytes / seconds / 1e12}
    tflops, tb_per_sec = (_number(cells, key) for key in ("tflops", "tb_per_sec"))
    uncounted = uncounted_flops(problem) if problem.min_s_qo is None else 0
    return {
        "flops": None,
        "bytes": None,
        "tflops": None if tflops is None else tflops + uncounted / seconds / 1e12,
        "tb_per_sec": tb_per_sec,
    }


def _reason(line: int, cells: Mapping[str, str], common: Row, known: bool) -> str:
    parts = [f"imported: line {line} of {common['cluster']}"]
    if tag := cells.get("case_tag", ""):
        parts.append(f"case_tag {tag}")
    if not cells.get("out_dtype") and our_dtype(cells["q_dtype"]).startswith("fp8"):
        parts.append("out_dtype is not said and taken to be the query's")
    if not known:
        parts.append(f"lengths drawn there and lost, {cells.get('avg_actual_seq_len') or 'unknown'} on average")
    return ", ".join(parts)


def _case(cells: Mapping[str, str]) -> BenchmarkCase:
    if lacking := [key for key in ("batch_size", "s_kv", "num_qo_heads") if cells[key] in EMPTY_CELLS]:
        raise ValueError(f"{lacking[0]}={cells[lacking[0]]!r}: allowed: a whole number")
    causal = _yes(cells, "causal")
    whole = (*LENGTH_COLUMNS, *HEAD_COLUMNS, "batch_size")
    fields: dict[str, Any] = {
        **{key: _whole(cells, key) for key in whole if cells.get(key, "") not in EMPTY_CELLS},
        **{key: our_dtype(cells[key]) for key in ("q_dtype", "kv_dtype", "out_dtype") if cells.get(key)},
        "random_actual_seq_len": _yes(cells, "random_actual_seq_len"),
        "enable_pdl": True if _yes(cells, "enable_pdl") else None,  # False says that nothing was asked
        "random_seed": _whole(cells, "random_seed") if cells.get("random_seed") else SEED,
    }
    return BenchmarkCase(cells["routine"], causal=causal, spec_dec_mask="causal" if causal else "full", **fields)


def _with_lengths(case: BenchmarkCase, cells: Mapping[str, str]) -> tuple[BenchmarkCase, bool]:
    """The case, and whether its lengths are known: they were given, or drawing them again gives the file's average."""
    if not case.random_actual_seq_len:
        return case, True
    problem = Problem.model_validate(problem_keys(case))
    averages = {str(sum(lens) // case.batch_size) for lens in (problem.q_lens, problem.kv_lens)}
    if problem.seq_lens != "random" and cells.get("avg_actual_seq_len") in averages:
        return case, True
    return replace(case, redraw=False), False


def _yes(cells: Mapping[str, str], key: str) -> bool:
    return _cell({key: cells.get(key) or "False"}, key, {"True": True, "False": False}.__getitem__, "True or False")


def _number(cells: Mapping[str, str], key: str) -> float | None:
    return _cell(cells, key, float, "a number") if cells.get(key) else None


def _whole(cells: Mapping[str, str], key: str) -> int:
    return _cell(cells, key, int, "a whole number")


def _cell(cells: Mapping[str, str], key: str, read: Callable[[str], T], allowed: str) -> T:
    try:
        return read(cells[key])
    except (ValueError, KeyError, InvalidOperation):
        raise ValueError(f"{key}={cells[key]!r:.80}: allowed: {allowed}") from None


def _us(cells: Mapping[str, str], key: str) -> float:
    """Milliseconds in a cell, as microseconds. The decimal point is moved in the text, so that no digit changes."""
    us = _cell(cells, key, lambda text: float(Decimal(text).scaleb(3)), "a number of milliseconds")
    if not 0 <= us < float("inf"):
        raise ValueError(f"{key}={cells[key]!r}: allowed: a number of milliseconds from 0")
    return us

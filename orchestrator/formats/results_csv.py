"""Result files of FlashInfer's `flashinfer_benchmark.py`: each line read as a row, marked as imported, and a dataset written so."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any

from pydantic import ValidationError

from kernels.device import Device
from kernels.problem import Problem
from orchestrator.analysis.rough import how_known
from orchestrator.analysis.sql import text_of
from orchestrator.errors import NotTaken, UserError, explain
from orchestrator.formats import flashinfer, imported
from orchestrator.formats.flashinfer import COLUMNS, MLA_NOPE, MLA_VALUES, ROUTINES, TORCH_DTYPES, their_backend, uncounted_flops
from orchestrator.point import Point, fingerprint
from orchestrator.remainder import Remainder
from orchestrator.storage.row import Row, finish
from orchestrator.untrusted.files import read_text
from orchestrator.untrusted.text import for_csv

ORIGIN = "flashinfer_benchmark"  # `orchestrator_version` of an imported row: this project did not measure it

NEEDED_COLUMNS = ("routine", "median_time", "backend", "batch_size", "s_kv", "num_qo_heads", "q_dtype", "kv_dtype")
MAX_BYTES = 256 * 10**6
GIVE = "give a result file of flashinfer_benchmark.py"
WHOLE_COLUMNS = (*flashinfer.LENGTH_COLUMNS, *flashinfer.HEAD_COLUMNS, "batch_size", "random_seed")
TRUTH_COLUMNS = ("causal", "random_actual_seq_len", "enable_pdl")
CASE_COLUMNS = (*WHOLE_COLUMNS, *TRUTH_COLUMNS)
NEEDED_NUMBERS = ("batch_size", "s_kv", "num_qo_heads")
EMPTY_CELLS = frozenset({"", "None", "none", "default", "False"})  # in a column of another routine
# Keys of a problem that its files have no column for, and on which times depend: on a softmax scale they do not.
NO_COLUMN = (
    *("window", "sinks", "tree", "kv_layout", "page_order", "min_s_qo", "batch_spec", "max_seq_len"),
    *("shared_prefix", "return_lse", "graph_batch", "num_states", "mask_prefix", "soft_cap", "kv_memory"),
)


def _us(cell: str) -> float:
    """Milliseconds as microseconds. The decimal point is moved in the text, so that no digit changes."""
    if not 0 <= (us := float(Decimal(cell).scaleb(3))) < math.inf:
        raise ValueError(cell)
    return us


# How a cell of each column is read, and what is allowed there.
CELLS: dict[str, tuple[Callable[[str], Any], str]] = {
    **dict.fromkeys(WHOLE_COLUMNS, (int, "a whole number")),
    **dict.fromkeys(TRUTH_COLUMNS, ({"True": True}.__getitem__, "True or False")),  # False says that nothing was asked
    **dict.fromkeys(("tflops", "tb_per_sec"), (float, "a number")),
    **dict.fromkeys(("median_time", "std_time"), (_us, "a number of milliseconds from 0")),
}


def read(path: str, device: Device, sweep: str) -> list[Row]:
    """A row, marked as imported, for each line of attention; `device` is the GPU. Raises UserError if no line is left."""
    text = read_text(path, "import", MAX_BYTES)
    if "\0" in text:
        raise UserError(f"{path}:{text.count(chr(10), 0, text.index(chr(0))) + 1}: a null character, so no text; {GIVE}")
    rest = Remainder(path)
    lines = _lines(path, text)
    header = lines[0][1] if lines else []
    if twice := [column for column, times in Counter(header).items() if times > 1 and column in flashinfer.COLUMNS]:
        rest.add(1, f"the column {twice[0]!r} stands there twice")
    if missing := [column for column in NEEDED_COLUMNS if column not in header]:
        needed = f"these columns, median_time in milliseconds (ms), routine one of {', '.join(ROUTINES)}"
        rest.add(1, f"no column {', '.join(missing)}; allowed: a result file of flashinfer_benchmark.py --output_path, or {needed}")
    rest.close(0, GIVE)
    common: Row = {
        **imported.common(path, text.encode(), sweep, ORIGIN),
        "device_name": device.name,
        "check": "not_checked: imported; FlashInfer's refcheck compares backends with one another",
    }
    cells = ((number, values) for number, values in lines[1:] if values)
    rows = [
        finish(row, "ok", f"imported: line {number} of {common['cluster']}{row['reason']}")
        for number, row in rest.each(cells, lambda values: _row(header, values, common))
    ]
    rest.close(len(rows), f"{GIVE} with lines of {', '.join(ROUTINES)}")
    return rows


def _lines(path: str, text: str) -> list[tuple[int, list[str]]]:
    """The cells of each line, with its number. Raises UserError for a text that is no CSV."""
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        return [(reader.line_num, values) for values in reader]
    except csv.Error:
        raise UserError(f"{path}:{reader.line_num}: not CSV: a cell has no end, or is far too long; {GIVE}") from None


def _row(header: list[str], values: list[str], common: Row) -> Row:
    """The row of a line. Raises ValueError for a cell that has no counterpart, and for keys that are no valid problem."""
    if len(values) != len(header):
        raise ValueError(f"{len(values)} cells under {len(header)} columns; put quotes around a cell that holds a comma")
    cells = dict(zip(header, values, strict=True))
    if cells["routine"] not in flashinfer.ROUTINES:
        raise NotTaken("of other routines", cells["routine"])
    if unknown := [column for column in header if column not in flashinfer.COLUMNS and cells[column] not in EMPTY_CELLS]:
        raise ValueError(f"{unknown[0]}={cells[unknown[0]]!r} has no counterpart here")
    case, known = _with_lengths(_case(cells), cells)
    problem, median_us = Problem.model_validate(flashinfer.problem_keys(case)), _read(cells, "median_time")
    imported.microseconds("median_time", median_us / 1e3)
    how = fingerprint([ORIGIN, *(cells.get(column, "") for column in ("no_cuda_graph", "use_cupti"))])
    point = Point(problem, flashinfer.our_backend(problem.routine, cells["backend"]), how)
    return {
        **imported.timed(point, median_us, common),
        **({} if known else _rates(problem, median_us / 1e6, cells)),
        "std_us": _read(cells, "std_time") if cells.get("std_time") else None,
        "resolved_backend": cells.get("resolved_backend") or None,
        "command": cells.get("repro_command") or None,
        "timer": f"{ORIGIN}, {'CUPTI' if cells['use_cupti'] == 'True' else 'CUDA events'} asked" if "use_cupti" in cells else None,
        # otherwise a graph was requested, which does not say that one was used
        "cuda_graph": False if cells.get("no_cuda_graph") == "True" else None,
        "reason": _reason(cells, known),
    }


def _rates(problem: Problem, seconds: float, cells: Mapping[str, str]) -> Row:
    """The file's own rates, without FLOPs and bytes, for unknown lengths."""
    tflops, tb_per_sec = (_read(cells, key) if cells.get(key) else None for key in ("tflops", "tb_per_sec"))
    if tflops is not None and problem.min_s_qo is None:
        tflops += flashinfer.uncounted_flops(problem) / seconds / 1e12
    return {"flops": None, "bytes": None, "tflops": tflops, "tb_per_sec": tb_per_sec}


def _reason(cells: Mapping[str, str], known: bool) -> str:
    parts = [f"case_tag {cells['case_tag']}"] if cells.get("case_tag") else []
    if not cells.get("out_dtype") and flashinfer.our_dtype(cells["q_dtype"]).startswith("fp8"):
        parts.append("out_dtype is not said and taken to be the query's")
    if not known:
        parts.append(f"lengths drawn there and lost, {cells.get('avg_actual_seq_len') or 'unknown'} on average")
    return "".join(f", {part}" for part in parts)


def _case(cells: Mapping[str, str]) -> flashinfer.BenchmarkCase:
    """The case of a line. A cell that says nothing is the flag's default, except for the numbers that every case has."""
    said = [key for key in CASE_COLUMNS if key in NEEDED_NUMBERS or cells.get(key, "") not in EMPTY_CELLS]
    fields = {key: _read(cells, key) for key in said}
    fields |= {key: flashinfer.our_dtype(cells[key]) for key in ("q_dtype", "kv_dtype", "out_dtype") if cells.get(key)}
    mask = "causal" if fields.get("causal") else "full"
    return flashinfer.BenchmarkCase(cells["routine"], spec_dec_mask=mask, **fields)


def _with_lengths(case: flashinfer.BenchmarkCase, cells: Mapping[str, str]) -> tuple[flashinfer.BenchmarkCase, bool]:
    """The case, and whether its lengths are known: they were given, or drawing them again gives the file's average."""
    if not case.random_actual_seq_len:
        return case, True
    problem = Problem.model_validate(flashinfer.problem_keys(case))
    averages = {str(sum(lens) // case.batch_size) for lens in (problem.q_lens, problem.kv_lens)}
    if problem.seq_lens != "random" and cells.get("avg_actual_seq_len") in averages:
        return case, True
    return replace(case, redraw=False), False


def _read(cells: Mapping[str, str], column: str) -> Any:
    """The value of a cell. Raises ValueError for one that its column does not allow."""
    read, allowed = CELLS[column]
    try:
        return read(cells[column])
    except (ValueError, KeyError, InvalidOperation):
        raise ValueError(f"{column}={cells[column]!r:.80}: allowed: {allowed}") from None


def to_csv(rows: Iterable[Mapping[str, Any]]) -> tuple[str, Counter[str]]:
    """Rows (each point once) as FlashInfer's CSV, rough ones named in `case_tag`, and how many it cannot hold, by reason."""
    out, left_out = io.StringIO(newline=""), Counter[str]()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        if reason := inexpressible(row):
            left_out[reason] += 1
        else:
            writer.writerow({name: for_csv(cell) for name, cell in _cells(row).items()})
    return out.getvalue(), left_out


def inexpressible(row: Mapping[str, Any]) -> str:
    """Why FlashInfer's columns cannot hold a row; empty if they can."""
    if row["status"] != "ok":
        return f"{row['status']}: its files have only times"
    if row["twin"] == 1:
        return "twin: its files have each case once"
    try:
        return _without_column(problem_of(row))
    except UserError as error:
        return str(error)


def _without_column(problem: Problem) -> str:
    for key in NO_COLUMN:
        if getattr(problem, key) != Problem.model_fields[key].default:
            return f"{key}: no column for it"
    if problem.enable_pdl is False:
        return "enable_pdl=false: in its files False says that nothing was asked"
    if problem.latent and (problem.head_dim_vo, problem.head_dim_qk - (problem.head_dim_kpe or 0)) != (MLA_VALUES, MLA_NOPE):
        return "head_dim_qk of MLA: no column for it"
    return ""


def problem_of(row: Mapping[str, Any]) -> Problem:
    """The problem of a row of a dataset, as pandas holds it. Raises UserError for values that no problem has."""
    import pandas as pd

    given = {key: row[key] for key in Problem.model_fields if key != "tree" and not pd.isna(row[key])}
    numbers = {key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in given.items()}
    try:
        return Problem.model_validate({**numbers, "tree": None if row["tree"] is None else tuple(map(int, row["tree"]))})
    except (TypeError, ValueError) as error:
        said = explain(error) if isinstance(error, ValidationError) else f"tree: {error}"
        raise UserError(f"no problem of this project: {said.splitlines()[0]}") from None


def _cells(row: Mapping[str, Any]) -> dict[str, object]:
    """A row in its columns: times in milliseconds, rates by FlashInfer's formulas. Columns of other routines stay empty."""
    problem = problem_of(row)
    dims = ("head_dim_ckv", "head_dim_kpe") if problem.latent else ("head_dim_qk", "head_dim_vo")
    same = ("s_qo", "s_kv", "batch_size", "num_qo_heads", "num_kv_heads", *dims)
    dtypes = {"q_dtype": problem.q_dtype, "kv_dtype": problem.kv_dtype, "out_dtype": problem.output_dtype}
    return {
        **{key: getattr(problem, key) for key in same},
        **{key: next(theirs for theirs, ours in TORCH_DTYPES.items() if ours == dtype) for key, dtype in dtypes.items()},
        "routine": next(theirs for theirs, ours in ROUTINES.items() if ours == problem.routine),
        "median_time": _ms(row["median_us"]),
        "std_time": _ms(row["std_us"]),
        "tflops": row["tflops"] - uncounted_flops(problem) / (row["median_us"] * 1e6),
        "tb_per_sec": row["tb_per_sec"],
        "backend": their_backend(problem.routine, row["backend"]),
        "resolved_backend": row["resolved_backend"] or "",
        "causal": problem.mask == "causal" and (problem.s_qo > 1 or not (problem.latent or problem.routine == "paged_decode")),
        "avg_actual_seq_len": problem.num_kv_tokens // problem.batch_size,
        "random_actual_seq_len": problem.seq_lens == "random",
        "page_size": problem.page_size if problem.paged else 0,
        "enable_pdl": bool(problem.enable_pdl),
        "refcheck": row["check"] == "passed",
        "no_cuda_graph": row["cuda_graph"] is not None and not row["cuda_graph"],
        "use_cupti": "CUPTI" in text_of(row["timer"]),
        "allow_output_mismatch": False,
        "random_seed": problem.seed,
        "case_tag": "; ".join(filter(None, (f"{row['model']} on {row['device_name']}", how_known(row)))),
        "generate_repro_command": bool(row["command"]),
        "repro_command": row["command"] or "",
    }


def _ms(us: float) -> str:
    return "" if math.isnan(us) else str(Decimal(repr(float(us))).scaleb(-3))

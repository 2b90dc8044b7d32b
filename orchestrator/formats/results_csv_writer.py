"""Writes a dataset in the columns of FlashInfer's result files, for programs that read those."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from pydantic import ValidationError

from kernels.problem import Problem
from orchestrator.analysis.rough import counted, how_known
from orchestrator.analysis.sql import text_of
from orchestrator.errors import UserError, explain
from orchestrator.formats.flashinfer import COLUMNS, MLA_NOPE, MLA_VALUES, ROUTINES, TORCH_DTYPES, their_backend, uncounted_flops
from orchestrator.untrusted.text import for_csv

# Keys of a problem that its files have no column for, and on which times depend: on a softmax scale they do not.
NO_COLUMN = (
    *("window", "sinks", "tree", "kv_layout", "page_order", "min_s_qo", "batch_spec", "max_seq_len"),
    *("shared_prefix", "return_lse", "graph_batch", "num_states", "mask_prefix", "soft_cap", "kv_memory"),
)


def to_csv(rows: Iterable[Mapping[str, Any]]) -> tuple[str, Counter[str]]:
    """Rows as FlashInfer's CSV, and the number of rows that it cannot hold, by reason.

    `rows` has each point once. A time that was not measured in full says so in `case_tag`.
    """
    out, left_out = io.StringIO(newline=""), Counter[str]()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        if reason := _inexpressible(row):
            left_out[reason] += 1
        else:
            writer.writerow({name: for_csv(cell) for name, cell in _cells(row).items()})
    return out.getvalue(), left_out


def notes_on(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """How many of the times that it writes are rough, and how many were measured as another backend's."""
    return counted(row for row in rows if not _inexpressible(row))


def _inexpressible(row: Mapping[str, Any]) -> str:
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

"""What committed rows say, as today's code would take it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from kernels.check.tolerance import tolerance
from kernels.problem import Problem, default_output
from kernels.problem.arithmetic import Arithmetic
from kernels.problem.routine import routine_of
from orchestrator.storage import parquet

Row = dict[Any, Any]
FIELDS = tuple(Problem.model_fields)
OF_PROBLEM = (*FIELDS, "backend", "resolved_backend")  # what the functions below read of a row


@cache
def frame_of(path: Path) -> pd.DataFrame:
    """The rows of a committed dataset. They are read once, so nobody may change the frame."""
    return parquet.read(path).to_pandas()


def records_of(frame: pd.DataFrame) -> list[Row]:
    """Rows as dicts, with the columns that the functions below read. All of 110 columns would take several times as long."""
    return frame[[name for name in OF_PROBLEM if name in frame]].to_dict("records")


def problem_of(row: Row) -> Problem:
    """The problem of a row, its tree included."""
    found = {key: row[key] for key in FIELDS if key in row}
    tree = found.pop("tree", None)
    given = tuple(
        (key, int(value) if isinstance(value, float) and value.is_integer() else value)
        for key, value in found.items()
        if pd.notna(value)
    )
    return _made(given, None if tree is None else tuple(int(parent) for parent in tree))


@cache  # the backends of one problem each have a row
def _made(given: tuple[tuple[str, Any], ...], tree: tuple[int, ...] | None) -> Problem:
    keys = dict(given)
    if routine_of(str(keys.get("routine", ""))):  # the column is filled in, and such a routine has no such key
        keys.pop("out_dtype", None)
    return Problem.model_validate(keys | ({} if tree is None else {"tree": tree}))


def limit_of(row: Row) -> float:
    """Today's tolerance of the kernel that a row names."""
    sums = "fp16" if (row["resolved_backend"], row["q_dtype"]) == ("trtllm-fmha-v2", "fp16") else "fp32"
    how = Arithmetic(compute_dtype(row), accumulator_dtype=sums, rounded_merges=_rounded_merges(row))
    return tolerance(problem_of(row), how)


def compute_dtype(row: Row) -> str:
    """What the adapters' runners say: fa2 widens FP8 queries, XQA's Hopper FP8 kernel narrows all, the rest keep the query's.

    SGLang's kernel for grouped heads multiplies in the cache's dtype, and its kernel for prompts does so over a context.
    A composition of two calls has the coarser one's.
    """
    if row["resolved_backend"] == "triton_extend" and row["kv_dtype"] != row["q_dtype"]:
        p = problem_of(row)
        return p.kv_dtype if p.num_kv_tokens > p.num_q_tokens else p.q_dtype
    if row["resolved_backend"] == "triton_decode_grouped":
        return str(row["kv_dtype"])
    if "xqa_hopper_fp8" in str(row["resolved_backend"]):
        return "fp8_e4m3"
    return default_output(row["q_dtype"]) if row["resolved_backend"] == "fa2" else str(row["q_dtype"])


def _rounded_merges(row: Row) -> int:
    """Of `fa2 over 17 parts` 15, and of `MergeState + 6 MergeStateInPlace` 6."""
    kernel = str(row["resolved_backend"])
    if parts := re.search(r"over (\d+) parts", kernel):
        return max(0, int(parts[1]) - 2)
    chain = re.search(r"\+ (\d+) MergeStateInPlace", kernel)
    return int(chain[1]) if chain else 0

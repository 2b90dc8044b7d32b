"""What committed rows say, as today's code would take it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from kernels.check.tolerance import tolerance
from kernels.problem import Problem, default_output

Row = dict[Any, Any]


def problem_of(row: Row) -> Problem:
    """The problem of a row, its tree included."""
    found = {key: value for key, value in row.items() if key in Problem.model_fields}
    tree = found.pop("tree", None)
    given = {key: int(value) if isinstance(value, float) else value for key, value in found.items() if not pd.isna(value)}
    return Problem.model_validate(given | ({} if tree is None else {"tree": tuple(int(parent) for parent in tree)}))


def limit_of(row: Row) -> float:
    """Today's tolerance of the kernel that a row names."""
    return tolerance(problem_of(row), compute_dtype(row), _sum_dtype(row))


def compute_dtype(row: Row) -> str:
    """What the adapters' runners say: fa2 widens FP8 queries, XQA's Hopper FP8 kernel narrows all, the rest keep the query's.

    A composition of two calls has the coarser one's.
    """
    if "xqa_hopper_fp8" in str(row["resolved_backend"]):
        return "fp8_e4m3"
    return default_output(row["q_dtype"]) if row["resolved_backend"] == "fa2" else str(row["q_dtype"])


def _sum_dtype(row: Row) -> str:
    return "fp16" if (row["resolved_backend"], row["q_dtype"]) == ("trtllm-fmha-v2", "fp16") else "fp32"

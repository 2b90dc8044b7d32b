"""Derived tolerances against what kernels did: the committed datasets, and kernels of 8 bits written out on today's inputs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch

from kernels import oracle
from kernels.drawing import draw
from kernels.dtypes import FP8
from kernels.inputs import Inputs
from kernels.problem import Problem
from kernels.wrong import case_of
from tests.conftest import ROOT

ROOM = 0.75  # of a tolerance that no right kernel may exceed
KINDS = ["resolved_backend", "q_dtype", "kv_dtype"]
SHAPE = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 64, "batch_size": 1}


@pytest.fixture(scope="module")
def worst() -> pd.DataFrame:
    """By kernel and dtypes: rows, the worst error, the smallest and largest tolerance, the worst error in tolerances."""
    table = pd.concat([pd.read_parquet(folder) for folder in sorted((ROOT / "results").glob("h200_*"))])
    table = table[table["status"] == "ok"]
    table["today"] = [tolerance_of(row) for row in table.to_dict("records")]
    table["of_tolerance"] = table["rel_err"] / table["today"]
    columns = {"n": ("today", "size"), "rel_err": ("rel_err", "max"), "least": ("today", "min"), "most": ("today", "max")}
    return table.groupby(KINDS).agg(**columns, of_tolerance=("of_tolerance", "max"))


def tolerance_of(row: dict[Any, Any]) -> float:
    """Today's tolerance of a row, from its columns; the shape of a tree has no part in it."""
    keys = {key: value for key, value in row.items() if key in Problem.model_fields and key not in ("mask", "tree")}
    given = {key: int(v) if isinstance(v, float) else v for key, v in keys.items() if not pd.isna(v)}
    return oracle.tolerance(Problem.model_validate(given), compute_dtype(row))


def compute_dtype(row: dict[Any, Any]) -> str:
    """What the adapters' runners say: fa2 widens FP8 queries, XQA's Hopper FP8 kernel narrows all, the rest keep the query's."""
    if row["resolved_backend"] == "xqa_hopper_fp8":
        return "fp8_e4m3"
    widened = row["resolved_backend"] == "fa2" and row["q_dtype"] in FP8
    return str(row["out_dtype"] if widened else row["q_dtype"])


def test_no_right_answer_of_an_h200_comes_near_its_tolerance(worst: pd.DataFrame):
    assert int(worst["n"].sum()) > 1000
    assert float(worst["of_tolerance"].max()) < ROOM


def test_the_page_holds_the_worst_of_each_kernel(worst: pd.DataFrame):
    page = (ROOT / "docs" / "measurement.md").read_text()
    for (kernel, q, kv), row in worst.iterrows():  # type: ignore[misc]
        bounds = sorted({f"{row['least']:.4f}", f"{row['most']:.4f}"})
        figures = f"{int(row['n']):,} | {row['rel_err']:.4f} | {' – '.join(bounds)} | {row['of_tolerance']:.2f}"
        line = f"| {kernel} | {q}, {kv} | {figures} |"
        assert line in page, line


def in_8_bits(x: Inputs, largest: float) -> torch.Tensor:
    """A right kernel of 8 bits: queries and probabilities rounded to fp8_e4m3, the largest of a row at `largest`, sums in fp32."""
    case = case_of(x, 0)
    scores = replace(case, q=case.q.to(torch.float8_e4m3fn).float()).scores()
    weights = (scores - scores.amax(-1, keepdim=True)).exp_()
    rounded = (weights * largest).to(torch.float8_e4m3fn).float() / largest
    return case.merge(rounded, weights.sum(-1, keepdim=True)).to(torch.bfloat16)


@pytest.mark.parametrize("largest", [256.0, 448.0])
@pytest.mark.parametrize("q_dtype", ["bf16", "fp8_e4m3"])
@pytest.mark.parametrize(("s_kv", "s_qo"), [(1024, 4), (8192, 4), (32768, 1)])
def test_a_right_kernel_of_8_bits_passes_on_planted_inputs(s_kv: int, s_qo: int, q_dtype: str, largest: float):
    """The datasets are of inputs whose context was not planted yet."""
    for seed in range(3):
        p = Problem.model_validate({**SHAPE, "s_kv": s_kv, "s_qo": s_qo, "q_dtype": q_dtype, "kv_dtype": "fp8_e4m3", "seed": seed})
        x = draw(p, "cpu")
        verdict = oracle.judge(in_8_bits(x, largest), oracle.reference(x), p, "fp8_e4m3")

        assert 0.1 < verdict.of_tolerance < ROOM
        assert math.isclose(verdict.of_tolerance, verdict.rel_err / verdict.tolerance)

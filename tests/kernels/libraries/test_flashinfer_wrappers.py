"""FlashInfer's wrappers: what is compiled ahead is what they load, and the workspace is as large as their plans ask for."""

from __future__ import annotations

from typing import Any

import pytest

from kernels.conformance.checks import ALL_ARCHITECTURES, ARCHITECTURES
from kernels.libraries.flashinfer_common import WORKSPACE_BYTES, split_workspace_bytes
from kernels.libraries.flashinfer_wrappers import sink_module, sink_variant
from kernels.problem import Problem

SHAPE = {"routine": "paged_prefill", "batch_size": 2, "s_qo": 4, "s_kv": 300, "num_qo_heads": 8, "num_kv_heads": 2, "sinks": True}


@pytest.mark.parametrize("kernel", ["fa2", "fa3"])
def test_a_module_has_the_name_that_the_wrapper_loads_and_no_other_problem_has_it(kernel: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(ARCHITECTURES, ALL_ARCHITECTURES)  # FlashInfer reads it once in a process
    changes = ({}, {"head_dim_qk": 64, "head_dim_vo": 64}, {"window": 9}, {"q_dtype": "fp16", "kv_dtype": "fp16"})
    problems = [Problem.model_validate({**SHAPE, "head_dim_qk": 128, "head_dim_vo": 128, **keys}) for keys in changes]
    names = [sink_module(problem, kernel).spec().name for problem in problems]

    assert names == [sink_variant(problem, kernel)["jit_args"][0] for problem in problems]
    assert len(set(names)) == len(problems)


@pytest.mark.parametrize(
    ("keys", "tile", "more"),
    [
        ({"batch_size": 8, "s_qo": 2048}, 128, 0),  # 16,384 rows, which FlashInfer 0.7.2.post1 asked for on an H100
        ({"batch_size": 1, "s_qo": 16384}, 128, 0),
        ({"batch_size": 1024, "s_qo": 8}, 64, 0),
        ({"batch_size": 512, "s_qo": 8, "min_s_qo": 1}, 128, 511),  # of any lengths: a tile more for each request but one
        ({"batch_size": 1024, "s_qo": 8, "min_s_qo": 1}, 128, 1023),
        ({"routine": "cascade", "batch_size": 1024, "s_qo": 8, "shared_prefix": 16384}, 128, 1023),  # its plan is told no length
    ],
)
def test_the_workspace_is_as_large_as_the_plan_of_fa2_asks(keys: dict[str, Any], tile: int, more: int):
    shape = {**SHAPE, "num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128, "s_kv": 32768}
    problem = Problem.model_validate({**shape, **keys})
    tiles = -(-problem.num_q_tokens * 8 // tile) + more
    asked = 4 * (tiles * tile // 8) * 64 * (128 + 1)  # values and sums

    assert asked < split_workspace_bytes(problem) <= 2.1 * asked


def test_the_workspace_of_a_draft_is_the_usual_one():
    assert split_workspace_bytes(Problem.model_validate({**SHAPE, "head_dim_qk": 128, "head_dim_vo": 128})) == WORKSPACE_BYTES

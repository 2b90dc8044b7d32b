"""FlashInfer's variant with attention sinks: what is compiled ahead is what the wrapper loads."""

from __future__ import annotations

import pytest

from kernels.conformance.checks import ALL_ARCHITECTURES, ARCHITECTURES
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

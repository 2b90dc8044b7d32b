"""FMHAv2: the head sizes that it has kernels for, and the module that it loads."""

from __future__ import annotations

from typing import Any

import pytest

from kernels import registry
from kernels.problem import Problem
from orchestrator.machines import known_devices

DEVICES = known_devices()
SHAPE: dict[str, Any] = {"routine": "paged_prefill", "batch_size": 2, "s_qo": 4, "s_kv": 70, "num_qo_heads": 4, "num_kv_heads": 2}
FMHA_V2 = registry.get("paged_prefill", "trtllm-fmha-v2")


def of_heads(size: int, **keys: Any) -> Problem:
    return Problem.model_validate({**SHAPE, "head_dim_qk": size, "head_dim_vo": size, **keys})


@pytest.mark.parametrize(
    ("device", "served", "refused"), [("h200", (32, 80, 192, 256), (16, 40, 112, 224, 272)), ("rtx5090", (64, 256), (32, 80, 192))]
)
def test_it_serves_the_head_sizes_that_it_has_kernels_for(device: str, served: tuple[int, ...], refused: tuple[int, ...]):
    sentence = "head_dim 32, 48, 64, 80, 96, 128, 160, 192 or 256, on SM12x 64, 128 or 256"

    assert [size for size in served if FMHA_V2.unmet(of_heads(size), DEVICES[device])] == []
    assert all(FMHA_V2.unmet(of_heads(size), DEVICES[device]) == [sentence] for size in refused)


def test_the_output_s_dtype_chooses_a_module_with_fp8_queries_alone():
    """`trtllm_fmha_v2_prefill` asks for a module of an output's dtype under FP8 queries only."""
    eight = {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}
    problems = [of_heads(64, **keys) for keys in ({}, {"out_dtype": "fp16"}, eight, {**eight, "out_dtype": "fp8_e4m3"})]
    dtypes = [module.args[1:] for p in problems for module in FMHA_V2.modules(p, DEVICES["h200"])]

    assert dtypes == [("bf16", "bf16"), ("bf16", "bf16"), ("fp8_e4m3", "bf16"), ("fp8_e4m3", "fp8_e4m3")]

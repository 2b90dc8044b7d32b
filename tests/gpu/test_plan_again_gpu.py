"""Each wrapper of a library is planned for one batch and then for others: right, and by the kernel of a new wrapper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels import registry
from kernels.conformance.suite import Trial, execute
from kernels.problem import Problem
from orchestrator.machines import describe

pytestmark = pytest.mark.gpu

HEADS: dict[str, Any] = {
    "num_qo_heads": 64,
    "num_kv_heads": 8,
    "head_dim_qk": 128,
    "head_dim_vo": 128,
    "batch_size": 4,
    "s_kv": 2048,
}
LATENT = {"num_qo_heads": 16, "num_kv_heads": 1, "head_dim_qk": 576, "head_dim_vo": 512, "head_dim_ckv": 512, "head_dim_kpe": 64}
PROBLEMS = {
    "paged_decode": HEADS | {"page_size": 64, "s_qo": 1},
    "paged_prefill": HEADS | {"page_size": 64, "s_qo": 4},
    "ragged_prefill": HEADS | {"s_qo": 2048},
    "mla": LATENT | {"batch_size": 4, "s_kv": 2048, "page_size": 64, "s_qo": 2},
}
# The backends with a wrapper that lives on between the batches of an engine. Not `multi_level`: its adapter makes a wrapper for
# each batch.
WRAPPERS = {
    "paged_decode": ("fa2", "fa2_tc", "cudnn", "auto", "fa3", "trtllm-gen", "cute-dsl", "cutile"),
    "paged_prefill": ("fa2", "cudnn", "auto", "fa3"),
    "ragged_prefill": ("fa2", "cudnn", "auto", "fa3", "cutlass"),
    "mla": ("fa2", "auto", "fa3", "cutlass", "trtllm-native", "cute-dsl"),
}


@pytest.mark.parametrize(("routine", "backend"), [(routine, name) for routine, names in WRAPPERS.items() for name in names])
def test_a_wrapper_planned_again_answers_the_new_batch(routine: str, backend: str, record_property: Callable[[str, object], None]):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = describe().devices[0]
    adapter, problem = registry.get(routine, backend), Problem.model_validate({"routine": routine, **PROBLEMS[routine]})
    if adapter.unmet(problem, device):
        pytest.skip(f"{backend} does not serve {device.name}: {', '.join(adapter.unmet(problem, device))}")

    finding = execute(adapter, Trial("planned again", problem, device))

    record_property("words", finding.words)
    assert finding.verdict == "passed", finding.words

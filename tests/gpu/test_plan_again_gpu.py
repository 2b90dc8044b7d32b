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

HEADS: dict[str, Any] = {
    "num_qo_heads": 64,
    "num_kv_heads": 8,
    "head_dim_qk": 128,
    "head_dim_vo": 128,
    "batch_size": 4,
    "s_kv": 2048,
}
LATENT = {"num_qo_heads": 16, "num_kv_heads": 1, "head_dim_qk": 576, "head_dim_vo": 512, "head_dim_ckv": 512, "head_dim_kpe": 64}
MIXED = {key: value for key, value in HEADS.items() if key not in ("batch_size", "s_kv")}  # a batch spec says these itself
PROBLEMS = {
    "paged_decode": HEADS | {"page_size": 64, "s_qo": 1},
    "paged_prefill": HEADS | {"page_size": 64, "s_qo": 4},
    "ragged_prefill": HEADS | {"s_qo": 512},
    "mla": LATENT | {"batch_size": 4, "s_kv": 2048, "page_size": 64, "s_qo": 2},
    "cascade": HEADS | {"page_size": 64, "s_qo": 4, "shared_prefix": 1024},
    "paged_decode in two calls": MIXED | {"page_size": 64, "batch_spec": "2q1s2k_q64s2k_2q1s1k"},
    "mla in two calls": LATENT | {"page_size": 64, "batch_spec": "3q2s2k_q64s2k"},
    "ragged_prefill in chunks": HEADS | {"s_qo": 512, "s_kv": 8192},
}
# The backends with a wrapper that lives on between the batches of an engine, or with several.
WRAPPERS = {
    "paged_decode": ("fa2", "fa2_tc", "cudnn", "auto", "fa3", "trtllm-gen", "cute-dsl", "cutile"),
    "paged_prefill": ("fa2", "cudnn", "auto", "fa3"),
    "ragged_prefill": ("fa2", "cudnn", "auto", "fa3", "cutlass"),
    "mla": ("fa2", "auto", "fa3", "cutlass", "trtllm-native", "cute-dsl"),
    "cascade": ("two_calls_fa2", "two_calls_fa3", "two_calls_fa3_fa2", "multi_level", "fa2_tc", "auto", "fa3"),
    "paged_decode in two calls": ("fa2_tc+fa2", "fa2+fa3", "fa3+auto", "fa2_tc+flash_attn_3"),
    "mla in two calls": ("fa2+fa2", "fa3+fa3@4", "auto+fa3"),
    "ragged_prefill in chunks": ("fa2_chunks", "fa2_chunks_8k", "fa3_chunks"),
}


@pytest.mark.parametrize(("batch", "backend"), [(batch, name) for batch, names in WRAPPERS.items() for name in names])
def test_a_wrapper_planned_again_answers_the_new_batch(batch: str, backend: str, record_property: Callable[[str, object], None]):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = describe().devices[0]
    routine = batch.split(maxsplit=1)[0]
    adapter, problem = registry.get(routine, backend), Problem.model_validate({"routine": routine, **PROBLEMS[batch]})
    if adapter.unmet(problem, device):
        pytest.skip(f"{backend} does not serve {device.name}: {', '.join(adapter.unmet(problem, device))}")

    finding = execute(adapter, Trial("planned again", problem, device))

    record_property("words", finding.words)
    assert finding.verdict == "passed", finding.words

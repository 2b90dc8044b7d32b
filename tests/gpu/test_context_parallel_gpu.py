"""Every kernel that gives a log-sum-exp, over interleaved shards of a context: the merge is the answer over the whole."""

from __future__ import annotations

from typing import Any

import pytest

from kernels import registry
from kernels.contract.releases import installed
from kernels.device import Device
from kernels.inputs.generate import draw
from kernels.problem import Problem
from orchestrator import libraries
from orchestrator.machines import describe
from tests.helpers.context_shards import lacking, over_shards

HEADS = {"num_qo_heads": 32, "num_kv_heads": 4, "head_dim_qk": 128, "head_dim_vo": 128}
LATENT = {"num_qo_heads": 16, "num_kv_heads": 16, "head_dim_qk": 192, "head_dim_vo": 128, "head_dim_ckv": 512, "head_dim_kpe": 64}
CASES: dict[str, dict[str, Any]] = {
    "one token": {"batch_spec": "q1s5000_q1s3333"},
    "single tokens interleaved": {"batch_spec": "q1s5000_q1s3333", "page_size": 1},
    "a rank without keys": {"batch_spec": "q1s5000_q1s10"},
    "drafts": {"batch_spec": "q4s4996_q4s3332", "page_size": 64},
    "sinks": {"batch_spec": "q1s5000_q1s3333", "sinks": True},
    "drafts with sinks": {"batch_spec": "q4s4996_q4s3332", "sinks": True},
}
KEYS = [key for key, one in registry.adapters().items() if one.gives_lse and key[0] in ("paged_decode", "paged_prefill", "mla")]


@pytest.fixture(scope="module")
def gpu() -> Device:
    return describe().devices[0]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("key", KEYS, ids=["-".join(key) for key in KEYS])
def test_answers_over_shards_merge_to_that_over_the_whole_context(key: tuple[str, str], case: str, gpu: Device):
    routine, backend = key
    shape = {**(LATENT if routine == "mla" else HEADS), "page_size": 64, "return_lse": True, **CASES[case]}
    adapter = registry.get_installed(routine, backend)
    if words := libraries.missing(adapter, installed(adapter.all_distributions)):
        pytest.skip(words)
    inputs = draw(Problem.model_validate({"routine": routine, **shape}), gpu.kind)
    if sentences := lacking(adapter, gpu, inputs, 8):
        pytest.skip("; ".join(dict.fromkeys(sentences)))

    assert (verdict := over_shards(adapter, gpu, inputs, 8)).passed, verdict.reason

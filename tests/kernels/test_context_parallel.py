"""Decode context parallelism: what kernels answer over interleaved shards merges to the answer over the whole context."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from kernels import registry
from kernels.inputs.generate import draw
from kernels.problem import Problem
from orchestrator.machines import known_devices
from tests.helpers.context_shards import SinksIn, lacking, over_shards, parts
from tests.helpers.engine_kernels import STAND_INS, modules

H200 = known_devices()["h200"]
HEADS = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "return_lse": True}
LATENT = {"num_qo_heads": 4, "num_kv_heads": 4, "head_dim_qk": 192, "head_dim_vo": 128, "head_dim_ckv": 512, "head_dim_kpe": 64}
LENGTHS = {"batch_spec": "q1s500_q1s333"}
DRAFTS = {"batch_spec": "q4s388_q4s260"}  # of contexts of whole pages of 64


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in modules(STAND_INS).items():
        monkeypatch.setitem(sys.modules, name, module)


def problem(routine: str, **keys: Any) -> Problem:
    shape = {**HEADS, **(LATENT if routine == "mla" else {}), "page_size": 64, **LENGTHS}
    return Problem.model_validate({"routine": routine, **shape, **keys})


@pytest.mark.parametrize(
    ("routine", "backend", "keys"),
    [
        ("paged_decode", "torch_chunks", {}),
        ("paged_decode", "torch_chunks", {"page_size": 1}),
        ("paged_decode", "torch_chunks", {"batch_spec": "q1s500_q1s10"}),  # two ranks have no key of the second
        ("paged_decode", "torch_chunks", DRAFTS),
        ("paged_decode", "flash_attn_3_vllm", {}),
        ("paged_decode", "flash_attn_3_vllm", {"sinks": True}),
        ("paged_decode", "flash_attn_3_vllm", {"sinks": True, "page_size": 1, **DRAFTS}),
        ("paged_prefill", "sglang_triton", DRAFTS),
        ("mla", "torch_chunks", {"page_size": 1}),
        ("mla", "torch_chunks", {"batch_spec": "q1s500_q1s10"}),
        ("mla", "flash_attn_3", {}),
        ("mla", "flash_attn_3", DRAFTS),
        ("mla", "flash_mla", {}),
        ("mla", "triton_mla", {}),
        ("mla", "triton_mla", {"page_size": 1, "kv_dtype": "fp8_e4m3"}),
        ("mla", "triton_mla", {**DRAFTS, "page_size": 16}),
        ("mla", "sglang_triton_extend", {}),
    ],
)
def test_answers_over_shards_merge_to_that_over_the_whole_context(routine: str, backend: str, keys: dict[str, Any]):
    inputs, adapter = draw(problem(routine, **keys), "cpu"), registry.get(routine, backend)

    assert lacking(adapter, H200, inputs, 3) == []
    assert (verdict := over_shards(adapter, H200, inputs)).passed, verdict.reason


def test_shards_have_every_token_once_and_interleave_single_ones():
    inputs = draw(problem("paged_decode", page_size=1), "cpu")
    shards = list(parts(inputs, 3))

    assert [shard.problem.kv_lens for shard in shards] == [(167, 111), (167, 111), (166, 111)]
    assert [shard.page_table[0, :2].tolist() for shard in shards] == [inputs.page_table[0, [i, i + 3]].tolist() for i in range(3)]


@pytest.mark.parametrize("sinks_in", ["each", "none"])
def test_a_sink_that_every_shard_counts_or_none_is_found(sinks_in: SinksIn):
    """Every one: the decode kernels of SGLang 0.5.23's ranks (`forward_decode`). None: vLLM 0.33.0's (`_forward_with_dcp`)."""
    inputs, adapter = draw(problem("paged_decode", sinks=True), "cpu"), registry.get("paged_decode", "flash_attn_3_vllm")

    assert not over_shards(adapter, H200, inputs, sinks_in=sinks_in).passed


def test_a_base_of_the_logarithm_that_is_mistaken_is_found():
    inputs, adapter = draw(problem("mla"), "cpu"), registry.get("mla", "triton_mla")

    assert not over_shards(adapter, H200, inputs, as_read=lambda lse: lse * 1.4427).passed


def test_a_log_sum_exp_in_the_dtype_of_queries_is_found():
    """vLLM 0.33.0 has TRITON_MLA write it so (`forward_mqa`: lse = torch.zeros(..., dtype=q.dtype)), also where ranks merge."""
    inputs, adapter = draw(problem("mla"), "cpu"), registry.get("mla", "triton_mla")
    rounded = over_shards(adapter, H200, inputs, as_read=lambda lse: lse.to(torch.bfloat16).float())

    assert not rounded.passed
    assert rounded.rel_err > 2 * over_shards(adapter, H200, inputs).rel_err

"""FlashInfer's kernels for prompts and single tokens in one launch: what they are planned and called with, and their rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import registry
from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.inputs.generate import draw
from kernels.problem import Problem
from orchestrator.machines import known_devices
from tests.helpers import fake_flashinfer

H200, CPU = (known_devices()[name] for name in ("h200", "cpu"))
SHAPE = {"routine": "paged_decode", "num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 16}
MIXED = {**SHAPE, "batch_spec": "2q1s70_q1s33_q9s40_q20s20"}
FP8 = {"kv_dtype": "fp8_e4m3"}


def problem(**keys: Any) -> Problem:
    return Problem.model_validate({**MIXED, **keys})


@pytest.mark.parametrize(
    ("backend", "keys"),
    [
        ("batch_attention", {}),
        ("batch_attention", {"kv_layout": "NHD", "page_size": 1}),
        ("batch_attention", {"mask": "full", "return_lse": True}),
        ("batch_attention", FP8),
        ("batch_attention", {"batch_spec": "q9s40_2q1s70"}),
        ("batch_attention", {"batch_spec": "3q4s40"}),
        ("batch_pod", {}),
        ("batch_pod", {"kv_layout": "NHD", "page_size": 1}),
        ("batch_pod", {"mask": "full"}),
        ("batch_pod", FP8),
        ("batch_pod", {"batch_spec": "q1s70_q2s40"}),
    ],
)
def test_the_arguments_say_the_whole_problem(backend: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fake_flashinfer.put_in_place(monkeypatch)
    p, adapter = problem(**keys), registry.get("paged_decode", backend)
    inputs = draw(p, "cpu")
    runner = adapter.prepare(inputs, H200)
    runner.out.fill_(torch.nan)
    runner()
    verdict = judge_whole(runner.out, inputs, oracle.answer(inputs), runner.arithmetic, runner.written_lse())

    assert adapter.unmet(p, H200) == []
    assert verdict.passed, verdict.reason


ONE_LENGTH = "requests of one query token, and others behind them"


@pytest.mark.parametrize(
    ("backend", "keys", "sentence"),
    [
        ("batch_attention", {"sinks": True}, "no attention sinks"),
        ("batch_attention", {"window": 9}, "no sliding window"),
        ("batch_attention", {"head_dim_qk": 80, "head_dim_vo": 80}, "equal head_dims of 64, 128 or 256"),
        ("batch_attention", {"q_dtype": "fp8_e4m3", **FP8, "out_dtype": "fp8_e4m3"}, "fp16 or bf16 queries"),
        ("batch_attention", {"batch_spec": "32769q1s1"}, "up to 65,536 tiles of all KV heads"),
        ("batch_attention", {"batch_spec": "300q1s65536"}, "fewer than 2^32 elements of keys and values"),
        ("batch_pod", {"batch_spec": "3q1s70"}, ONE_LENGTH),
        ("batch_pod", {"batch_spec": "3q2s70"}, ONE_LENGTH),
        ("batch_pod", {"batch_spec": "q9s40_2q1s70"}, ONE_LENGTH),
        ("batch_pod", {"batch_spec": "q1s70_q9s40_q1s70"}, ONE_LENGTH),
        ("batch_pod", {"num_qo_heads": 34}, "up to 16 query heads for each KV head"),
        ("batch_pod", {"soft_cap": 30.0}, "no soft cap of logits"),
        ("batch_pod", {"return_lse": True}, "no log-sum-exp as a second output"),
    ],
)
def test_a_condition_of_a_rule_stands_alone(backend: str, keys: dict[str, Any], sentence: str) -> None:
    assert registry.get("paged_decode", backend).unmet(problem(**keys), H200) == [sentence]


@pytest.mark.parametrize(
    ("backend", "keys"),
    [
        ("batch_attention", {"batch_spec": "32768q1s1"}),
        ("batch_attention", {"batch_spec": "255q1s65536"}),
        ("batch_attention", {"num_qo_heads": 34, "soft_cap": 30.0}),
        ("batch_pod", {"num_qo_heads": 32, "window": 9}),
    ],
)
def test_what_is_just_inside_a_rule_is_served(backend: str, keys: dict[str, Any]) -> None:
    assert registry.get("paged_decode", backend).unmet(problem(**keys), H200) == []


@pytest.mark.parametrize("backend", ["batch_attention", "batch_pod"])
def test_the_modules_are_those_that_flashinfer_loads(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of what a plan and a call ask FlashInfer for, with its own generators."""
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
    from flashinfer.jit.attention import modules

    types = (torch.bfloat16,) * 3
    asked = {
        "batch_attention": [modules._gen_batch_attention_primary_module(*types, torch.int32, 64, 64, 0, False, False)],
        "batch_pod": [
            modules._gen_batch_prefill_primary_module("fa2", *types, torch.int32, 64, 64, 0, False, False, False),
            modules.gen_batch_pod_module(*types, 64, 0, False, False, False, torch.int32, 0, False, False),
        ],
    }
    needed = registry.get("paged_decode", backend).modules(problem(), H200)

    assert [module.spec().name for module in needed] == [spec.name for spec in asked[backend]]

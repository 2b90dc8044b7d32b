"""What engines' builds of FlashAttention are called with, by stand-ins with their signatures."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from kernels import registry
from kernels.check import oracle
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.inputs.step_lengths import steps_before
from kernels.problem import Problem
from orchestrator.machines import known_devices
from tests.helpers.engine_kernels import STAND_INS, modules
from tests.helpers.recorded_calls import recording

H200, A100, CPU, ADA, RTX = (known_devices()[name] for name in ("h200", "a100", "cpu", "l40s", "rtx5090"))
SHAPE = {"batch_size": 2, "s_qo": 3, "s_kv": 70, "num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 16, "head_dim_vo": 16}
EIGHT_BITS = {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}
FP16 = {"q_dtype": "fp16", "kv_dtype": "fp16"}
DEEPSEEK = {"head_dim_qk": 192, "head_dim_vo": 128}
TREE = {"s_qo": 5, "mask": "binary", "tree": (-1, 0, 0, 1, 2)}
ONE, RAGGED, PREFILL = {"s_qo": 1}, {"routine": "ragged_prefill", "s_qo": 30}, {"routine": "paged_prefill", "s_qo": 30}
OF_VLLM, CAPPED, OF_SGLANG, TWO = "flash_attn_3_vllm", "flash_attn_3_vllm_32_splits", "flash_attn_3_sglang", "flash_attn_2_vllm"
OF_3, ALL = (OF_VLLM, OF_SGLANG), (OF_VLLM, OF_SGLANG, TWO)
EMPTY = {"graph_batch": 4, "graph_fill": 0}
PADDED = {"graph_batch": 4, "graph_fill": 1}

CASES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    ((*ALL, CAPPED), {}),
    ((*ALL, CAPPED), ONE),
    (ALL, {"kv_layout": "NHD", "page_size": 16}),
    (OF_3, {"page_size": 24}),
    (ALL, {"window": 20}),
    (ALL, {**ONE, "window": 20}),
    (OF_3, {"sinks": True}),
    (OF_3, {**ONE, "sinks": True, **FP16}),
    (ALL, {"min_s_qo": 1, "seq_lens": "random"}),
    (ALL, {"mask": "full"}),
    (OF_3, EIGHT_BITS),
    (OF_3, {**ONE, **EIGHT_BITS}),
    (OF_3, {**DEEPSEEK, **EIGHT_BITS}),
    (ALL, {"return_lse": True}),
    (ALL, {**ONE, "return_lse": True}),
    (ALL, {"max_seq_len": 500}),
    (ALL, PADDED),
    (ALL, {**ONE, **PADDED}),
    ((OF_VLLM, CAPPED, TWO), EMPTY),
    ((OF_VLLM, CAPPED, TWO), {**ONE, **EMPTY}),
    (ALL, PREFILL),
    (ALL, RAGGED),
    (ALL, {**RAGGED, "return_lse": True}),
    (ALL, {**RAGGED, "window": 20, "mask": "causal"}),
    (OF_3, {**RAGGED, "sinks": True}),
    (OF_3, {**RAGGED, **EIGHT_BITS}),
    (OF_3, {**RAGGED, **DEEPSEEK, "num_kv_heads": 4}),
]
EACH = [pytest.param(backend, keys, id=f"{backend}-{keys}") for backends, keys in CASES for backend in backends]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in modules(STAND_INS).items():
        monkeypatch.setitem(sys.modules, name, module)


def problem(**keys: Any) -> Problem:
    return Problem.model_validate({"routine": "paged_decode", **SHAPE, **keys})


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("backend", "keys"), EACH)
def test_the_arguments_say_the_whole_problem(backend: str, keys: dict[str, Any]):
    p = problem(**keys)
    inputs, adapter = draw(p, "cpu"), registry.get(p.routine, backend)
    runner = adapter.prepared(inputs, H200)
    runner.out.fill_(torch.nan)
    runner()
    lse = runner.written_lse()
    verdict = oracle.judge(runner.without_padding(runner.out), oracle.reference(inputs), p, runner.arithmetic)

    assert adapter.unmet(p, H200) == []
    assert verdict.passed, verdict.reason
    assert (lse is not None) == p.return_lse
    assert lse is None or torch.allclose(lse, oracle.answer(inputs).lse, atol=1e-4)
    assert runner.resolved_backend == f"flash_attn_{2 if backend == TWO else 3}"
    assert adapter.workspace_bytes(p) > 0


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("backend", "keys", "config"),
    [
        (OF_VLLM, {}, "num_splits=auto scheduler_metadata=given"),
        (OF_VLLM, RAGGED, "num_splits=auto scheduler_metadata=made in the call"),
        (CAPPED, {}, "num_splits=32 scheduler_metadata=given"),
        (TWO, ONE, "num_splits=auto"),
        (OF_SGLANG, ONE, "num_splits=5 scheduler_metadata=given"),
        (OF_SGLANG, {**ONE, "window": 9}, "num_splits=5 scheduler_metadata=made in the call"),
        (OF_SGLANG, {}, "num_splits=5 scheduler_metadata=made in the call"),
        (OF_SGLANG, RAGGED, "num_splits=1 scheduler_metadata=made in the call"),
    ],
)
def test_a_row_says_whether_the_plan_was_given_as_in_the_engine(backend: str, keys: dict[str, Any], config: str):
    p = problem(**keys)

    assert registry.get(p.routine, backend).prepare(draw(p, "cpu"), H200).kernel_config == config


@pytest.mark.parametrize("keys", [{}, {"max_seq_len": 500}])
def test_the_engine_s_maximum_reaches_plan_and_call(keys: dict[str, Any]):
    longest, pages = keys.get("max_seq_len", 70), -(-keys.get("max_seq_len", 70) // 64)
    with recording() as log:
        for backend in ALL:
            registry.get("paged_decode", backend).prepare(draw(problem(**ONE, **keys), "cpu"), H200)()
    plans = [call for name, call in log if name == "get_scheduler_metadata"]
    tables = [call.get("block_table", call.get("page_table")) for name, call in log if name != "get_scheduler_metadata"]

    assert [call["max_seqlen_k"] for call in plans] == [longest] * 2
    assert {call["max_seqlen_k"] for _, call in log if "fa_version" in call} == {longest}
    assert {table.shape[1] for table in tables} == {pages}


def test_every_call_gets_the_splits_that_its_engine_asks_for():
    asked: dict[str, set[int]] = {}
    for backend in (*ALL, CAPPED):
        with recording() as log:
            registry.get("paged_decode", backend).prepare(draw(problem(**ONE), "cpu"), H200)()
        asked[backend] = {call["num_splits"] for _, call in log}

    assert asked == {OF_VLLM: {0}, OF_SGLANG: {0}, TWO: {0}, CAPPED: {32}}


def read_by(log: list[tuple[str, dict[str, Any]]]) -> torch.Tensor:
    metadata = log[-1][1]["scheduler_metadata"]
    assert isinstance(metadata, torch.Tensor)
    return metadata


@pytest.mark.parametrize("backend", [OF_VLLM, CAPPED, OF_SGLANG])
def test_a_step_makes_the_plan_anew_where_the_call_reads_it(backend: str):
    inputs: Inputs = draw(problem(**ONE), "cpu")
    with recording() as log:
        runner = registry.get("paged_decode", backend).prepare(inputs, H200)
        runner()
        read = read_by(log)
        read.fill_(7)
        assert runner.plan_step is not None
        runner.plan_step(steps_before(inputs, 1).host)
        name, made = log[-1]
        runner()

    assert name == "get_scheduler_metadata" and made["cache_seqlens"] is inputs.kv_lens
    assert read_by(log) is read and read.tolist() == [0.0]


@pytest.mark.parametrize(("backend", "keys"), [(TWO, {}), (OF_SGLANG, {}), (OF_VLLM, RAGGED)])
def test_without_a_plan_a_step_makes_none(backend: str, keys: dict[str, Any]):
    p = problem(**keys)
    inputs = draw(p, "cpu")
    with recording() as log:
        runner = registry.get(p.routine, backend).prepare(inputs, H200)
        before = len(log)
        assert runner.plan_step is not None
        runner.plan_step(steps_before(inputs, 1).host)

    assert len(log) == before


ONE_DTYPE = "queries, keys and values of one dtype"


@pytest.mark.parametrize(
    ("backends", "device", "keys", "sentence"),
    [
        (OF_3, A100, {}, "SM90 (FlashAttention-3)"),
        (OF_3, H200, {"kv_dtype": "fp8_e4m3"}, ONE_DTYPE),
        (OF_3, H200, {"q_dtype": "fp32", "kv_dtype": "fp32"}, "fp16, bf16 or fp8_e4m3"),
        (OF_3, H200, {**FP16, "out_dtype": "bf16"}, "output in the query's dtype, or bf16 with FP8 queries"),
        ((*OF_3, CAPPED), H200, TREE, "a causal or full mask"),
        (OF_3, H200, {"head_dim_qk": 264, "head_dim_vo": 264}, "equal head_dims of keys and values, up to 256, or 192 and 128"),
        (OF_3, H200, {**EIGHT_BITS, "head_dim_qk": 72, "head_dim_vo": 72}, "a head_dim that is a multiple of 8, with FP8 of 16"),
        ((OF_VLLM,), H200, {"sinks": True, "num_qo_heads": 66}, "with attention sinks, up to 64 query heads"),
        ((OF_VLLM,), H200, {"sinks": True, **DEEPSEEK}, "with attention sinks, equal head_dims of keys and values"),
        ((TWO,), CPU, {}, "a CUDA device of SM80 or later (FlashAttention-2)"),
        ((TWO,), H200, {"q_dtype": "fp32", "kv_dtype": "fp32"}, "fp16 or bf16 queries"),
        ((TWO,), H200, {"kv_dtype": "fp8_e4m3"}, "keys and values of the query's dtype"),
        ((TWO,), H200, {**FP16, "out_dtype": "bf16"}, "output of the query's dtype"),
        ((TWO,), H200, TREE, "a causal or full mask"),
        ((TWO,), H200, DEEPSEEK, "equal head_dims of keys and values, up to 256"),
        ((TWO,), H200, {"head_dim_qk": 12, "head_dim_vo": 12}, "a head_dim that is a multiple of 8"),
        ((TWO,), H200, {"page_size": 24}, "a page_size that is a multiple of 16"),
        ((TWO,), H200, {"sinks": True}, "no attention sinks"),
    ],
)
def test_a_condition_of_a_rule_stands_alone(backends: tuple[str, ...], device: Any, keys: dict[str, Any], sentence: str):
    assert {name: registry.get("paged_decode", name).unmet(problem(**keys), device) for name in backends} == {
        name: [sentence] for name in backends
    }


def test_what_is_just_inside_a_rule_is_served():
    with_sinks = problem(sinks=True, num_qo_heads=64)
    many_heads = problem(sinks=True, num_qo_heads=66)

    assert registry.get("paged_decode", OF_VLLM).unmet(with_sinks, H200) == []
    assert registry.get("paged_decode", OF_SGLANG).unmet(many_heads, H200) == []
    assert {device.name: registry.get("paged_decode", TWO).unmet(problem(), device) for device in (A100, ADA, RTX)} == {
        device.name: [] for device in (A100, ADA, RTX)
    }

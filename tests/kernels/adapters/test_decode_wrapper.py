"""The decode wrapper's kernels that no GPU here has run: their plan, their call, and how the function's path differs."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels import registry
from kernels.adapter import Runner
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.problem import Problem
from orchestrator.machines import known_devices

DEVICES = {"trtllm-gen": "b200", "cute-dsl": "b200", "cutile": "a100"}
SHAPE = {"batch_size": 3, "s_kv": 300, "num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64}
LIKED = {"cutile": {"kv_layout": "NHD"}}  # what a backend needs beside the usual


class FakeWrapper:
    """Takes what FlashInfer's wrapper takes, by its real signatures, and writes ones into the output, adding as `atomic` does."""

    def __init__(self, real: Any, reduction: str) -> None:
        self.init, self.plan_of = (inspect.signature(inspect.unwrap(f)) for f in (real.__init__, real._plan_impl))
        self.run_of = inspect.signature(inspect.unwrap(real.run))
        self.runs: list[dict[str, Any]] = []
        self._cute_dsl_wrapper = SimpleNamespace(_reduction=reduction, _kv_splits=4)

    def __call__(self, *args: Any, **kwargs: Any) -> FakeWrapper:
        self.made = self.init.bind(self, *args, **kwargs).arguments
        return self

    def plan(self, *args: Any, **kwargs: Any) -> None:
        self.planned = self.plan_of.bind(self, *args, **kwargs).arguments

    def run(self, *args: Any, **kwargs: Any) -> None:
        call = self.run_of.bind(self, *args, **kwargs).arguments
        self.runs.append(call)
        call["out"].add_(1)


def prepared(
    monkeypatch: pytest.MonkeyPatch, backend: str, reduction: str = "kernel", **keys: object
) -> tuple[FakeWrapper, Runner, Inputs]:
    import flashinfer

    fake = FakeWrapper(flashinfer.BatchDecodeWithPagedKVCacheWrapper, reduction)
    monkeypatch.setattr(flashinfer, "BatchDecodeWithPagedKVCacheWrapper", fake)
    x = draw(Problem.model_validate({**SHAPE, "s_qo": 1, **LIKED.get(backend, {}), **keys}), "cpu")
    device = known_devices()[DEVICES[backend]]
    assert registry.get("paged_decode", backend).unmet(x.problem, device) == []
    return fake, registry.get("paged_decode", backend).prepare(x, device), x


@pytest.mark.parametrize("backend", DEVICES)
def test_the_wrapper_is_made_and_planned_as_itself(backend: str, monkeypatch: pytest.MonkeyPatch):
    fake, runner, x = prepared(monkeypatch, backend)
    runner()

    assert fake.made["backend"] == backend and fake.made["use_tensor_cores"] and fake.made["use_cuda_graph"]
    assert fake.planned.get("block_tables") is None  # the wrapper makes its own from the pages of each request
    assert fake.planned["q_len_per_req"] == 1
    assert fake.runs[-1]["q"] is x.q and fake.runs[-1]["out"] is runner.out
    assert fake.runs[-1]["enable_pdl"] is None and "sinks" not in fake.runs[-1]


@pytest.mark.parametrize("backend", DEVICES)
def test_a_wrapper_is_planned_again_for_other_lengths_and_made_again_for_another_shape(
    backend: str, monkeypatch: pytest.MonkeyPatch
):
    fake, runner, x = prepared(monkeypatch, backend)
    made, planned = fake.made, fake.planned
    keys = x.problem.model_dump()
    shorter = draw(Problem.model_validate(keys | {"s_kv": 200}), "cpu")
    again = runner.plan_again(shorter) if runner.plan_again else None

    assert again is not None and again.out.shape == runner.out.shape
    assert fake.made is made and fake.planned is not planned
    assert again.plan_again is None  # the first runner plans every batch

    assert runner.plan_again is not None
    runner.plan_again(draw(Problem.model_validate(keys | {"batch_size": 4}), "cpu"))
    assert fake.made is not made


@pytest.mark.parametrize("backend", ["trtllm-gen", "cute-dsl"])
def test_drafts_windows_sinks_and_dependent_launch_reach_the_wrapper(backend: str, monkeypatch: pytest.MonkeyPatch):
    fake, runner, x = prepared(monkeypatch, backend, s_qo=4, window=9, sinks=True, enable_pdl=False)
    runner()

    assert (fake.planned["q_len_per_req"], fake.planned["window_left"]) == (4, 8)
    assert fake.runs[-1]["sinks"] is x.sinks and fake.runs[-1]["enable_pdl"] is False


@pytest.mark.parametrize("backend", ["trtllm-gen", "cute-dsl"])
def test_scales_are_applied_in_the_kernel(backend: str, monkeypatch: pytest.MonkeyPatch):
    fp8 = {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}
    fake, runner, _ = prepared(monkeypatch, backend, **fp8)
    runner()

    assert (fake.runs[-1]["k_scale"], fake.runs[-1]["v_scale"], runner.caller_scale) == (0.5, 0.75, 1.0)


@pytest.mark.parametrize(("reduction", "value"), [("atomic", 1.0), ("kernel", 3.0)])
def test_an_output_that_the_kernel_adds_to_is_cleared_in_every_call(reduction: str, value: float, monkeypatch: pytest.MonkeyPatch):
    _, runner, _ = prepared(monkeypatch, "cute-dsl", reduction)
    runner.out.fill_(1)
    for _ in range(2):
        runner()

    assert torch.equal(runner.out, torch.full_like(runner.out, value))
    assert runner.kernel_config == f"kv_splits=4 reduction={reduction}"


def test_cutile_gets_the_engine_s_table_without_entries_that_lead_outside(monkeypatch: pytest.MonkeyPatch):
    fake, _, x = prepared(monkeypatch, "cutile", seq_lens="random", max_seq_len=4096)
    table = fake.planned["block_tables"]

    assert table.shape == (3, 64)
    assert int(table.max()) < x.problem.num_pages
    assert torch.equal(table[x.page_table < x.problem.num_pages], x.page_table[x.page_table < x.problem.num_pages])


@pytest.mark.parametrize(
    ("backend", "keys", "device", "sentence"),
    [
        ("trtllm-gen", {"s_qo": 4, "min_s_qo": 1}, "b200", "the same number of query tokens for every request"),
        ("cute-dsl", {"page_size": 128}, "b200", "page_size 8, 16, 32 or 64"),
        ("cute-dsl", {"head_dim_qk": 80, "head_dim_vo": 80}, "b200", "a head_dim that is a multiple of 64"),
        ("cute-dsl", {"kv_dtype": "fp8_e4m3"}, "b200", "fp16, bf16 or FP8 queries, and keys and values of the same dtype"),
        ("cute-dsl", {"s_qo": 4, "mask": "full"}, "b200", "causal drafts"),
        ("cute-dsl", {}, "h200", "the SM100 family (10.0 or 10.3)"),
        ("cutile", {"kv_layout": "HND"}, "b200", "NHD pages"),
        ("cutile", {"s_qo": 2}, "b200", "one query token a request"),
        ("cutile", {"window": 9}, "b200", "no sliding window"),
        ("cutile", {"page_size": 48}, "b200", "a page_size that is a power of two"),
        ("cutile", {}, "h200", "SM8x, the SM100 family or SM12x (cuTile compiles for no Hopper GPU)"),
    ],
)
def test_a_rule_is_a_sentence(backend: str, keys: dict[str, object], device: str, sentence: str):
    problem = Problem.model_validate({**SHAPE, "s_qo": 1, **LIKED.get(backend, {}), **keys})

    assert registry.get("paged_decode", backend).unmet(problem, known_devices()[device]) == [sentence]


def test_the_function_is_another_path_to_the_same_kernel(monkeypatch: pytest.MonkeyPatch):
    """One backend each, with a name of its own for what ran: a report ranks both."""
    calls: list[str] = []
    monkeypatch.setattr("flashinfer.decode.trtllm_batch_decode_with_kv_cache", lambda **call: calls.append(call["backend"]))
    fake, wrapper, x = prepared(monkeypatch, "trtllm-gen")
    function = registry.get("paged_decode", "trtllm-native").prepare(x, known_devices()["b200"])
    function()
    wrapper()

    assert calls == ["trtllm-gen"] and len(fake.runs) == 1
    assert (function.resolved_backend, wrapper.resolved_backend) == ("trtllm-gen", "trtllm-gen_wrapper")

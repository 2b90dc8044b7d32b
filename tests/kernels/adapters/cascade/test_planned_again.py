"""Compositions whose wrappers live on: planned for another batch they answer it, by the same wrappers where they fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernels import registry
from kernels.adapter import Adapter
from kernels.conformance.problems import shorter
from kernels.conformance.suite import Trial, execute
from kernels.device import Device
from kernels.inputs.generate import draw
from kernels.problem import Problem
from orchestrator.machines import cpu, known_devices
from tests.helpers import fake_flashinfer

GQA = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 16}
CASCADE = {**GQA, "routine": "cascade", "shared_prefix": 64, "batch_size": 3, "s_qo": 2, "s_kv": 200, "return_lse": True}
DEEPSEEK = {"routine": "ragged_prefill", "num_qo_heads": 8, "num_kv_heads": 8, "head_dim_qk": 192, "head_dim_vo": 128}
CHUNKS = {**DEEPSEEK, "batch_size": 3, "s_qo": 8, "s_kv": 300, "return_lse": True}
TWO_CALLS = ("two_calls_fa2", "two_calls_fa3", "two_calls_fa3_fa2", "multi_level")
BACKENDS = [*((name, CASCADE) for name in TWO_CALLS), *((name, CHUNKS) for name in ("fa2_chunks", "fa3_chunks"))]


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[fake_flashinfer.Wrapper]:
    """Every wrapper that was made, in order. Rules are those of an H200."""
    fake_flashinfer.put_in_place(monkeypatch)
    monkeypatch.setattr("kernels.libraries.flashinfer_common.WORKSPACE_BYTES", 1024)
    unmet, begin = Adapter.unmet, fake_flashinfer.Wrapper.__init__
    found: list[fake_flashinfer.Wrapper] = []

    def init(self: fake_flashinfer.Wrapper, *args: Any, **keys: Any) -> None:
        begin(self, *args, **keys)
        found.append(self)

    monkeypatch.setattr(Adapter, "unmet", lambda self, problem, _: unmet(self, problem, known_devices()["h200"]))
    monkeypatch.setattr(fake_flashinfer.Wrapper, "__init__", init)
    return found


def of(name: str, routine: object) -> Adapter:
    adapter = registry.get(str(routine), name)
    return replace(adapter, workspace_tokens=3 * 64) if name.endswith("chunks") else adapter  # type: ignore[call-arg]


def planned_again(name: str, keys: dict[str, Any]) -> Any:
    problem = Problem.model_validate(keys)
    return execute(of(name, problem.routine), Trial("planned again", problem, cpu()))


@pytest.mark.parametrize(("name", "keys"), BACKENDS)
def test_they_answer_the_next_batch_and_then_the_first_again(name: str, keys: dict[str, Any]):
    finding = planned_again(name, keys)

    assert finding.verdict == "passed", finding.words
    assert finding.words.startswith("right after "), finding.words


@pytest.mark.parametrize(("name", "keys"), BACKENDS)
def test_a_wrapper_that_keeps_the_first_lengths_is_caught(name: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    for kind in (fake_flashinfer.PagedPrefill, fake_flashinfer.PagedDecode, fake_flashinfer.RaggedPrefill):

        def planned(self: Any, *args: Any, _plan: Any = kind.plan, **given: Any) -> None:
            first = getattr(self, "kv_indptr", None)
            _plan(self, *args, **given)
            self.kv_indptr = self.kv_indptr if first is None else first

        monkeypatch.setattr(kind, "plan", planned)

    assert planned_again(name, keys).verdict == "failed"


@pytest.mark.parametrize(("name", "keys"), BACKENDS)
def test_wrappers_live_on_for_shorter_contexts_alone(name: str, keys: dict[str, Any], made: list[fake_flashinfer.Wrapper]):
    device: Device = cpu()
    problem = Problem.model_validate(keys)
    less = shorter(problem)
    assert less is not None
    runner = of(name, problem.routine).prepare(draw(problem, "cpu"), device)
    assert runner.plan_again is not None
    count = len(made)
    again = runner.plan_again(draw(less, "cpu"))
    assert (len(made), again.plan_again) == (count, None)  # the first runner plans every batch

    for change in ({"batch_size": 2}, {"s_qo": 1}, {"s_kv": keys["s_kv"] + 100}, {"q_dtype": "fp16", "kv_dtype": "fp16"}):
        count = len(made)
        runner.plan_again(draw(Problem.model_validate({**keys, **change}), "cpu"))
        assert len(made) > count, change


def test_fewer_chunks_leave_wrappers_unused_and_later_chunks_get_them_back(made: list[fake_flashinfer.Wrapper]):
    first, less = (draw(Problem.model_validate({**CHUNKS, "s_kv": s_kv}), "cpu") for s_kv in (300, 100))
    runner = of("fa2_chunks", "ragged_prefill").prepare(first, cpu())
    assert runner.plan_again is not None
    names = [runner.plan_again(batch).resolved_backend for batch in (less, first)]

    assert runner.resolved_backend == "fa2 over 6 parts"  # new tokens, and 292 in chunks of 64
    assert names == ["fa2 over 3 parts", "fa2 over 6 parts"]
    assert len(made) == 6

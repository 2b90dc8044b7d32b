"""FlashInfer's compositions, with its wrappers replaced by torch: the pages, lengths, scales and bases that they hand over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels import registry
from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.check.oracle import Verdict
from kernels.inputs.generate import draw
from kernels.inputs.tensors import decoy
from kernels.problem import Problem
from orchestrator.machines import known_devices
from tests.helpers import fake_flashinfer

H200 = known_devices()["h200"]
GQA = {"num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 16}
CASCADE = {**GQA, "routine": "cascade", "shared_prefix": 128, "return_lse": True}
DEEPSEEK = {"routine": "ragged_prefill", "num_qo_heads": 8, "num_kv_heads": 8, "head_dim_qk": 192, "head_dim_vo": 128}


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_flashinfer.put_in_place(monkeypatch)
    monkeypatch.setattr("kernels.libraries.flashinfer_common.WORKSPACE_BYTES", 1024)


def verdict_of(p: Problem, backend: str, **changes: Any) -> Verdict:
    x = draw(p, "cpu")
    adapter = replace(registry.get(p.routine, backend), **changes)
    assert adapter.unmet(p, H200) == []
    with decoy(x):
        runner = adapter.prepare(x, H200)
        runner()
    runner()
    how = runner.arithmetic
    return judge_whole(runner.out, x, oracle.answer(x), how, runner.written_lse())


@pytest.mark.parametrize("backend", ["two_calls_fa2", "two_calls_fa3", "two_calls_fa3_fa2", "multi_level"])
@pytest.mark.parametrize(
    "keys",
    [
        {"batch_size": 3, "s_qo": 1, "s_kv": 200},
        {"batch_size": 3, "s_qo": 4, "s_kv": 200, "kv_layout": "NHD"},
        {"batch_size": 5, "s_qo": 2, "s_kv": 300, "seq_lens": "random"},
        {"batch_size": 2, "s_qo": 3, "s_kv": 131},  # nothing but the draft is a request's own
        {"batch_size": 1, "s_qo": 1, "s_kv": 150, "return_lse": False},
        {"batch_size": 3, "s_qo": 2, "s_kv": 200, "num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128},
    ],
)
def test_a_shared_prefix_in_two_calls_is_attention(keys: dict[str, object], backend: str):
    verdict = verdict_of(Problem.model_validate({**CASCADE, **keys}), backend)

    assert verdict.passed, verdict.reason
    assert (verdict.lse_err is not None) == bool(keys.get("return_lse", True))


@pytest.mark.parametrize("backend", ["two_calls_fa2", "multi_level"])
def test_an_8_bit_cache_is_scaled_in_both_calls(backend: str):
    p = Problem.model_validate({**CASCADE, "batch_size": 3, "s_qo": 2, "s_kv": 200, "kv_dtype": "fp8_e4m3"})
    verdict = verdict_of(p, backend)

    assert verdict.passed, verdict.reason


def test_the_heads_of_a_token_are_split_where_one_block_cannot_merge_them():
    wide = {"num_qo_heads": 128, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128, "batch_size": 2, "s_qo": 1, "s_kv": 150}
    p = Problem.model_validate({**CASCADE, **wide})

    assert verdict_of(p, "two_calls_fa2").passed
    assert any("one block" in words for words in registry.get("cascade", "multi_level").unmet(p, H200))


@pytest.mark.parametrize(
    "keys",
    [
        {"batch_spec": "q40s900_2q1s77_q3s50_q70"},  # long, short and no contexts: chunks that are empty for most requests
        {"batch_size": 2, "s_qo": 16, "s_kv": 300},
        {"batch_size": 2, "s_qo": 64, "s_kv": 64},  # a whole prompt has no chunk
        {"batch_spec": "q40s900_2q1s77_q3s50_q70", "mask": "full"},
    ],
)
def test_a_context_in_chunks_is_attention_also_where_chunks_are_empty(keys: dict[str, object]):
    p = Problem.model_validate({**DEEPSEEK, "return_lse": True, **keys})
    verdict = verdict_of(p, "fa2_chunks", workspace_tokens=64 * p.batch_size)

    assert verdict.passed, verdict.reason
    assert verdict.lse_err is not None


def test_requests_have_an_equal_part_of_the_workspace_and_empty_chunks_behind_their_context():
    from kernels.adapters.flashinfer_chunks import parts_of

    p = Problem.model_validate({**DEEPSEEK, "batch_spec": "q4s104_q4s34_q4"})

    own, *chunks = parts_of(p, 120)
    assert own == [(100, 104), (30, 34), (0, 4)]
    assert chunks == [[(0, 40), (0, 30), (0, 0)], [(40, 80), (30, 30), (0, 0)], [(80, 100), (30, 30), (0, 0)]]
    assert all(sum(b - a for a, b in chunk) <= 120 for chunk in chunks)


def test_the_merge_of_the_fake_wrappers_is_that_of_base_2():
    """What stands in for FlashInfer here: two halves of the keys, merged, are all of them."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 64), torch.randn(50, 2, 64), torch.randn(50, 2, 64)
    (a, of_a), (b, of_b) = (fake_flashinfer.attend(q, k[half], v[half], 0.1, False) for half in (slice(20), slice(20, 50)))
    fake_flashinfer.merge_state_in_place(a, of_a, b, of_b)
    whole, lse = fake_flashinfer.attend(q, k, v, 0.1, False)

    torch.testing.assert_close(a, whole)
    torch.testing.assert_close(of_a, lse)

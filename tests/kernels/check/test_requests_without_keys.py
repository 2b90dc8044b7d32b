"""Requests with query tokens and no key, `s0` in a batch spec: their problem, inputs, right answer, backends and mutants."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from kernels import mutants, registry
from kernels.check import oracle
from kernels.check.changed_token import change_tokens
from kernels.check.judgement import judge_whole
from kernels.conformance import checks
from kernels.inputs.generate import UNUSED_SLOT, draw
from kernels.inputs.tensors import token_major
from kernels.mutants.faults import victim
from kernels.problem import Problem, batch_spec
from kernels.problem.arithmetic import Arithmetic
from orchestrator.machines import cpu, known_devices

HEADS = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 32, "head_dim_vo": 32, "page_size": 16}
LARGE = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 128, "head_dim_vo": 128, "page_size": 64, "routine": "paged_decode"}
LATENT = {"routine": "mla", "num_kv_heads": 4, "head_dim_ckv": 32, "head_dim_kpe": 16}
H200 = known_devices()["h200"]
SPECS = ("q1s50_q1s0_q1s20", "3q5s0_q5s80", "q70s0_2q2s90_q1s0")
KINDS: tuple[dict[str, Any], ...] = (
    {}, {"sinks": True}, {"window": 9}, {"mask": "full"}, {"kv_dtype": "fp8_e4m3"}, {"kv_layout": "NHD"}, {"soft_cap": 30.0},
    {"routine": "paged_prefill"}, {"routine": "ragged_prefill"}, LATENT,
)  # fmt: skip


def make(spec: str, **keys: Any) -> Problem:
    return Problem.model_validate({**HEADS, "return_lse": True, **keys, "batch_spec": spec})


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"batch_spec": "2q4s0_q1s0"}, "no request has a key; allowed: s=0 for some requests of a batch"),
        ({"batch_spec": "q1s8_q4s2"}, "has s=2 below q=4; allowed: s >= q"),
        ({"batch_spec": "q1s80_q1s0", "routine": "merge_states", "num_states": 2}, "mla, ragged_prefill, not merge_states"),
        ({"batch_spec": "q1s80_q1s0", "routine": "cascade", "shared_prefix": 16}, "allowed without keys (s0) with routine"),
    ],
)  # fmt: skip
def test_what_no_batch_can_be_is_refused_in_words(keys: dict[str, Any], words: str):
    with pytest.raises(ValidationError) as refused:
        Problem.model_validate({**HEADS, **keys})

    assert words in str(refused.value)


def test_such_requests_count_no_pair_no_page_and_no_key():
    p, plain = make("q1s50_3q1s0_q1s20"), make("q1s50_q1s20")

    assert batch_spec.name(batch_spec.lengths("q1s50_3q1s0_q1s20")) == "q1s50_3q1s0_q1s20"
    assert (p.visible_pairs, p.num_pages, p.kv_bytes) == (plain.visible_pairs, plain.num_pages, plain.kv_bytes)
    assert p.kv_lens == (50, 0, 0, 0, 20)
    assert not plain.lacks_keys
    assert {p.kv_lens[victim(p.model_copy(update={"seed": seed}))] for seed in range(9)} == {50, 20}


def test_their_page_may_be_loaded_and_that_of_the_request_before_is_not_poisoned():
    x = draw(make("q1s50_q1s0_q1s20"), "cpu")
    cache, last = token_major(x.problem, x.kv[0]), int(x.kv_indices[3])

    assert x.kv_indptr.tolist() == [0, 4, 4, 6]
    assert x.last_page_len.tolist() == [2, 0, 4]  # FlashInfer adds it to the pages before
    assert x.page_table[1].tolist() == [0] * 4
    assert (cache[last, 2:] == UNUSED_SLOT).all()
    assert (cache[last, :2] != UNUSED_SLOT).any()


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("keys", KINDS, ids=str)
def test_the_right_answer_is_0_and_minus_infinity_or_the_sink(keys: dict[str, Any], spec: str):
    p = make(spec, **keys)
    x = draw(p, "cpu")
    answer = oracle.answer(x)
    rows = torch.repeat_interleave(torch.tensor(p.kv_lens) == 0, torch.tensor(p.q_lens))
    chunks, how = registry.get(p.routine, "torch_chunks"), Arithmetic("fp32")

    assert not answer.out[rows].any()
    assert torch.equal(answer.lse[rows], (torch.full((4,), -torch.inf) if x.sinks is None else x.sinks).expand(int(rows.sum()), -1))
    assert answer.lse[~rows].isfinite().all()
    assert all(p.kv_lens[one.request] for change in change_tokens(x, answer, how, random.Random(3)) for one in change.copied)
    if not p.sinks:  # which torch_chunks does not serve
        assert checks.answer(chunks, cpu(), p).verdict == "passed"


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    "keys",
    [{}, {"sinks": True}, {"routine": "ragged_prefill", "return_lse": False}, {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}],
)
def test_each_wrong_output_and_log_sum_exp_is_called_wrong(keys: dict[str, Any], spec: str):
    p = make(spec, **keys)
    x, found = draw(p, "cpu"), {}
    answer = oracle.answer(x)
    for mutant in mutants.ADAPTERS:
        if mutant.routine == p.routine and mutant.name.startswith("keyless") and not mutant.unmet(p, cpu()):
            runner = mutant.prepared(x, cpu())
            runner()
            found[mutant.name] = judge_whole(runner.out, x, answer, runner.arithmetic, runner.written_lse())

    of_lse = {"keyless_sink_lost"} if p.sinks else {"keyless_lse_0", "keyless_lse_inf", "keyless_lse_low"}
    assert set(found) == {"keyless_nan", "keyless_garbage", *(of_lse if p.return_lse else ())}
    assert not any(verdict.passed for verdict in found.values())
    assert "rows of requests without keys are not 0" in found["keyless_garbage"].reason
    assert all("rows without keys is not -infinity" in found[name].reason for name in found if "_lse_" in name)


def test_which_backends_serve_them_and_what_the_others_say():
    p = {name: make("q1s500_q1s0", **{**LARGE, "return_lse": lse, "sinks": sinks}) for name, lse, sinks in (
        ("plain", False, False), ("lse", True, False), ("sinks", False, True), ("both", True, True))}  # fmt: skip
    served = {
        name: {key[1] for key, one in registry.adapters().items() if key[0] == "paged_decode" and not one.unmet(problem, H200)}
        for name, problem in p.items()
    }

    flash = {"flash_attn_3", "flash_attn_3_unplanned", "flash_attn_3_32_splits", "flash_attn_3_vllm", "flash_attn_3_vllm_32_splits"}
    assert (
        served["plain"]
        == {*served["lse"], "flex_attention"}
        == {"fa2", "fa2_tc", "fa3", "auto", "cudnn", "torch_chunks", "flex_attention", *flash}
    )
    assert served["sinks"] == {"fa2_tc", "fa3", *flash}
    assert served["both"] == {"fa2_tc"}  # FlashAttention-3 and fa3 write -inf in the sink's place
    assert registry.get("paged_decode", "vllm_triton").unmet(p["plain"], H200) == ["a key for every request (no s0 in batch_spec)"]
    old = registry.get("paged_decode", "fa2").for_versions({"flashinfer-python": "0.6.18"})
    assert any("0.7.0 or later for requests without keys" in sentence for sentence in old.unmet(p["plain"], H200))


def test_a_split_batch_with_a_half_without_keys_is_unsupported_and_no_error():
    both = registry.get("paged_decode", "fa2_tc+fa2")

    assert "a key for every request (no s0 in batch_spec)" in both.unmet(make("q1s0_q5s200", **LARGE), H200)

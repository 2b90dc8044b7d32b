"""Full masks: cross attention, with more query tokens than keys, and windows that reach ahead as far as back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from kernels import registry
from kernels.check import oracle
from kernels.check.judgement import judge_whole
from kernels.inputs.generate import draw
from kernels.inputs.masks import hidden, sees
from kernels.mutants import catalogue
from kernels.problem import Problem
from orchestrator.machines import cpu, known_devices

SHAPE: dict[str, Any] = {
    "routine": "ragged_prefill", "batch_size": 2, "num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64,
    "page_size": 16, "mask": "full",
}  # fmt: skip
CROSS = {"s_qo": 128, "s_kv": 50}
CASES: list[dict[str, Any]] = [
    CROSS,
    {**CROSS, "s_kv": 300, "s_qo": 301, "routine": "paged_prefill"},
    {"s_qo": 70, "s_kv": 60, "seq_lens": "random", "kv_dtype": "fp8_e4m3"},
    {"s_qo": 9, "s_kv": 4, "routine": "mla", "head_dim_ckv": 64, "head_dim_kpe": 32, "num_kv_heads": 4},
    {"s_qo": 100, "s_kv": 100, "window": 9},
    {"s_qo": 40, "s_kv": 300, "window": 33, "routine": "paged_prefill", "sinks": True},
    {"s_qo": 5, "s_kv": 77, "window": 3, "routine": "paged_decode", "kv_dtype": "fp8_e4m3"},
    {"batch_spec": "q100_q3s80", "window": 20},
    {"s_qo": 130, "s_kv": 130, "mask": "prefix", "mask_prefix": 90},
    {"s_qo": 40, "s_kv": 200, "mask": "prefix", "mask_prefix": 9, "routine": "paged_prefill", "kv_dtype": "fp8_e4m3"},
    {"batch_spec": "q5s50_q30", "mask": "prefix", "mask_prefix": 8},
]


def problem(**keys: Any) -> Problem:
    return Problem.model_validate({**SHAPE, **keys} if "batch_spec" not in keys else {**SHAPE, "batch_size": 2, **keys})


def seen_by_definition(p: Problem, request: int) -> torch.Tensor:
    """Bool [Q, L]."""
    q, length = p.q_lens[request], p.kv_lens[request]
    own, key = torch.arange(length - q, length)[:, None], torch.arange(length)
    if p.mask == "prefix":
        start = length - q
        return (key <= own) | ((own - start < (p.mask_prefix or 0)) & (key - start < (p.mask_prefix or 0)))
    return torch.ones(q, length, dtype=torch.bool) if p.window is None else (key - own).abs() < p.window


@pytest.mark.parametrize("keys", CASES, ids=str)
def test_who_sees_what(keys: dict[str, Any]):
    p = problem(**keys)
    for request in range(p.batch_size):
        seen, q, length = seen_by_definition(p, request), p.q_lens[request], p.kv_lens[request]
        unseen = hidden(p, request, range(q), range(length), "cpu")
        token = torch.arange(q)[:, None]
        assert (seen == (~unseen if unseen is not None else torch.ones_like(seen))).all()
        assert (sees(p, length - q + token, token, torch.arange(length)) == seen).all()

    assert p.visible_pairs == sum(int(seen_by_definition(p, request).sum()) for request in range(p.batch_size))


@pytest.mark.parametrize("keys", CASES, ids=str)
def test_the_reference_is_right_and_wrong_kernels_are_caught(keys: dict[str, Any]):
    p = problem(**keys)
    x = draw(p, "cpu")
    answer = oracle.answer(x)
    for name in ("torch_sdpa", "torch_chunks", "flex_attention"):
        if (p.routine, name) in registry.adapters() and not (right := registry.get(p.routine, name)).unmet(p, cpu()):
            runner = right.prepare(x, cpu())
            runner.refresh()
            runner()
            verdict = judge_whole(runner.out, x, answer, runner.arithmetic)
            assert verdict.passed and verdict.pairs_covered is not None, (name, verdict.reason)
    wrong = {m.name: m for m in catalogue.ADAPTERS if m.routine == p.routine and not m.unmet(p, cpu())}
    for name, mutant in wrong.items():
        runner = mutant.prepare(x, cpu())
        runner.refresh()
        runner.out.fill_(float("nan"))
        runner()
        assert name == "previous_run" or not judge_whole(runner.out, x, answer, runner.arithmetic).passed, name
    named = (
        {"window_ignored", "window_one_sided"} if p.window is not None else {"prefix_as_causal"} if p.mask == "prefix" else set()
    )
    assert {*named, "mask_one_early", "one_token_short"} <= wrong.keys()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({**CROSS, "mask": "causal"}, "any s_qo with mask=full, as in cross attention"),
        ({**CROSS, "window": 9}, "allowed with s_qo <= s_kv"),
        ({"s_qo": 8, "s_kv": 9, "mask": "prefix"}, r"mask=prefix needs it.*type \+sweep.mask_prefix=\[4\]"),
        ({"s_qo": 8, "s_kv": 9, "mask": "prefix", "mask_prefix": 9}, "allowed: 2 to s_qo=8"),
        ({"s_qo": 3, "s_kv": 9, "mask": "fork", "tree": (-1, 0, 0), "window": 4}, "only with mask=causal or full"),
    ],
)
def test_what_has_no_answer(keys: dict[str, Any], words: str):
    with pytest.raises(ValidationError, match=words):
        problem(**keys)


def test_who_serves_them_on_an_h200():
    def serving(routine: str, **keys: Any) -> set[str]:
        p = problem(routine=routine, **{**keys, "num_qo_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128})
        return {name for (of, name), adapter in registry.adapters().items() if of == routine and not adapter.unmet(p, H200)}

    fa = {"flash_attn_3", "flash_attn_3_vllm", "flash_attn_3_sglang", "flash_attn_2_vllm", "flash_attn_4"}
    torch_ = {"torch_sdpa", "torch_chunks", "flex_attention"}
    assert serving("ragged_prefill", s_qo=128, s_kv=64) == fa | torch_ | {"fa2", "fa3", "auto"}
    assert serving("ragged_prefill", s_qo=1024, s_kv=1024, window=512) == fa | torch_
    assert serving("paged_prefill", s_qo=600, s_kv=900, mask="prefix", mask_prefix=256, page_size=16) == torch_ | {"fa2", "auto"}


H200 = known_devices()["h200"]

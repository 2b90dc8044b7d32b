"""What FlashAttention-3 is called with, by operators in its place that compute from their arguments alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import registry
from kernels.adapters import flash_attn_3
from kernels.check import oracle
from kernels.inputs.generate import draw
from kernels.libraries import flash_attn_common
from kernels.libraries.flashinfer_modules import MERGE_MODULE
from kernels.problem import Problem
from orchestrator.machines import known_devices

H200 = known_devices()["h200"]
SHAPE = {"batch_size": 2, "s_qo": 3, "s_kv": 70, "num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 16, "head_dim_vo": 16}
WIDE = {"head_dim_qk": 64, "head_dim_vo": 64, "s_qo": 5, "mask": "binary", "tree": (-1, 0, 0, 1, 2)}
EIGHT_BITS = {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}
PROBLEMS: dict[str, dict[str, Any]] = {
    "drafts": {},
    "drafts in NHD pages": {"kv_layout": "NHD", "page_size": 16},
    "a window": {"window": 20},
    "sinks": {"sinks": True},
    "lengths that differ": {"min_s_qo": 1, "seq_lens": "random"},
    "a full mask": {"mask": "full"},
    "8 bits": EIGHT_BITS,
    "a prompt": {"routine": "ragged_prefill", "s_qo": 30},
}
TREES: dict[str, dict[str, Any]] = {
    "a tree": WIDE,
    "a tree in NHD pages": {**WIDE, "kv_layout": "NHD", "page_size": 16},
    "a tree over 8 bits": {**WIDE, **EIGHT_BITS},
    "trees that are cut": {**WIDE, "min_s_qo": 1, "seq_lens": "random", "batch_size": 4},
    "a tree of one token": {**WIDE, "s_qo": 1, "tree": (-1,)},
    "a tree without context": {**WIDE, "s_kv": 5, "batch_size": 1},
}


class Operators:
    """The two operators, with the names that the library's own Python functions give to their arguments."""

    def __init__(self) -> None:
        self.planned: dict[str, Any] = {}
        self.plans = 0

    def get_scheduler_metadata(
        self, batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, headdim_v, qkv_dtype, cache_seqlens,
        cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, seqused_q, cache_leftpad, page_size, max_seqlen_k_new, causal, window_left,
        window_right, attention_chunk, has_softcap, num_splits, pack_gqa, sm_margin,
    ) -> torch.Tensor:  # fmt: skip
        self.planned = {name: value for name, value in locals().items() if name != "self"}
        self.plans += 1
        return torch.zeros(1)

    def fwd(
        self, q, k, v, k_new, v_new, qv, out, cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, seqused_q, seqused_k, max_seqlen_q,
        max_seqlen_k, page_table, kv_batch_idx, leftpad_k, rotary_cos, rotary_sin, seqlens_rotary, q_descale, k_descale, v_descale,
        softmax_scale, causal, window_left, window_right, attention_chunk, softcap, rotary_interleaved, scheduler_metadata,
        num_splits, pack_gqa, sm_margin, sinks=None,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        lse = torch.full((q.shape[1], len(q)), -torch.inf)
        for request in range(len(cu_seqlens_q) - 1):
            rows = slice(int(cu_seqlens_q[request]), int(cu_seqlens_q[request + 1]))
            if page_table is None:
                keys, values = (t[int(cu_seqlens_k[request]) : int(cu_seqlens_k[request + 1])].float() for t in (k, v))
            else:
                length, pages = int(seqused_k[request]), page_table[request, : -(-int(seqused_k[request]) // k.shape[1])].long()
                keys, values = (t.float()[pages].flatten(0, 1)[:length] for t in (k, v))
            if k_descale is not None:
                keys, values = keys * k_descale[request, :, None], values * v_descale[request, :, None]
            group = q.shape[1] // keys.shape[1]
            keys, values = (t.repeat_interleave(group, 1) for t in (keys, values))
            logits = torch.einsum("qhd,khd->hqk", q[rows].float(), keys) * softmax_scale
            query = torch.arange(logits.shape[1])[:, None] + logits.shape[2] - logits.shape[1]
            key = torch.arange(logits.shape[2])
            unseen = (key > query) & (causal or window_right == 0)
            if window_left >= 0:
                unseen = unseen | (key < query - window_left)
            logits = logits.masked_fill(unseen, -torch.inf)
            extra = (
                torch.zeros(len(logits), logits.shape[1], 0)
                if sinks is None
                else sinks.float()[:, None, None].expand(-1, logits.shape[1], 1)
            )
            weights = torch.cat((logits, extra), -1).softmax(-1)[..., : logits.shape[2]]
            out[rows] = torch.einsum("hqk,khd->qhd", weights, values).to(out.dtype)
            lse[:, rows] = logits.logsumexp(-1)
        return out, lse, torch.zeros(5, 1), torch.zeros(1)


def merge(v: torch.Tensor, s: torch.Tensor, v_other: torch.Tensor, s_other: torch.Tensor) -> None:
    """FlashInfer's `merge_state_in_place`: log-sum-exp of base 2, [T, H], contiguous."""
    assert s.is_contiguous() and s_other.is_contiguous() and v_other.is_contiguous()
    both = torch.logaddexp2(s, s_other)
    v.copy_(v * torch.exp2(s - both)[..., None] + v_other * torch.exp2(s_other - both)[..., None])


@pytest.mark.parametrize("backend", ["flash_attn_3", "flash_attn_3_unplanned", "flash_attn_3_32_splits"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_its_arguments_say_the_whole_problem(name: str, backend: str, monkeypatch: pytest.MonkeyPatch):
    p = Problem.model_validate({"routine": "paged_decode", **SHAPE, **PROBLEMS[name]})
    if not p.paged and backend != "flash_attn_3":
        return
    operators = Operators()
    monkeypatch.setattr(flash_attn_3, "_operators", lambda: operators)
    inputs = draw(p, "cpu")
    adapter = registry.get(p.routine, backend)
    runner = adapter.prepare(inputs, H200)
    runner.out.fill_(torch.nan)
    runner()
    verdict = oracle.judge(runner.out, oracle.reference(inputs), p, runner.arithmetic)

    assert adapter.unmet(p, H200) == []
    assert verdict.passed, verdict.reason
    how = "made in the call" if backend.endswith("unplanned") else "given"
    assert runner.kernel_config == f"num_splits=5 scheduler_metadata={how}"
    if operators.planned:
        told = [operators.planned[key] for key in ("batch_size", "max_seqlen_q", "max_seqlen_k", "num_heads_q", "num_heads_kv")]
        assert told == [p.batch_size, p.s_qo, max(p.kv_lens), p.num_qo_heads, p.num_kv_heads]
        assert operators.planned["num_splits"] == (32 if backend.endswith("splits") else 0)
        assert operators.planned["qkv_dtype"] == inputs.q.dtype
    assert bool(operators.planned) == (how == "given")


@pytest.mark.parametrize("backend", ["flash_attn_3", "flash_attn_3_unplanned"])
@pytest.mark.parametrize("name", TREES)
def test_a_tree_takes_two_calls_and_a_merge(name: str, backend: str, monkeypatch: pytest.MonkeyPatch):
    p = Problem.model_validate({"routine": "paged_decode", **SHAPE, **TREES[name]})
    operators = Operators()
    monkeypatch.setattr(flash_attn_3, "_operators", lambda: operators)
    monkeypatch.setattr(flash_attn_common, "_merge", lambda: merge)
    inputs, adapter = draw(p, "cpu"), registry.get(p.routine, backend)
    runner = adapter.prepare(inputs, H200)
    for _ in range(2):  # the merge must leave nothing for the next call
        runner.out.fill_(torch.nan)
        runner()
        verdict = oracle.judge(runner.out, oracle.reference(inputs), p, runner.arithmetic)
        assert verdict.passed, verdict.reason

    assert adapter.unmet(p, H200) == []
    assert runner.kernel_config.startswith("num_splits=5 calls=context,drafts,merge")
    assert adapter.modules(p, H200) == (MERGE_MODULE,)
    assert operators.plans == (0 if backend.endswith("unplanned") else 2)
    if operators.planned:  # the second plan: each draft token is a request, over pages of one token
        told = [operators.planned[key] for key in ("batch_size", "max_seqlen_q", "page_size", "causal")]
        assert told == [p.num_q_tokens, 1, 1, False]


def test_a_tree_that_is_followed_as_a_causal_draft_is_found_out(monkeypatch: pytest.MonkeyPatch):
    p = Problem.model_validate({"routine": "paged_decode", **SHAPE, **WIDE})
    monkeypatch.setattr(flash_attn_3, "_operators", Operators)
    monkeypatch.setattr(flash_attn_common, "_merge", lambda: merge)
    inputs = draw(p, "cpu")
    inputs.visible.copy_(torch.ones(5, 5).tril())
    runner = registry.get(p.routine, "flash_attn_3").prepare(inputs, H200)
    runner()
    monkeypatch.undo()

    assert not oracle.judge(runner.out, oracle.reference(draw(p, "cpu")), p, runner.arithmetic).passed


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"kv_dtype": "fp8_e4m3"}, "queries, keys and values of one dtype"),
        ({**WIDE, "head_dim_qk": 16, "head_dim_vo": 16}, "for a tree, head_dim 64, 128 or 256"),
        ({**WIDE, "sinks": True}, "for a tree, no attention sinks"),
        ({**WIDE, "num_qo_heads": 130}, "for a tree, query heads of at most 8192 elements together"),
        ({"head_dim_qk": 512, "head_dim_vo": 512}, "equal head_dims of keys and values, up to 256"),
        (
            {**EIGHT_BITS, "head_dim_qk": 24, "head_dim_vo": 24},
            "a head_dim that is a multiple of 8, with FP8 of 16",
        ),
        (
            {**EIGHT_BITS, "out_dtype": "fp8_e4m3"},
            "output in the query's dtype, or bf16 with FP8 queries",
        ),
    ],
)
def test_each_condition_of_the_rule_stands_alone(keys: dict[str, Any], sentence: str):
    adapter, usual = registry.get("paged_decode", "flash_attn_3"), {"routine": "paged_decode", **SHAPE}

    assert adapter.unmet(Problem.model_validate({**usual, **keys}), H200) == [sentence]
    assert adapter.unmet(Problem.model_validate(usual), H200) == []


def test_a_tree_needs_pages_and_the_splits_of_the_library():
    tree = Problem.model_validate({**SHAPE, **WIDE, "routine": "paged_decode"})
    ragged = Problem.model_validate({**SHAPE, **WIDE, "routine": "ragged_prefill"})

    assert registry.get("paged_decode", "flash_attn_3_32_splits").unmet(tree, H200) == ["a causal or full mask"]
    assert registry.get("ragged_prefill", "flash_attn_3").unmet(ragged, H200) == ["a causal or full mask"]


def test_what_follows_no_tree_calls_its_own_wheel_alone():
    both = ("tokenspeed-fa3", "flashinfer-python")
    for routine, name, names in (
        ("paged_decode", "flash_attn_3", both),
        ("paged_prefill", "flash_attn_3_unplanned", both),
        ("cascade", "flash_attn_3", both),
        ("paged_decode", "flash_attn_3_32_splits", both[:1]),
        ("paged_prefill", "flash_attn_3_32_splits", both[:1]),
        ("ragged_prefill", "flash_attn_3", both[:1]),
    ):
        adapter = registry.get(routine, name)
        assert adapter.all_distributions == names
        if routine != "cascade":  # forced over a tree too
            tree = Problem.model_validate({**SHAPE, **WIDE, "routine": routine})
            assert adapter.distributions_for(tree) == names
            assert bool(adapter.modules(tree, H200)) == (names == both)
            assert adapter.not_passed(tree, H200) == (() if names == both else ("a tree of drafts",))


def test_the_kernel_is_for_hopper_alone():
    p = Problem.model_validate({**SHAPE, "routine": "paged_decode"})

    for name in ("a100", "b200", "cpu"):
        assert registry.get("paged_decode", "flash_attn_3").unmet(p, known_devices()[name]) == ["SM90 (FlashAttention-3)"]

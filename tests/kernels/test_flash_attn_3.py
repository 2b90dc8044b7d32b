"""What FlashAttention-3 is called with, by operators in its place that compute from their arguments alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import registry
from kernels.adapters import flash_attn_3
from kernels.check import oracle
from kernels.inputs.generate import draw
from kernels.problem import Problem
from orchestrator.machines import known_devices

H200 = known_devices()["h200"]
SHAPE = {"batch_size": 2, "s_qo": 3, "s_kv": 70, "num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 16, "head_dim_vo": 16}
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


class Operators:
    """The two operators, with the names that the library's own Python functions give to their arguments."""

    def __init__(self) -> None:
        self.planned: dict[str, Any] = {}

    def get_scheduler_metadata(
        self, batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, headdim_v, qkv_dtype, cache_seqlens,
        cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, seqused_q, cache_leftpad, page_size, max_seqlen_k_new, causal, window_left,
        window_right, attention_chunk, has_softcap, num_splits, pack_gqa, sm_margin,
    ) -> torch.Tensor:  # fmt: skip
        self.planned = {name: value for name, value in locals().items() if name != "self"}
        return torch.zeros(1)

    def fwd(
        self, q, k, v, k_new, v_new, qv, out, cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, seqused_q, seqused_k, max_seqlen_q,
        max_seqlen_k, page_table, kv_batch_idx, leftpad_k, rotary_cos, rotary_sin, seqlens_rotary, q_descale, k_descale, v_descale,
        softmax_scale, causal, window_left, window_right, attention_chunk, softcap, rotary_interleaved, scheduler_metadata,
        num_splits, pack_gqa, sm_margin, sinks,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
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
        return out, torch.zeros(1), torch.zeros(5, 1), torch.zeros(1)


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
    verdict = oracle.judge(runner.out, oracle.reference(inputs), p, runner.compute_dtype)

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


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"kv_dtype": "fp8_e4m3"}, "queries, keys and values of one dtype"),
        ({"mask": "binary", "s_qo": 3, "tree": (-1, 0, 0)}, "a causal or full mask"),
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


def test_the_kernel_is_for_hopper_alone():
    p = Problem.model_validate({**SHAPE, "routine": "paged_decode"})

    for name in ("a100", "b200", "cpu"):
        assert registry.get("paged_decode", "flash_attn_3").unmet(p, known_devices()[name]) == ["SM90 (FlashAttention-3)"]

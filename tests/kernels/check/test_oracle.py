"""The oracle against attention written out in float64, and its verdict against kernels that are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.check import oracle
from kernels.check.tolerance import tolerance as allowed
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.inputs.sentinel_logit import planted_logit
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from orchestrator.machines import known_devices
from tests.helpers.visibility import sees

BF16 = Arithmetic("bf16")


def written_out(x: Inputs) -> torch.Tensor:
    """Attention one query at a time in float64, straight from the definition."""
    p, rows = x.problem, []
    for request, (q_len, length) in enumerate(zip(p.q_lens, p.kv_lens, strict=True)):
        k, v = (t.double() for t in x.tokens(request, 0, length))
        for j in range(q_len):
            seen = [t for t in range(length) if sees(p, q_len, length, j, t)]
            for head in range(p.num_qo_heads):
                kv_head = head // p.group_size
                q = x.q[x.queries(request)][j, head].double()
                logits = k[seen, kv_head] @ q * x.k_scale / math.sqrt(p.head_dim_qk)
                sink = torch.full((1,), -math.inf) if x.sinks is None else x.sinks[head : head + 1]
                weights = torch.softmax(torch.cat((logits, sink.double())), 0)[:-1]
                rows.append(weights @ v[seen, kv_head] * x.v_scale)
    return torch.stack(rows).view(p.num_q_tokens, p.num_qo_heads, p.value_dim)


@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("dtypes", [("bf16", "bf16"), ("fp32", "fp32"), ("bf16", "fp8_e4m3"), ("fp8_e4m3", "fp8_e5m2")])
@pytest.mark.parametrize("seq_lens", ["fixed", "random"])
@pytest.mark.parametrize("keys_at_once", [30, 10_000])  # so that drafts straddle chunks; so that requests are computed together
def test_the_oracle_is_attention(
    problem: Callable[..., Problem],
    monkeypatch: pytest.MonkeyPatch,
    mask: str,
    dtypes: tuple[str, str],
    seq_lens: str,
    keys_at_once: int,
):
    monkeypatch.setattr(oracle, "CHUNK_BYTES", 4 * 2 * 16 * keys_at_once)
    x = draw(problem(mask=mask, q_dtype=dtypes[0], kv_dtype=dtypes[1], seq_lens=seq_lens), "cpu")

    torch.testing.assert_close(oracle.reference(x).double(), written_out(x), rtol=1e-4, atol=1e-5)


MLA = {"routine": "mla", "head_dim_qk": 24, "head_dim_ckv": 32, "head_dim_kpe": 16, "num_kv_heads": 8}
TREE = {"mask": "binary", "tree": (-1, 0, 0, 1, 1, 2, 2), "s_qo": 7}


@pytest.mark.parametrize("rows", [3, 256])
@pytest.mark.parametrize(
    "keys",
    [
        {"head_dim_qk": 24, "head_dim_vo": 16},
        {"min_s_qo": 1, "s_qo": 5, "batch_size": 4, "seq_lens": "random"},
        {"min_s_qo": 1, "s_qo": 5, "batch_size": 4, "mask": "full"},
        TREE,
        {**TREE, "min_s_qo": 2, "batch_size": 4},
        {"window": 17},
        {"window": 3, "s_qo": 6},
        {"sinks": True},
        {"sinks": True, "window": 40, "s_qo": 5},
        MLA,
        {**MLA, "kv_dtype": "fp8_e4m3", "s_qo": 4, "min_s_qo": 1},
        {"routine": "ragged_prefill", "s_qo": 40, "s_kv": 40, "seq_lens": "fixed"},
        {"routine": "ragged_prefill", "s_qo": 40, "s_kv": 60, "min_s_qo": 5, "head_dim_qk": 24},
        {"routine": "paged_prefill", "s_qo": 9, "mask": "full"},
        {"kv_dtype": "nvfp4", "q_dtype": "fp8_e4m3"},
        {"batch_spec": "q4s70_q2s70_q4s70", "batch_size": 3, "s_qo": 4, "min_s_qo": 2, "s_kv": 70, "seq_lens": "fixed"},
    ],
)
@pytest.mark.parametrize("keys_at_once", [30, 10_000])
def test_the_oracle_is_attention_in_every_routine_and_mask(
    problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch, keys: dict[str, object], rows: int, keys_at_once: int
):
    monkeypatch.setattr(oracle, "CHUNK_BYTES", 4 * 2 * 16 * keys_at_once)
    monkeypatch.setattr(oracle, "ROWS", rows)
    x = draw(problem(**keys), "cpu")

    torch.testing.assert_close(oracle.reference(x).double(), written_out(x), rtol=1e-4, atol=1e-5)


WIDE = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 64, "batch_size": 2}


def test_a_scale_that_is_the_caller_s_is_no_missing_scale():
    p = Problem.model_validate({**WIDE, "s_qo": 4, "s_kv": 5000, "kv_dtype": "fp8_e4m3"})
    x = draw(p, "cpu")
    right = oracle.reference(x)
    unscaled = (right / x.v_scale).to(torch.bfloat16)

    assert not oracle.judge(unscaled, right, p, Arithmetic("fp8_e4m3")).passed
    assert oracle.judge(unscaled, right, p, Arithmetic("bf16", caller_scale=x.v_scale)).passed


@pytest.mark.parametrize(
    ("keys", "compute", "tolerance"),
    [
        # Probabilities, partial outputs and outputs in bf16.
        ({}, "bf16", 3 * 2**-8),
        ({"q_dtype": "fp16", "kv_dtype": "fp16"}, "fp16", 3 * 2**-11),
        ({"kv_dtype": "fp8_e4m3"}, "bf16", 3 * 2**-8),
        # fa2 on CUDA cores multiplies FP8 in fp32.
        ({"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}, "fp32", 2 * 2**-8),
        # Probabilities in 8 bits, outputs in bf16.
        ({"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}, "fp8_e4m3", 2**-4 + 2 * 2**-8),
        # And an 8-bit output.
        ({"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3", "out_dtype": "fp8_e4m3"}, "fp8_e4m3", 2 * 2**-4 + 2**-8),
    ],
)
def test_the_tolerance_is_the_sum_of_what_is_rounded(keys: dict[str, object], compute: str, tolerance: float):
    p = Problem.model_validate({**WIDE, "s_qo": 1, "s_kv": 8192, **keys})

    assert allowed(p, Arithmetic(compute)) == pytest.approx(tolerance, rel=0.02)  # and sums in fp32


def test_queries_that_are_rounded_to_8_bits_cost_a_logit_s_error():
    """Counted by rounding: the worst of many planted logits lies within the term, and not far within."""
    p = Problem.model_validate({**WIDE, "num_qo_heads": 64, "num_kv_heads": 1, "s_qo": 8, "s_kv": 8192, "kv_dtype": "fp8_e4m3"})
    x = draw(p, "cpu")
    k, _ = (t.float() * x.k_scale for t in x.tokens(0, 0, 8192))
    q = x.q[:8].float()
    logits, rounded = (torch.einsum("qhd,ld->qhl", t, k[:, 0]) * x.sm_scale for t in (q, q.to(torch.float8_e4m3fn).float()))
    usual = logits.amax(-1, keepdim=True) < 50  # one row has large logits, and one key that answers it whatever is rounded
    planted = usual & (logits > 0.9 * planted_logit(p, 8192, x.sm_scale * x.k_scale))
    worst = float((rounded - logits).abs()[planted].max())
    term = allowed(p, Arithmetic("fp8_e4m3")) - (2**-4 + 2 * 2**-8)

    assert int(planted.sum()) > 100
    assert 0.5 * term < worst < 1.2 * term


@pytest.mark.parametrize("s_qo", [1, 4])
@pytest.mark.parametrize("s_kv", [1000, 8192])
def test_a_right_kernel_passes(s_qo: int, s_kv: int):
    p = Problem.model_validate({**WIDE, "s_qo": s_qo, "s_kv": s_kv})
    x = draw(p, "cpu")
    runner = TorchSdpa(routine="paged_decode").prepare(x, known_devices()["cpu"])
    runner()

    verdict = oracle.judge(runner.out, oracle.reference(x), p, runner.arithmetic)

    assert verdict.passed
    assert 0 < verdict.rel_err < verdict.tolerance / 2


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda out: out.fill_(math.nan), "NaN"),
        (lambda out: out.view(-1)[7].fill_(math.nan), "1 of"),
        (lambda out: out.view(-1)[7].fill_(math.inf), "1 of"),
        (lambda out: out.zero_(), "off by more than"),
        (lambda out: out[-1].copy_(out[0]), "off by more than"),
    ],
)
def test_nan_infinity_zeros_and_stale_rows_never_pass(
    problem: Callable[..., Problem], spoil: Callable[[torch.Tensor], object], words: str
):
    p = problem()
    ref = oracle.reference(draw(p, "cpu"))
    out = ref.to(torch.bfloat16)
    spoil(out)

    verdict = oracle.judge(out, ref, p, BF16)

    assert not verdict.passed
    assert words in verdict.reason


def test_an_output_of_another_shape_or_dtype_never_passes(problem: Callable[..., Problem]):
    p = problem()
    ref = oracle.reference(draw(p, "cpu"))

    assert not oracle.judge(ref, ref, p, BF16).passed
    assert not oracle.judge(ref.to(torch.bfloat16)[:-1], ref, p, BF16).passed


def test_tf32_set_by_a_library_does_not_reach_the_oracle(problem: Callable[..., Problem]):
    torch.set_float32_matmul_precision("medium")
    try:
        x = draw(problem(q_dtype="fp32", kv_dtype="fp32"), "cpu")
        torch.testing.assert_close(oracle.reference(x).double(), written_out(x), rtol=1e-4, atol=1e-5)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")

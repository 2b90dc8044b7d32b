"""The oracle against attention written out in float64, and its verdict against kernels that are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kernels import oracle
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.inputs import Inputs, draw
from kernels.problem import Problem


def written_out(x: Inputs) -> torch.Tensor:
    """Attention one query at a time in float64, straight from the definition."""
    p, rows = x.problem, []
    for request, length in enumerate(p.kv_lens):
        k, v = (t.double() for t in x.tokens(request, 0, length))
        for j in range(p.s_qo):
            visible = length if p.mask == "full" else length - p.s_qo + j + 1
            for head in range(p.num_qo_heads):
                kv_head = head // p.group_size
                q = x.q[request * p.s_qo + j, head].double()
                logits = k[:visible, kv_head] @ q * x.k_scale / math.sqrt(p.head_dim_qk)
                rows.append(torch.softmax(logits, 0) @ v[:visible, kv_head] * x.v_scale)
    return torch.stack(rows).view(p.batch_size * p.s_qo, p.num_qo_heads, p.head_dim_vo)


@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("dtypes", [("bf16", "bf16"), ("fp32", "fp32"), ("bf16", "fp8_e4m3"), ("fp8_e4m3", "fp8_e5m2")])
@pytest.mark.parametrize("seq_lens", ["fixed", "random"])
def test_the_oracle_is_attention(
    problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch, mask: str, dtypes: tuple[str, str], seq_lens: str
):
    monkeypatch.setattr(oracle, "CHUNK_BYTES", 4 * 2 * 16 * 30)  # chunks of 30 keys, so that drafts straddle them
    x = draw(problem(mask=mask, q_dtype=dtypes[0], kv_dtype=dtypes[1], seq_lens=seq_lens), "cpu")

    torch.testing.assert_close(oracle.reference(x).double(), written_out(x), rtol=1e-4, atol=1e-5)


def test_the_oracle_takes_values_of_another_width(problem: Callable[..., Problem]):
    x = draw(problem(head_dim_qk=24, head_dim_vo=16), "cpu")

    torch.testing.assert_close(oracle.reference(x).double(), written_out(x), rtol=1e-4, atol=1e-5)


WIDE = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 64, "batch_size": 2}


def lens_less(x: Inputs, tokens: int) -> Inputs:
    """A kernel that believes each request to be shorter: its queries and mask stand at the end of what it sees."""
    p = x.problem.model_copy(update={"s_kv": x.problem.s_kv - tokens})
    p = Problem.model_validate(p.model_dump())
    return replace(x, problem=p, kv_lens=x.kv_lens - tokens)


MUTANTS: dict[str, Callable[[Inputs], Inputs]] = {
    "no mask": lambda x: replace(x, visible=torch.ones_like(x.visible)),
    "mask shifted by one": lambda x: replace(x, visible=x.visible | torch.eye(len(x.visible), dtype=torch.bool).roll(1, 1).triu()),
    "last allowed key hidden": lambda x: replace(x, visible=x.visible & ~torch.eye(len(x.visible), dtype=torch.bool)),
    "length short by one": lambda x: lens_less(x, 1),
    "scale missing": lambda x: replace(x, q=(x.q.float() * math.sqrt(x.problem.head_dim_qk)).to(x.q.dtype)),
    "pages of another request": lambda x: replace(x, page_table=x.page_table.flip(0)),
    "two pages swapped at the end": lambda x: replace(
        x, page_table=torch.cat((x.page_table[:, :-2], x.page_table[:, -2:].flip(1)), 1)
    ),
    "heads of a group exchanged": lambda x: replace(x, q=x.q.flip(1)),
}


@pytest.mark.parametrize("s_kv", [8192, 131072])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_kernel_is_caught_at_long_context(mutant: str, s_kv: int):
    p = Problem.model_validate({**WIDE, "s_qo": 4, "s_kv": s_kv})
    x = draw(p, "cpu")
    wrong = oracle.reference(MUTANTS[mutant](x)).to(torch.bfloat16)

    verdict = oracle.judge(wrong, oracle.reference(x), p, "fp8_e4m3")  # even at the widest tolerance

    assert not verdict.passed
    assert verdict.rel_err > 1.5 * verdict.tolerance


@pytest.mark.parametrize("s_qo", [1, 4])
@pytest.mark.parametrize("s_kv", [1000, 8192])
def test_a_right_kernel_passes(s_qo: int, s_kv: int):
    p = Problem.model_validate({**WIDE, "s_qo": s_qo, "s_kv": s_kv})
    x = draw(p, "cpu")
    runner = TorchSdpa().prepare(x)
    runner()

    verdict = oracle.judge(runner.out, oracle.reference(x), p, runner.compute_dtype)

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

    verdict = oracle.judge(out, ref, p, "bf16")

    assert not verdict.passed
    assert words in verdict.reason


def test_an_output_of_another_shape_or_dtype_never_passes(problem: Callable[..., Problem]):
    p = problem()
    ref = oracle.reference(draw(p, "cpu"))

    assert not oracle.judge(ref, ref, p, "bf16").passed
    assert not oracle.judge(ref.to(torch.bfloat16)[:-1], ref, p, "bf16").passed


def test_tf32_set_by_a_library_does_not_reach_the_oracle(problem: Callable[..., Problem]):
    torch.set_float32_matmul_precision("medium")
    try:
        x = draw(problem(q_dtype="fp32", kv_dtype="fp32"), "cpu")
        torch.testing.assert_close(oracle.reference(x).double(), written_out(x), rtol=1e-4, atol=1e-5)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")

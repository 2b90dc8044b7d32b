"""Logits have both signs and any size, at every shape, and no dtype rounds what shifts them."""

from __future__ import annotations

import pytest
import torch

from kernels.check.oracle import answer
from kernels.inputs.generate import draw, draw_other_values
from kernels.inputs.shifted_logits import constant_at, constant_elements, shifts
from kernels.problem import Problem

SHAPE = {"num_qo_heads": 8, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128, "page_size": 64, "batch_size": 2, "s_qo": 1}
MLA = {"routine": "mla", "head_dim_ckv": 128, "head_dim_kpe": 32}
KINDS = [
    *({"kv_dtype": kv} for kv in ("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2", "nvfp4")),
    {"q_dtype": "fp8_e5m2", "kv_dtype": "fp8_e5m2"},
    *({"head_dim_qk": dim, "head_dim_vo": dim} for dim in (16, 64, 256)),
    {"num_kv_heads": 4},
    {"num_kv_heads": 1, "s_qo": 3},
    MLA | {"kv_dtype": "fp8_e4m3"},
    {"routine": "cascade", "shared_prefix": 64},
    {"window": 30, "s_qo": 3},
    {"softmax_scale": 0.3},
]


def problem(**keys: object) -> Problem:
    return Problem.model_validate({**SHAPE, "s_kv": 700, **keys})


@pytest.mark.parametrize("keys", KINDS)
def test_each_request_has_rows_above_100_and_far_below_0_and_all_others_are_shifted_by_16(keys: dict[str, object]):
    p = problem(**keys)
    x = draw(p, "cpu")
    by = shifts(x)
    for request in range(p.batch_size):
        found = by[x.queries(request)]
        assert 100 < found.max() < 150 and -150 < found.min() < -100
        assert int((found.abs() > 100).sum()) == 2
        usual = found[found.abs() < 100]
        assert ((usual.abs() > 14) & (usual.abs() < 18)).all()
        assert abs(float((usual > 0).float().mean()) - 0.5) < 0.2


def test_rows_with_sinks_have_logits_above_100_and_none_far_below_0():
    by = shifts(draw(problem(sinks=True), "cpu"))

    assert by.amax() > 100 and -18 < by.amin() < -14


@pytest.mark.parametrize(("sinks", "wanted"), [(False, [-1, 1, -1]), (True, [1, 1, 1])])
def test_the_only_rows_of_requests_have_logits_far_below_0_and_above_100_in_turns(sinks: bool, wanted: list[int]):
    by = shifts(draw(problem(batch_size=3, num_qo_heads=1, num_kv_heads=1, sinks=sinks), "cpu")).flatten()

    assert by.sign().tolist() == wanted and by.abs().min() > 100


@pytest.mark.parametrize("keys", KINDS)
def test_a_shift_is_the_same_for_all_keys_and_queries_in_8_bits_hold_it(keys: dict[str, object]):
    p = problem(**keys)
    x, at = draw(p, "cpu"), constant_at(p)
    k = torch.cat([x.tokens(request, 0, p.s_kv)[0].float() for request in range(p.batch_size)])[..., at]
    q = x.q[..., at].float()

    assert k.shape[-1] == constant_elements(p) and k.unique().numel() == 1 and torch.equal(q, q.to(torch.float8_e5m2).float())
    assert torch.allclose((q * k[0, 0]).sum(-1) * x.sm_scale * x.k_scale, shifts(x), rtol=1e-6)
    if p.kv_dtype != "nvfp4":
        assert torch.equal(k, k.to(torch.float8_e5m2).float())


@pytest.mark.parametrize(
    "keys", [{"soft_cap": 30.0}, MLA | {"head_dim_kpe": 0}, {"kv_dtype": "nvfp4", "head_dim_qk": 16, "head_dim_vo": 16}]
)
def test_where_logits_cannot_be_shifted_they_are_not(keys: dict[str, object]):
    p = problem(**keys)

    assert constant_elements(p) == 0
    assert not shifts(draw(p, "cpu")).any()


def test_sinks_move_with_the_logits_of_their_heads_and_stay_when_values_are_drawn_again():
    x = draw(problem(sinks=True), "cpu")
    assert x.sinks is not None
    before, shares = x.sinks.clone(), (x.sinks - answer(x).lse).exp()
    draw_other_values(x, 1)

    assert torch.equal(x.sinks, before)
    usual = shares[shifts(x) < 100]
    assert float(usual.min()) > 0.01 and float(usual.max()) < 0.99  # of the weight of their rows

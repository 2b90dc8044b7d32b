"""The right answer after one token of the cache has changed is that of the reference on the changed cache."""

from __future__ import annotations

import random

import pytest
import torch

from kernels.check import oracle
from kernels.check.changed_token import LEFT, VISIBLE, After, Change, _drawn, choose_token
from kernels.inputs import Inputs
from kernels.inputs.copied_token import copied_token
from kernels.inputs.generate import draw
from kernels.inputs.tensors import bits
from kernels.problem import Problem

GQA = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 16, "batch_size": 3, "s_qo": 4}
TOLERANCE = 0.01


@pytest.mark.parametrize(
    "keys",
    [
        {**GQA, "s_kv": 700, "q_dtype": "bf16", "kv_dtype": "fp8_e4m3", "kv_layout": "NHD", "seq_lens": "random"},
        {**GQA, "s_kv": 300, "kv_dtype": "nvfp4", "head_dim_qk": 128, "head_dim_vo": 128},
        {**GQA, "s_kv": 500, "routine": "mla", "num_kv_heads": 4, "head_dim_ckv": 64, "head_dim_kpe": 32},
        {**GQA, "s_kv": 300, "routine": "ragged_prefill", "s_qo": 100, "min_s_qo": 7, "window": 40},
        {**GQA, "s_kv": 300, "mask": "binary", "tree": (-1, 0, 0, 1), "sinks": True},
        {**GQA, "s_kv": 300, "routine": "cascade", "shared_prefix": 128},
        {**GQA, "s_kv": 300, "s_qo": 8, "min_s_qo": 1, "mask": "causal"},
        {**GQA, "s_kv": 300, "s_qo": 8, "mask": "causal", "window": 60, "sinks": True},
        {**GQA, "s_kv": 90, "routine": "paged_prefill", "s_qo": 90, "mask": "causal"},
        {**GQA, "s_kv": 90, "s_qo": 8, "q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3", "out_dtype": "bf16", "mask": "full"},
    ],
)
def test_it_is_what_the_reference_says_and_what_was_is_restored(keys: dict[str, object]):
    p = Problem.model_validate(keys)
    x = draw(p, "cpu")
    caches, answer = [bits(cache).clone() for cache in _stored(x)], oracle.answer(x)
    for number in range(8):
        changed = choose_token(x, answer, TOLERANCE, random.Random(number))
        assert changed is not None
        with copied_token(x, changed.request, changed.source, changed.target):
            right = oracle.answer(x)
            assert not any(torch.equal(bits(now), was) for now, was in zip(x.kv, caches, strict=False))  # keys and values
            (k, v), (k_of, v_of) = (
                (t.float() for t in x.tokens(changed.request, one, one + 1)) for one in (changed.target, changed.source)
            )
            assert torch.equal(k, k_of) and torch.equal(v, v_of if p.latent else -v_of)
        off = (right.out - answer.out).norm(dim=-1) / right.out.norm(dim=-1)
        others = torch.ones(len(off), dtype=torch.bool)
        others[x.queries(changed.request)] = False

        assert all(torch.equal(bits(now), was) for now, was in zip(_stored(x), caches, strict=True))
        assert torch.allclose(right.out[changed.rows], changed.answer.out, atol=1e-5, rtol=1e-4)
        assert changed.target < p.prefix_tokens or not off[others].any()
        assert off[changed.rows].max() > VISIBLE * TOLERANCE
        assert (changed.answer.condition > 0.999 * right.condition[changed.rows]).all()
        assert (changed.answer.peak > right.peak[changed.rows] - 1e-3).all()


@pytest.mark.parametrize("keys", [{"s_kv": 3, "s_qo": 1}, {"s_kv": 40, "window": 3}, {"s_kv": 1, "s_qo": 1}])
def test_no_token_becomes_a_copy_of_itself(keys: dict[str, object]):
    """Its key would not change, and who kept the keys would give the right answer. Every other token that is seen may change."""
    p = Problem.model_validate({**GQA, "s_kv": 300, "mask": "causal", **keys})
    changes = [one for number in range(60) for one in _drawn(p, random.Random(number))]
    oldest = 0 if p.window is None else p.s_kv - p.s_qo - p.window + 1

    assert {one.target for one in changes} == set(range(oldest, p.s_kv))
    assert all(one.source != one.target for one in changes) or p.s_kv == 1


@pytest.mark.parametrize("position", range(64))
def test_any_pair_of_tokens_has_its_answer(position: int):
    """Also a copy of a draft token, or over one: only the position of the copy says who sees it."""
    p = Problem.model_validate({**GQA, "batch_size": 1, "s_kv": 64, "mask": "binary", "tree": (-1, 0, 0, 1), "window": None})
    x = draw(p, "cpu")
    answer = oracle.answer(x)
    for source in (0, 15, 16, 60, 61, 62, 63):
        after = After(x, answer, [Change(0, source, position)])
        changed, ((left,), _) = after.token(0), after.left_and_apart()
        with copied_token(x, 0, source, position):
            right = oracle.answer(x)
        weight = (right.lse - answer.lse).exp()
        length = weight * right.out.norm(dim=-1) / answer.out.norm(dim=-1)

        assert left == pytest.approx(float(weight.minimum(length).min()), rel=1e-3, abs=1e-3)
        if left > LEFT:
            assert torch.allclose(right.out[changed.rows], changed.answer.out, atol=1e-4, rtol=1e-3)


def test_changes_that_are_tried_together_have_the_answers_of_each_alone():
    """Requests of 1 to 8 query tokens, of which a window and a causal mask hide some of the changed ones."""
    p = Problem.model_validate({**GQA, "s_kv": 90, "s_qo": 8, "min_s_qo": 1, "mask": "causal", "window": 40, "seq_lens": "random"})
    x = draw(p, "cpu")
    answer = oracle.answer(x)
    changes = [Change(request, p.kv_lens[request] - 1 - ago, p.kv_lens[request] - 1) for request in range(3) for ago in range(12)]
    together = After(x, answer, changes)
    assert len({p.q_lens[one.request] for one in changes}) > 1

    for number, figures in enumerate(zip(*together.left_and_apart(), strict=True)):
        alone, one = After(x, answer, [changes[number]]), together.token(number)
        assert one.rows == alone.token(0).rows == x.queries(one.request)
        if figures[0] > LEFT:
            assert figures == pytest.approx(tuple(value for (value,) in alone.left_and_apart()), rel=1e-4)
            assert torch.allclose(one.answer.out, alone.token(0).answer.out, atol=1e-5, rtol=1e-4)


def test_any_token_may_change():
    p = Problem.model_validate({**GQA, "batch_size": 1, "s_kv": 200, "page_size": 64})
    x = draw(p, "cpu")
    answer = oracle.answer(x)
    found = [choose_token(x, answer, TOLERANCE, random.Random(number)) for number in range(1000)]

    assert len({one.target for one in found if one}) > 190


def _stored(x: Inputs) -> list[torch.Tensor]:
    return [*(x.kv[:1] if x.problem.latent else x.kv), *(x.kv_scales or ())]

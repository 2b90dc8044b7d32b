"""The right answer after tokens of the cache have changed is that of the reference on the changed cache."""

from __future__ import annotations

import random

import pytest
import torch

from kernels.check import oracle
from kernels.check.answer import Answer
from kernels.check.changed_token import LEFT, TOKENS, After, Change, ChangedTokens, _drawn, change_tokens
from kernels.check.judgement import judge_rows
from kernels.inputs import Inputs
from kernels.inputs.copied_tokens import Copied, copied_tokens
from kernels.inputs.generate import draw
from kernels.inputs.sentinel_logit import parts_of
from kernels.inputs.tensors import bits
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic

GQA = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 16, "batch_size": 3, "s_qo": 4}
MLA = {**GQA, "routine": "mla", "num_kv_heads": 4, "head_dim_ckv": 64, "head_dim_kpe": 32}
BF16, FP8 = Arithmetic("bf16"), Arithmetic("fp8_e4m3")


def stale_is_found(x: Inputs, before: Answer, changed: ChangedTokens, how: Arithmetic) -> list[bool]:
    """Whether an answer of before is called wrong in the rows of each request, if those of all others are new."""
    found = []
    new = changed.answer.out.to(torch.bfloat16)
    for request in range(x.problem.batch_size):
        own = (changed.rows >= x.queries(request).start) & (changed.rows < x.queries(request).stop)
        out = torch.where(own[:, None, None], before.out[changed.rows].to(torch.bfloat16), new)
        found.append(not judge_rows(out, x, changed.answer, how).passed)
    return found


@pytest.mark.parametrize(
    ("keys", "how"),
    [
        ({**GQA, "s_kv": 700, "q_dtype": "bf16", "kv_dtype": "fp8_e4m3", "kv_layout": "NHD", "seq_lens": "random"}, BF16),
        ({**GQA, "s_kv": 300, "kv_dtype": "nvfp4", "head_dim_qk": 128, "head_dim_vo": 128}, BF16),
        ({**MLA, "s_kv": 500}, BF16),
        ({**GQA, "s_kv": 300, "routine": "ragged_prefill", "s_qo": 100, "min_s_qo": 7, "window": 40}, BF16),
        ({**GQA, "s_kv": 300, "mask": "binary", "tree": (-1, 0, 0, 1), "sinks": True}, BF16),
        ({**GQA, "s_kv": 300, "routine": "cascade", "shared_prefix": 128}, BF16),
        ({**GQA, "s_kv": 300, "s_qo": 8, "min_s_qo": 1, "mask": "causal"}, BF16),
        ({**GQA, "s_kv": 300, "s_qo": 8, "mask": "causal", "window": 60, "sinks": True}, BF16),
        ({**GQA, "s_kv": 90, "routine": "paged_prefill", "s_qo": 90, "mask": "causal"}, BF16),
        ({**GQA, "s_kv": 300, "routine": "paged_prefill", "s_qo": 260, "mask": "causal"}, BF16),
        ({**GQA, "s_kv": 250, "routine": "paged_prefill", "s_qo": 200, "mask": "full", "window": 70}, BF16),
        ({**GQA, "s_kv": 250, "routine": "paged_prefill", "s_qo": 200, "mask": "causal", "mask_prefix": 90}, BF16),
        ({**GQA, "s_kv": 150, "routine": "ragged_prefill", "s_qo": 200, "mask": "full"}, BF16),
        ({**GQA, "s_kv": 90, "s_qo": 8, "q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3", "out_dtype": "bf16", "mask": "full"}, FP8),
        # Arithmetic of 8 bits over queries of 16: one token moves no row by so many tolerances.
        ({**MLA, "s_kv": 500, "kv_dtype": "fp8_e4m3"}, FP8),
        ({**GQA, "num_qo_heads": 2, "s_qo": 1, "s_kv": 5000, "kv_dtype": "fp8_e4m3"}, FP8),
        ({**GQA, "s_kv": 2000, "kv_dtype": "fp8_e4m3", "window": 128, "sinks": True}, FP8),
    ],
)
def test_it_is_what_the_reference_says_and_what_was_is_restored(keys: dict[str, object], how: Arithmetic):
    """And an answer of before, of any one request, is called wrong."""
    p = Problem.model_validate(keys)
    x = draw(p, "cpu")
    caches, answer = [bits(cache).clone() for cache in _stored(x)], oracle.answer(x)
    for number in range(4):
        changes = change_tokens(x, answer, how, random.Random(number))
        assert [one.requests for one in changes[:2]] == [1, p.batch_size - 1] and not any(one.requests for one in changes[2:])
        parts = (sum(part.start + kv >= q for part in parts_of(q)[:-1]) for q, kv in zip(p.q_lens, p.kv_lens, strict=True))
        assert len(changes) == 2 + (p.prefix_tokens > 0) + min(max(parts), 2)
        assert {one.request for some in changes[:2] for one in some.copied} == set(range(p.batch_size))
        for changed in changes:
            with copied_tokens(x, changed.copied):
                right = oracle.answer(x)
                for request, source, target in changed.copied:
                    (k, v), (k_of, v_of) = ((t.float() for t in x.tokens(request, one, one + 1)) for one in (target, source))
                    assert torch.equal(k, k_of) and torch.equal(v, v_of if p.latent else -v_of)

            assert all(torch.equal(bits(now), was) for now, was in zip(_stored(x), caches, strict=True))
            assert torch.allclose(right.out[changed.rows], changed.answer.out, atol=1e-5, rtol=1e-4)
            assert (changed.answer.condition > 0.999 * right.condition[changed.rows]).all()
            assert (changed.answer.peak > right.peak[changed.rows] - 1e-3).all()
            found = stale_is_found(x, answer, changed, how)
            assert sum(found) >= max(1, changed.requests)


@pytest.mark.parametrize("keys", [{"s_kv": 3, "s_qo": 1}, {"s_kv": 40, "window": 3}, {"s_kv": 1, "s_qo": 1}])
def test_no_token_becomes_a_copy_of_itself(keys: dict[str, object]):
    """Its key would not change, and who kept the keys would give the right answer. Every other token that is seen may change."""
    p = Problem.model_validate({**GQA, "s_kv": 300, "mask": "causal", **keys})
    changes = [
        _drawn(p, number % 3, p.q_lens[number % 3], tokens, random.Random(number)) for tokens in TOKENS for number in range(300)
    ]
    oldest = 0 if p.window is None else p.s_kv - p.s_qo - p.window + 1

    assert {target for one in changes for target in one.targets} == set(range(oldest, p.s_kv))
    assert all(one.source not in one.targets or p.s_kv == 1 for one in changes)
    assert all(len(set(one.targets)) == len(one.targets) for one in changes)


def test_where_nothing_can_be_shown_nothing_is_said():
    """A latent of one token is a copy of itself, and the answer of another one in three may be shown."""
    p = Problem.model_validate({**MLA, "batch_spec": "q1s1_q1s200_q1s1", "s_qo": 1})
    x = draw(p, "cpu")
    (changed,) = change_tokens(x, oracle.answer(x), BF16, random.Random(1))

    assert changed.requests == 1 and {one.request for one in changed.copied} == {1}


@pytest.mark.parametrize("position", range(64))
def test_any_pair_of_tokens_has_its_answer(position: int):
    """Also a copy of a draft token, or over one: only the position of the copy says who sees it."""
    p = Problem.model_validate({**GQA, "batch_size": 1, "s_kv": 64, "mask": "binary", "tree": (-1, 0, 0, 1), "window": None})
    x = draw(p, "cpu")
    answer = oracle.answer(x)
    for source in (0, 15, 16, 60, 61, 62, 63):
        after = After(x, answer, [Change(0, 4, source, (position,))])
        (_, out, *_), ((left,), _) = after.picked([0]), after.left_and_apart(BF16)
        with copied_tokens(x, [Copied(0, source, position)]):
            right = oracle.answer(x)
        weight = (right.lse - answer.lse).exp()
        length = weight * right.out.norm(dim=-1) / answer.out.norm(dim=-1)

        assert left == pytest.approx(float(weight.minimum(length).min()), rel=1e-3, abs=1e-3)
        if left > LEFT:
            assert torch.allclose(right.out, out, atol=1e-4, rtol=1e-3)


def test_changes_that_are_tried_together_have_the_answers_of_each_alone():
    """Requests of 1 to 8 query tokens, of which a window and a causal mask hide some of the changed ones."""
    p = Problem.model_validate({**GQA, "s_kv": 90, "s_qo": 8, "min_s_qo": 1, "mask": "causal", "window": 40, "seq_lens": "random"})
    x = draw(p, "cpu")
    answer = oracle.answer(x)
    lasts = [(request, length - 1) for request, length in enumerate(p.kv_lens)]
    changes = [
        Change(request, p.q_lens[request], last - ago, (last, last - 12)[: 1 + ago % 2])
        for request, last in lasts
        for ago in range(12)
    ]
    together = After(x, answer, changes)
    assert len({p.q_lens[one.request] for one in changes}) > 1

    for number, figures in enumerate(zip(*together.left_and_apart(BF16), strict=True)):
        alone, one = After(x, answer, [changes[number]]), together.picked([number])
        rows = x.queries(changes[number].request)
        assert one[0].tolist() == alone.picked([0])[0].tolist() == list(range(rows.start, rows.stop))
        if figures[0] > LEFT:
            assert figures == pytest.approx(tuple(value for (value,) in alone.left_and_apart(BF16)), rel=1e-4)
            assert torch.allclose(one[1], alone.picked([0])[1], atol=1e-5, rtol=1e-4)


def test_any_token_may_change():
    p = Problem.model_validate({**GQA, "batch_size": 1, "s_kv": 200, "page_size": 64})
    x = draw(p, "cpu")
    answer = oracle.answer(x)
    found = [one.target for number in range(1000) for one in change_tokens(x, answer, BF16, random.Random(number))[0].copied]

    assert len(found) == 1000 and len(set(found)) > 190


def _stored(x: Inputs) -> list[torch.Tensor]:
    return [*(x.kv[:1] if x.problem.latent else x.kv), *(x.kv_scales or ())]

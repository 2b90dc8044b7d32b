"""The right answer after one token of the cache has changed is that of the reference on the changed cache."""

from __future__ import annotations

import random

import pytest
import torch

from kernels.check import oracle
from kernels.check.changed_token import VISIBLE, choose_token
from kernels.inputs.generate import draw
from kernels.inputs.tensors import bits, flip_token
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
    ],
)
def test_it_is_what_the_reference_says_and_what_was_is_restored(keys: dict[str, object]):
    p = Problem.model_validate(keys)
    x = draw(p, "cpu")
    caches, answer = [bits(cache).clone() for cache in (x.kv[:1] if p.latent else x.kv)], oracle.answer(x)
    for number in range(4):
        changed = choose_token(x, answer, TOLERANCE, random.Random(number))
        assert changed is not None
        flip_token(x, changed.request, changed.position)
        right = oracle.answer(x).out
        assert not any(torch.equal(bits(now), was) for now, was in zip(x.kv, caches, strict=False))  # keys and values
        flip_token(x, changed.request, changed.position)
        others = torch.ones(len(right), dtype=torch.bool)
        others[x.queries(changed.request)] = False

        assert torch.equal(bits(x.kv[0]), caches[0])
        assert torch.allclose(right[changed.rows], changed.answer.out, atol=1e-5, rtol=1e-4)
        assert torch.equal(right[others], answer.out[others])
        off = (right - answer.out)[changed.rows].norm(dim=-1) / right[changed.rows].norm(dim=-1)
        assert off.max() > VISIBLE * TOLERANCE

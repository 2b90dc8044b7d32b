"""Shapes, bytes and FLOPs, each formula against counting one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kernels.problem import Problem
from tests.conftest import SMALL


def sees(mask: str, s_qo: int, length: int, query: int, key: int) -> bool:
    return mask == "full" or key <= length - s_qo + query


@given(
    st.sampled_from(["causal", "full"]),
    st.sampled_from(["fixed", "random"]),
    st.integers(1, 6),
    st.integers(6, 40),
    st.integers(0, 9),
)
def test_flops_and_bytes_equal_what_counting_gives(mask: str, seq_lens: str, s_qo: int, s_kv: int, seed: int):
    p = Problem.model_validate(
        {
            **SMALL,
            "mask": mask,
            "seq_lens": seq_lens,
            "s_qo": s_qo,
            "s_kv": s_kv,
            "seed": seed,
            "kv_dtype": "fp8_e4m3",
            "page_size": 16,
        }
    )
    pairs = sum(sees(mask, s_qo, length, q, k) for length in p.kv_lens for q in range(s_qo) for k in range(length))
    kv_bytes = sum(p.num_kv_heads * (p.head_dim_qk + p.head_dim_vo) * 1 for length in p.kv_lens for _ in range(length))
    qo_bytes = p.batch_size * s_qo * p.num_qo_heads * (p.head_dim_qk * 2 + p.head_dim_vo * 2)

    assert p.visible_pairs == pairs
    assert p.flops == sum(2 * p.num_qo_heads * (p.head_dim_qk + p.head_dim_vo) for _ in range(pairs))
    assert (p.kv_bytes, p.bytes) == (kv_bytes, kv_bytes + qo_bytes)
    assert p.num_pages == sum(len(range(0, length, 16)) for length in p.kv_lens)


def test_random_lengths_reach_s_kv_and_hold_the_drafts():
    p = Problem.model_validate({**SMALL, "batch_size": 50, "seq_lens": "random", "seed": 4})

    assert max(p.kv_lens) == p.s_kv
    assert min(p.kv_lens) >= p.s_qo
    assert len(set(p.kv_lens)) > 10


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"s_qo": 0}, "greater than or equal to 1"),
        ({"s_qo": 101}, "s_qo=101 is greater than s_kv=100"),
        ({"num_kv_heads": 3}, "num_qo_heads=8 does not divide by num_kv_heads=3"),
        ({"batch_size": "8x"}, "valid integer"),
        ({"q_dtype": "float8"}, "'fp32', 'fp16', 'bf16'"),
        ({"s_kw": 3}, "s_kw"),
    ],
)
def test_a_problem_that_cannot_be_says_why(keys: dict[str, object], words: str):
    with pytest.raises(ValidationError) as caught:
        Problem.model_validate({**SMALL, **keys})

    assert words in str(caught.value)


@pytest.mark.parametrize(("q", "out"), [("bf16", "bf16"), ("fp16", "fp16"), ("fp32", "fp32"), ("fp8_e4m3", "bf16")])
def test_output_follows_the_query_unless_that_has_eight_bits(q: str, out: str):
    assert Problem.model_validate({**SMALL, "q_dtype": q}).output_dtype == out

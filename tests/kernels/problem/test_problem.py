"""Shapes, bytes and FLOPs: each formula against a count one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kernels.problem import Problem
from kernels.problem.trees import Tree
from tests.helpers.problems import SMALL

MASKS: dict[str, dict[str, object]] = {
    "causal": {},
    "full": {"mask": "full"},
    "binary": {"mask": "binary"},
    "window": {"window": 7},
}
ROUTINES: dict[str, dict[str, object]] = {
    "paged_decode": {},
    "paged_prefill": {},
    "ragged_prefill": {},
    "mla": {"head_dim_ckv": 32, "head_dim_kpe": 16},
}


def sees(p: Problem, q_len: int, length: int, query: int, key: int) -> bool:
    own, draft = length - q_len + query, key - (length - q_len)
    if p.tree is None or draft < 0:
        return (p.mask == "full" or draft < 0 or key <= own) and (p.window is None or key > own - p.window)
    while query > draft:
        query = p.tree[query]
    return query == draft


@given(
    st.sampled_from(list(MASKS)),
    st.sampled_from(list(ROUTINES)),
    st.sampled_from(["fixed", "random"]),
    st.sampled_from([None, 1, 2]),
    st.integers(2, 6),
    st.integers(6, 40),
    st.integers(0, 9),
    st.sampled_from(["bf16", "fp8_e4m3", "nvfp4"]),
)
def test_flops_and_bytes_equal_what_counting_gives(
    mask: str, routine: str, seq_lens: str, min_s_qo: int | None, s_qo: int, s_kv: int, seed: int, kv_dtype: str
):
    tree = Tree(branches=(2,)).parents(s_qo) if mask == "binary" else None
    keys = {"seq_lens": seq_lens, "s_qo": s_qo, "min_s_qo": min_s_qo, "s_kv": s_kv, "seed": seed, "page_size": 16, "tree": tree}
    keys |= {"kv_dtype": kv_dtype, "routine": routine, **MASKS[mask], **ROUTINES[routine]}
    if routine == "mla" and (mask == "window" or kv_dtype == "nvfp4"):
        return
    p = Problem.model_validate({**SMALL, **keys})
    width, value, stored = (48, 32, 48) if p.latent else (16, 16, 2 * (16 + 16))
    half_bytes = {"bf16": 4, "fp8_e4m3": 2, "nvfp4": 1.125}[kv_dtype]  # of two elements
    requests = [(q, length) for q, length in zip(p.q_lens, p.kv_lens, strict=True)]
    seen = [[[sees(p, q, n, j, t) for t in range(n)] for j in range(q)] for q, n in requests]
    pairs = sum(row.count(True) for request in seen for row in request)
    tokens = sum(any(row[t] for row in request) for request in seen for t in range(len(request[0])))

    assert p.visible_pairs == pairs
    assert p.flops == sum(2 * p.num_qo_heads * (width + value) for _ in range(pairs))
    assert p.kv_bytes == int(tokens * stored * half_bytes / 2)
    assert p.bytes == p.kv_bytes + sum(p.num_qo_heads * (width * 2 + value * 2) for q, _ in requests for _ in range(q))
    assert p.num_pages == sum(len(range(0, length, p.slots_per_page)) for length in p.kv_lens)


def test_drawn_query_lengths_reach_both_bounds():
    p = Problem.model_validate({**SMALL, "batch_size": 50, "s_qo": 8, "min_s_qo": 2})

    assert (min(p.q_lens), max(p.q_lens)) == (2, 8)
    assert p.num_q_tokens == sum(p.q_lens) < 400


def test_drawn_kv_lengths_reach_s_kv_and_contain_the_drafts():
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
        ({"s_qo": 2, "min_s_qo": 3}, "s_qo={min: 3, max: 2}"),
        ({"mask": "binary"}, "the name of a tree in conf/trees"),
        ({"mask": "t", "tree": (-1, 0)}, "tree [-1, 0] for s_qo=3"),
        ({"mask": "t", "tree": (-1, 2, 0)}, "allowed: s_qo parents, -1 and then earlier tokens"),
        ({"mask": "t", "tree": (-1, 0, 0), "window": 4}, "window=4: allowed only with mask=causal"),
        ({"routine": "mla"}, "routine=mla needs head_dim_ckv and head_dim_kpe"),
        ({"q_dtype": "nvfp4"}, "allowed only for keys and values"),
        ({"kv_dtype": "nvfp4", "head_dim_qk": 24}, "multiples of 16"),
    ],
)
def test_an_inconsistent_problem_says_why(keys: dict[str, object], words: str):
    with pytest.raises(ValidationError) as caught:
        Problem.model_validate({**SMALL, **keys})

    assert words in str(caught.value)


@pytest.mark.parametrize(("q", "out"), [("bf16", "bf16"), ("fp16", "fp16"), ("fp32", "fp32"), ("fp8_e4m3", "bf16")])
def test_the_output_has_the_query_s_dtype_unless_that_has_8_bits(q: str, out: str):
    assert Problem.model_validate({**SMALL, "q_dtype": q}).output_dtype == out

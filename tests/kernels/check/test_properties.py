"""Masks, page tables, tolerances, FLOPs and bytes against their definitions, counted one by one, on problems that nobody chose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.check.tolerance import tolerance as allowed
from kernels.inputs.generate import UNUSED_ENTRY, draw
from kernels.inputs.masks import flat_custom, pack, packed_batch, visibility
from kernels.problem import Problem, batch_spec
from kernels.problem.arithmetic import Arithmetic
from kernels.problem.dtypes import SIZE_BITS, UNIT_ROUNDOFF
from tests.helpers.visibility import sees

few = settings(max_examples=60, deadline=None)


@st.composite
def problems(draw_: Any) -> Problem:
    """Small problems of every routine, mask, layout and kind of lengths."""
    routine = draw_(st.sampled_from(["paged_decode", "paged_prefill", "ragged_prefill", "mla"]))
    s_qo = draw_(st.integers(1, 9))
    s_kv = draw_(st.integers(s_qo, 90))
    mask = draw_(st.sampled_from(["causal", "full", "tree"]))
    kv_heads, group = draw_(st.integers(1, 3)), draw_(st.integers(1, 4))
    keys: dict[str, Any] = {
        "routine": routine, "batch_size": draw_(st.integers(1, 4)), "s_qo": s_qo, "s_kv": s_kv,
        "num_kv_heads": kv_heads, "num_qo_heads": kv_heads * group, "head_dim_qk": 16, "head_dim_vo": 16,
        "page_size": draw_(st.sampled_from([1, 4, 16])), "kv_layout": draw_(st.sampled_from(["HND", "NHD"])),
        "page_order": draw_(st.sampled_from(["random", "sequential"])), "seq_lens": draw_(st.sampled_from(["fixed", "random"])),
        "min_s_qo": draw_(st.one_of(st.none(), st.integers(1, s_qo))), "seed": draw_(st.integers(0, 99)),
        "q_dtype": "bf16", "kv_dtype": draw_(st.sampled_from(["bf16", "fp8_e4m3"])), "mask": mask,
    }  # fmt: skip
    lengths = st.tuples(st.integers(1, 9), st.integers(0, 60))
    if listed := draw_(st.one_of(st.none(), st.lists(lengths, min_size=1, max_size=4))):
        keys |= batch_spec.keys_of(batch_spec.name((q, q + context) for q, context in listed))
        s_qo = keys["s_qo"]
    if mask == "tree":
        keys["tree"] = (-1, *(draw_(st.integers(0, i - 1)) for i in range(1, s_qo)))
    if mask == "causal" and routine != "mla":
        keys["window"] = draw_(st.one_of(st.none(), st.integers(1, 100)))
    if routine == "mla":
        keys |= {"head_dim_ckv": 32, "head_dim_kpe": 16}
    return Problem.model_validate(keys)


def pairs_of(p: Problem) -> list[list[list[bool]]]:
    """[request][query][key]: who sees whom, in the words of the definition."""
    return [
        [[sees(p, q, length, j, t) for t in range(length)] for j in range(q)] for q, length in zip(p.q_lens, p.kv_lens, strict=True)
    ]


@few
@given(problems())
def test_flops_and_bytes_are_what_is_counted(p: Problem):
    pairs = pairs_of(p)
    seen_pairs = sum(sum(map(sum, request)) for request in pairs)
    read_tokens = sum(sum(any(column) for column in zip(*request, strict=True)) for request in pairs)
    kv_elements = p.key_dim if p.latent else p.num_kv_heads * (p.head_dim_qk + p.head_dim_vo)
    q_tokens = sum(len(request) for request in pairs)

    assert p.visible_pairs == seen_pairs
    assert p.flops == 2 * p.num_qo_heads * (p.key_dim + p.value_dim) * seen_pairs
    kv_bytes = read_tokens * kv_elements * SIZE_BITS[p.kv_dtype] / 8
    assert p.kv_bytes == kv_bytes
    assert p.bytes == kv_bytes + q_tokens * p.num_qo_heads * (p.key_dim + p.value_dim) * 2


@few
@given(problems())
def test_the_custom_mask_is_the_definition_written_out(p: Problem):
    flat = [seen for request in pairs_of(p) for row in request for seen in row]

    assert flat_custom(p, "cpu").tolist() == flat


@few
@given(problems())
def test_the_packed_mask_holds_the_bits_of_the_draft(p: Problem):
    visible = visibility(p, "cpu")
    packed = pack(visible).to(torch.int64)
    bit = [[packed[i, k // 16].item() >> (k % 16) & 1 for k in range(p.s_qo)] for i in range(p.s_qo)]

    assert bit == visible.int().tolist()
    whole = packed_batch(p, "cpu")
    assert (
        whole is None
        if p.s_qo == 1
        else whole.numel() == packed.shape[1] * (p.num_q_tokens if p.min_s_qo else p.batch_size * p.s_qo)
    )


@few
@given(problems())
def test_a_page_table_finds_every_token_once_and_points_nowhere_else(p: Problem):
    x = draw(p, "cpu")
    n = p.slots_per_page
    used = [x.page_table[r, : -(-length // n)].tolist() for r, length in enumerate(p.kv_lens)]
    rest = [x.page_table[r, -(-length // n) :].tolist() for r, length in enumerate(p.kv_lens)]

    assert sorted(page for pages in used for page in pages) == list(range(p.num_pages))
    assert all(entry == UNUSED_ENTRY for entries in rest for entry in entries)
    assert [page for pages in used for page in pages] == x.kv_indices.tolist()
    assert x.kv_indptr.tolist() == [sum(map(len, used[:r])) for r in range(p.batch_size + 1)]
    assert x.last_page_len.tolist() == [length - (len(pages) - 1) * n for length, pages in zip(p.kv_lens, used, strict=True)]


@few
@given(problems(), st.sampled_from(["fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2"]))
def test_a_tolerance_covers_every_rounding_and_grows_with_each(p: Problem, compute: str):
    tolerance = allowed(p, Arithmetic(compute))

    assert tolerance > UNIT_ROUNDOFF[compute] + UNIT_ROUNDOFF[p.output_dtype]
    wider = [dtype for dtype in ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2") if UNIT_ROUNDOFF[dtype] < UNIT_ROUNDOFF[compute]]
    assert all(allowed(p, Arithmetic(dtype)) < tolerance for dtype in wider)


@pytest.mark.parametrize("s_qo", [1, 3])
def test_the_wrong_side_of_each_formula_would_be_seen(s_qo: int):
    """The counting itself: one key more for one query changes the FLOPs by what one pair costs."""
    keys = {
        "batch_size": 1,
        "s_qo": s_qo,
        "num_kv_heads": 1,
        "num_qo_heads": 2,
        "head_dim_qk": 16,
        "head_dim_vo": 16,
        "page_size": 16,
    }
    less, more = (Problem.model_validate({**keys, "s_kv": s_kv}) for s_kv in (40, 41))

    assert more.flops - less.flops == 2 * 2 * 32 * s_qo

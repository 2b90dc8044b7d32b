"""Where keys are planted, how heavy they are, and that nothing else of the inputs is changed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from kernels.check.oracle import answer
from kernels.check.tolerance import tolerance as allowed
from kernels.inputs.generate import draw
from kernels.inputs.sentinel_keys import PLANTS_A_ROW, context_plants, context_positions, large_row, plants_of, tail
from kernels.inputs.sentinel_logit import planted_logit
from kernels.inputs.shifted_logits import constant_elements, shifts
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic

WIDE = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64, "page_size": 64, "batch_size": 2, "s_qo": 4}
LLAMA = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128, "page_size": 64, "batch_size": 64}


def logits_of(p: Problem, request: int) -> torch.Tensor:
    """[Q, H, L]: every logit of a request, mask and shift apart."""
    x = draw(p, "cpu")
    k, _ = (t.float() for t in x.tokens(request, 0, p.kv_lens[request]))
    q = x.q[x.queries(request)].float().view(p.q_lens[request], p.stored_kv_heads, p.group_size, -1)
    return torch.einsum("qkgd,lkd->qkgl", q, k).flatten(1, 2) * x.sm_scale * x.k_scale - shifts(x)[x.queries(request), :, None]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"kv_dtype": "fp8_e4m3"},
        {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e5m2"},
        {"kv_dtype": "nvfp4", "q_dtype": "fp8_e4m3"},
        {"q_dtype": "fp32", "kv_dtype": "fp32", "kv_layout": "NHD"},
        {"routine": "ragged_prefill"},
        {"routine": "mla", "num_kv_heads": 16, "head_dim_ckv": 64, "head_dim_kpe": 32},
    ],
)
def test_a_planted_key_has_its_logit_with_the_row_it_is_aimed_at(keys: dict[str, object]):
    p = Problem.model_validate({**WIDE, "s_kv": 4000, **keys})
    logits = logits_of(p, 1)
    (position, kv_head, head, query), size = plants_of(p, p.q_lens[1], p.kv_lens[1], large_row(p, 1))
    found = logits[query, kv_head * p.group_size + head, position]
    large = size > 1
    meant = planted_logit(p, 4000, p.head_dim_qk**-0.5 * (0.5 if "fp8" in p.kv_dtype or p.kv_dtype == "nvfp4" else 1.0))

    loose = {"fp8_e4m3": 0.05, "fp8_e5m2": 0.1, "nvfp4": 0.25}.get(p.kv_dtype, 0.02)
    assert len(position) >= 32 and large.sum() == 1
    assert float((found / meant - 1).abs()[~large].max()) < loose
    row = logits[int(query[large]), int(kv_head[large]) * p.group_size + int(head[large])]
    assert row.topk(2).indices[0] == position[large] and float(row.topk(2).values.diff()) < -8  # one key answers the row
    assert float(row.max()) > 100
    assert float((logits > 0.8 * meant).float().mean()) < 0.05  # few rows see it so


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8_e4m3"])
@pytest.mark.parametrize(("kv_heads", "s_qo"), [(16, 1), (8, 1), (16, 3)])
def test_with_few_rows_a_running_maximum_grows_in_each_of_them_from_either_end(kv_heads: int, s_qo: int, kv_dtype: str):
    p = Problem.model_validate({**WIDE, "num_kv_heads": kv_heads, "s_qo": s_qo, "s_kv": 4096, "kv_dtype": kv_dtype})
    assert large_row(p, 1) is None
    logits = logits_of(p, 1)[..., : 4096 - s_qo]
    ends = logits[..., :512].amax(-1).maximum(logits[..., -512:].amax(-1))

    assert (logits.amax(-1) - ends > 0.2).float().mean() > (0.9 if s_qo == 1 else 0.6)  # drafts are planted in other rows


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8_e4m3"])
@pytest.mark.parametrize("s_qo", [1, 8])
@pytest.mark.parametrize("s_kv", [64, 1000, 8192, 50000, 131072])
def test_ends_and_page_borders_are_planted_and_no_row_bears_too_many(s_kv: int, s_qo: int, kv_dtype: str):
    p = Problem.model_validate({**LLAMA, "s_kv": s_kv, "s_qo": s_qo, "kv_dtype": kv_dtype})
    positions = context_positions(p, s_qo, s_kv)
    position, kv_head, head, query = context_plants(p, s_qo, s_kv).tolist()
    context = s_kv - tail(p, s_qo)

    assert {0, context - 1} <= set(positions) <= set(range(context))
    assert set(position) == set(positions)
    assert len(set(zip(position, kv_head, strict=True))) == len(position)  # a key is planted once
    bears = Counter(zip(kv_head, head, query, strict=True))
    assert max(bears.values()) <= PLANTS_A_ROW[False, kv_dtype != "bf16"] + 1
    inner = [a for a in positions[1:-1] if a % 64 == 0]
    assert all(a - 1 in positions for a in inner)  # both sides of a border
    ranges = min(context / 64, 64 if s_qo == 1 else 128)
    assert all(b - a <= max(64, context / ranges) for a, b in itertools.pairwise(positions))  # of so many, none is without


def test_pages_hold_a_planted_key_each_where_rows_are_enough():
    p = Problem.model_validate({**LLAMA, "s_kv": 131072, "s_qo": 2})

    assert {position // 64 for position in context_positions(p, 2, 131072)} == set(range(2048))


@pytest.mark.parametrize(("s_kv", "each"), [(1000, 1), (8192, 1), (131072, 2)])
def test_keys_inside_of_pages_are_planted_at_all_slots_where_rows_are_enough(s_kv: int, each: int):
    p = Problem.model_validate({**LLAMA, "s_kv": s_kv, "s_qo": 2})
    inner = [position for position in context_positions(p, 2, s_kv) if position % 64 not in (0, 63) and position < s_kv - 64]

    assert [position // 64 for position in inner] == list(range(0, (s_kv - 1) // 64, each))  # one in each page, or in each second
    assert len({position % 64 for position in inner}) >= min(62, len(inner))
    assert set(inner) <= set(context_plants(p, 2, s_kv)[0].tolist())


def test_keys_inside_of_pages_make_no_row_bear_more():
    p = Problem.model_validate({**LLAMA, "s_kv": 8192, "s_qo": 2})
    _, kv_head, head, query = context_plants(p, 2, 8192).tolist()
    edges = [position for position in context_positions(p, 2, 8192) if position % 64 in (0, 63) or position == 8189]

    assert len(edges) < len(context_positions(p, 2, 8192))
    assert max(Counter(zip(kv_head, head, query, strict=True)).values()) <= len(edges) / 16 + 1  # 8 heads of a group, 2 queries


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8_e4m3"])
@pytest.mark.parametrize("s_kv", [1000, 131072])
def test_every_kv_head_has_the_ends_of_the_context(s_kv: int, kv_dtype: str):
    p = Problem.model_validate({**LLAMA, "s_kv": s_kv, "s_qo": 1, "kv_dtype": kv_dtype})
    position, kv_head, *_ = context_plants(p, 1, s_kv).tolist()
    planted = set(zip(position, kv_head, strict=True))

    assert all((end, head) in planted for end in (0, s_kv - 2) for head in range(8))


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8_e4m3"])
def test_requests_of_other_lengths_are_planted_each_for_itself(kv_dtype: str):
    keys = {"seq_lens": "random", "batch_size": 16, "s_kv": 30000, "s_qo": 5, "min_s_qo": 1, "kv_dtype": kv_dtype}
    p = Problem.model_validate({**WIDE, **keys})
    for q_len, kv_len in zip(p.q_lens, p.kv_lens, strict=True):
        positions = context_positions(p, q_len, kv_len)
        bears = 2 * p.group_size * q_len * PLANTS_A_ROW[False, kv_dtype != "bf16"]
        assert {0, kv_len - q_len - 1} <= set(positions)
        assert all(b - a <= max(1, 4 * kv_len / 64 / bears) * 64 for a, b in itertools.pairwise(positions))
        assert set(context_plants(p, q_len, kv_len)[0].tolist()) == set(positions)


def test_sinks_weigh_about_as_much_as_all_keys_at_any_length():
    for s_kv in (2000, 30000):
        p = Problem.model_validate({**WIDE, "s_kv": s_kv, "sinks": True, "num_qo_heads": 64, "num_kv_heads": 2})
        x = draw(p, "cpu")
        assert x.sinks is not None
        assert torch.equal(x.sinks, x.sinks.bfloat16().float())  # FlashAttention-3 takes them in 16 bits
        share = (x.sinks - torch.logsumexp(logits_of(p, 0) + shifts(x)[x.queries(0), :, None], dim=-1)).exp()  # [Q, H]
        assert 0.3 < float(share.median()) < 3


def test_a_window_that_ends_within_the_draft_has_its_edge_planted_there_and_once():
    p = Problem.model_validate({**WIDE, "s_kv": 3000, "s_qo": 6, "window": 3})
    logits, meant = logits_of(p, 0), planted_logit(p, 3000, p.head_dim_qk**-0.5)

    assert max(context_plants(p, 6, 3000)[0].tolist()) < 2994
    for own in range(3):  # the query that has just left draft key `own`, in some head of each group
        left = logits[own + 3, :, 2994 + own].view(p.stored_kv_heads, p.group_size)
        assert (left > 0.9 * meant).any(-1).all()


def test_a_window_is_planted_on_both_sides_of_its_edge():
    p = Problem.model_validate({**WIDE, "s_kv": 4000, "window": 500})
    plants = set(zip(*context_plants(p, 4, 4000).tolist(), strict=True))
    by_query = {(position, query) for position, _, _, query in plants}

    assert (3496, 0) in by_query  # query 0 stands at 3996 and sees 3497 first
    assert (3497, 0) in by_query  # query 1 has just left it, query 0 sees it last
    assert min(position for position, *_ in plants) == 3496


@pytest.mark.parametrize("keys", [{"s_kv": 4, "s_qo": 4}, {"s_kv": 5, "s_qo": 4}, {"s_kv": 17, "s_qo": 1, "page_size": 1}])
def test_contexts_that_are_tiny_or_none_are_planted_as_far_as_they_go(problem: Callable[..., Problem], keys: dict[str, int]):
    p = problem(**keys)
    context = keys["s_kv"] - keys["s_qo"]

    assert set(context_positions(p, keys["s_qo"], keys["s_kv"])) <= set(range(context))
    assert bool(draw(p, "cpu").kv[0].isfinite().all())


def test_values_and_queries_and_most_keys_stay_as_drawn(monkeypatch: pytest.MonkeyPatch):
    p = Problem.model_validate({**WIDE, "s_kv": 5000})
    planted = draw(p, "cpu")
    monkeypatch.setattr("kernels.inputs.generate.plant", lambda inputs: None)
    plain = draw(p, "cpu")

    same = slice(p.key_dim - 2 * constant_elements(p))  # behind them lies what shifts logits, between others
    large = (planted.q != plain.q)[..., same].any(-1).nonzero().tolist()
    assert len(large) == p.batch_size and torch.equal(planted.kv[1], plain.kv[1])
    assert large == [[p.s_qo * (b + 1) - 1, kv * p.group_size + head] for b in range(2) for kv, head in [large_row(p, b) or (0, 0)]]
    keys = planted.kv[0][..., same], plain.kv[0][..., same]
    assert 0.01 < float((keys[0] != keys[1]).any(-1).float().mean()) < 0.06
    assert float((keys[0].float().std() / keys[1].float().std() - 1).abs()) < 0.05


@pytest.mark.parametrize("keys", [{}, {"routine": "ragged_prefill"}, {"kv_dtype": "fp8_e4m3"}, {"kv_dtype": "nvfp4"}])
def test_the_key_behind_a_request_of_whole_pages_is_heavy_for_a_row_of_each_kv_head(keys: dict[str, str]):
    """A kernel that reads one key too many finds the next request's first one there, and no unused slot."""
    shape = {"batch_size": 3, "s_qo": 2, "s_kv": 1024, "num_qo_heads": 8, "num_kv_heads": 2, "page_size": 64, "q_dtype": "bf16"}
    p = Problem.model_validate({**shape, "head_dim_qk": 64, "head_dim_vo": 64, **keys})
    x = draw(p, "cpu")
    right, tolerance = answer(x), allowed(p, Arithmetic("bf16" if p.kv_dtype == "bf16" else "fp8_e4m3"))
    for request in range(p.batch_size - 1):
        k, v = (t[0].float().repeat_interleave(p.group_size, 0) for t in x.tokens(request + 1, 0, 1))
        last = x.queries(request).stop - 1
        weight = ((x.q[last].float() * k).sum(-1) * x.sm_scale * x.k_scale - right.lse[last]).exp()[:, None]
        wrong = (right.out[last] + weight * v * x.v_scale) / (1 + weight)
        off = (wrong - right.out[last]).norm(dim=-1) / right.out[last].norm(dim=-1)

        of_heads = off.view(p.stored_kv_heads, p.group_size).amax(1)
        assert of_heads.min() > 5 * tolerance if p.kv_dtype == "bf16" else of_heads.max() > 1.3 * tolerance

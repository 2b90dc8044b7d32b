"""The inputs: where tokens lie, what unused slots hold, that a seed fixes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels.inputs.generate import UNUSED_SLOT, draw
from kernels.inputs.nvfp4 import dequantize, quantize
from kernels.inputs.tensors import K_SCALE, V_SCALE
from kernels.problem import Problem

LAYOUTS = [("HND", "random"), ("NHD", "random"), ("HND", "sequential"), ("NHD", "sequential")]


@pytest.mark.parametrize(("layout", "order"), LAYOUTS)
@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8_e4m3"])
def test_tokens_come_back_through_the_page_table(problem: Callable[..., Problem], layout: str, order: str, kv_dtype: str):
    p = problem(kv_layout=layout, page_order=order, seq_lens="random", batch_size=3, kv_dtype=kv_dtype)
    x = draw(p, "cpu")
    for request, length in enumerate(p.kv_lens):
        k, v = x.tokens(request, 5, length)
        for token in (5, length // 2 + 5 if length // 2 + 5 < length else 5, length - 1):
            page, slot = int(x.page_table[request, token // p.page_size]), token % p.page_size
            at = (page, slice(None), slot) if layout == "HND" else (page, slot)
            assert torch.equal(k[token - 5].float(), x.kv[0].float()[at])
            assert torch.equal(v[token - 5].float(), x.kv[1].float()[at])


@pytest.mark.parametrize(("layout", "order"), LAYOUTS)
@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8_e4m3", "nvfp4"])
def test_tokens_of_several_requests_are_those_of_each(problem: Callable[..., Problem], layout: str, order: str, kv_dtype: str):
    x = draw(problem(kv_layout=layout, page_order=order, batch_size=3, kv_dtype=kv_dtype), "cpu")
    length, heads = x.problem.s_kv, x.problem.stored_kv_heads
    together, by_head = x.tokens_of((2, 0), 5, length - 1), x.tokens_by_head((2, 0), 5, length - 1, torch.float32)
    for place, request in enumerate((2, 0)):
        for which, alone in enumerate(x.tokens(request, 5, length - 1)):
            assert torch.equal(together[which][place].float(), alone.float())
            assert torch.equal(by_head[which][place * heads : (place + 1) * heads], alone.float().transpose(0, 1))


def test_the_csr_form_and_the_page_table_name_the_same_pages(problem: Callable[..., Problem]):
    p = problem(seq_lens="random", batch_size=5)
    x = draw(p, "cpu")
    for request in range(p.batch_size):
        start, stop = x.kv_indptr[request : request + 2].tolist()
        assert x.kv_indices[start:stop].tolist() == x.page_table[request, : stop - start].tolist()
        assert (stop - start - 1) * p.page_size + int(x.last_page_len[request]) == p.kv_lens[request]
    assert sorted(x.kv_indices.tolist()) == list(range(p.num_pages))


def test_random_pages_are_shuffled_and_sequential_ones_are_not(problem: Callable[..., Problem]):
    in_order = list(range(problem().num_pages))

    assert draw(problem(page_order="sequential"), "cpu").kv_indices.tolist() == in_order
    assert draw(problem(), "cpu").kv_indices.tolist() != in_order


def test_unused_slots_hold_what_no_kernel_may_read(problem: Callable[..., Problem]):
    p = problem(page_order="sequential", batch_size=1, s_kv=100)
    for cache in draw(p, "cpu").kv:
        assert (cache[-1, :, 100 % 16 :].float() == UNUSED_SLOT).all()
        assert cache[-1, :, : 100 % 16].float().abs().max() < UNUSED_SLOT / 3


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others(problem: Callable[..., Problem]):
    once, again, other = draw(problem(), "cpu"), draw(problem(), "cpu"), draw(problem(seed=1), "cpu")

    assert torch.equal(once.q, again.q)
    assert torch.equal(once.kv[0], again.kv[0])
    assert not torch.equal(once.q, other.q)


def test_keys_and_values_have_equal_strides_and_fp8_keys_a_scale(problem: Callable[..., Problem]):
    x = draw(problem(kv_dtype="fp8_e4m3", q_dtype="fp8_e4m3"), "cpu")

    assert x.kv[0].stride() == x.kv[1].stride()
    assert x.q.dtype == torch.float8_e4m3fn
    assert (x.k_scale, x.v_scale) == (K_SCALE, V_SCALE)


def test_an_output_starts_as_nan(problem: Callable[..., Problem]):
    assert draw(problem(), "cpu").empty_output().isnan().all()


def test_ragged_tokens_lie_one_after_another_and_a_latent_holds_its_values(problem: Callable[..., Problem]):
    ragged = draw(problem(routine="ragged_prefill", seq_lens="random", batch_size=3), "cpu")
    k, _ = ragged.tokens(1, 0, ragged.problem.kv_lens[1])
    start = int(ragged.kv_indptr[1])
    assert torch.equal(k, ragged.kv[0][start : start + len(k), 0])
    assert ragged.kv[0].shape == (ragged.problem.num_kv_tokens, 1, 2, 16)

    latent = draw(problem(routine="mla", head_dim_ckv=32, head_dim_kpe=16, kv_dtype="fp8_e4m3"), "cpu")
    k, v = (t.float() for t in latent.tokens(0, 0, 100))
    assert latent.latent.shape == (latent.problem.num_pages, 16, 48)
    assert torch.equal(k[..., :32], v)
    assert latent.k_scale == latent.v_scale == K_SCALE


def test_the_queries_of_ragged_drafts_lie_where_the_index_says(problem: Callable[..., Problem]):
    x = draw(problem(s_qo=5, min_s_qo=1, batch_size=6), "cpu")

    assert x.q.shape[0] == x.problem.num_q_tokens == int(x.qo_indptr[-1])
    assert [(x.queries(i).start, x.queries(i).stop) for i in range(6)] == list(
        zip(x.qo_indptr[:-1].tolist(), x.qo_indptr[1:].tolist(), strict=True)
    )


@pytest.mark.parametrize("lens", ["random", "fixed"])
@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_nvfp4_pages_come_back_as_they_were_drawn(problem: Callable[..., Problem], layout: str, lens: str):
    """Fixed lengths of 96 tokens leave no slot of a page unused."""
    x = draw(problem(kv_dtype="nvfp4", q_dtype="fp8_e4m3", kv_layout=layout, seq_lens=lens, s_kv=96), "cpu")
    assert x.kv_scales is not None
    k, v = x.tokens(1, 3, x.problem.kv_lens[1])

    assert x.kv[0].dtype == torch.uint8 and x.kv[0].shape[-1] == 8 and x.kv_scales[0].shape[-1] == 1
    assert k.shape == v.shape == (x.problem.kv_lens[1] - 3, 2, 16)
    assert 0.8 < float(v.std()) < 1.2


def test_nvfp4_rounds_to_the_nearest_code():
    values = torch.tensor([[0.0, 0.2, 0.3, 0.7, 0.8, 1.2, 1.3, 1.7, 1.8, 2.4, 2.6, 3.4, 3.6, 4.9, 5.1, -6.0]])
    packed, scales = quantize(values)

    assert float(scales[0, 0]) == 1.0
    expected = [[0, 0, 0.5, 0.5, 1, 1, 1.5, 1.5, 2, 2, 3, 3, 4, 4, 6, -6]]
    assert dequantize(packed, scales).tolist() == expected

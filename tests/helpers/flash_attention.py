"""Stand-ins for engines' builds of FlashAttention, with the libraries' signatures, that compute from their arguments alone."""

from __future__ import annotations

import torch

from tests.helpers.plain_attention import attend, log_sum_exp, sees, tokens_of

MAX_SINK_HEADS = 64


def plan_of(heads, kv_heads, dims, pages_of, causal, window, splits, dtype) -> torch.Tensor:
    """What a plan must have in common with the calls that get it."""
    dtypes = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
    return torch.tensor([heads, kv_heads, *dims, pages_of, causal, *window, splits, dtypes.index(dtype)])


def attention(q, k, v, qv, starts, key_starts, lens, pages, scale, causal, window, sinks, descales, out):
    """Writes `out` and returns the log-sum-exp [H, T], natural. With `qv` the logits are q k + qv v."""
    assert (pages is None) == (lens is None) != (key_starts is None)
    for tensor in (q, k, v, out):
        assert tensor.stride(-1) == 1
    if sinks is not None:
        assert sinks.dtype == torch.bfloat16 and sinks.shape == (q.shape[1],)
    for scales in descales:
        assert scales is None or scales.shape == (len(starts) - 1, k.shape[-2])
    lse = torch.full((q.shape[1], len(q)), -torch.inf)
    for request in range(len(starts) - 1):
        rows = slice(int(starts[request]), int(starts[request + 1]))
        if pages is None:
            keys, values = (t[int(key_starts[request]) : int(key_starts[request + 1])].float() for t in (k, v))
        else:
            keys, values = (tokens_of(cache, pages[request], int(lens[request])) for cache in (k, v))
        _, k_scale, v_scale = (1.0 if one is None else one[request, :, None] for one in descales)
        keys, values = keys * k_scale, values * v_scale
        queries = q[rows] if qv is None else torch.cat((q[rows], qv[rows]), -1)
        keys = keys if qv is None else torch.cat((keys, values), -1)
        seen = sees(rows.stop - rows.start, len(keys), causal or window[1] == 0, window[0])
        out[rows] = attend(queries, keys, values, scale, seen, sinks).to(out.dtype)
        lse[:, rows] = log_sum_exp(queries, keys, scale, seen, sinks).T
    return lse


def vllm_scheduler_metadata(
    batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, cache_seqlens, qkv_dtype=torch.bfloat16,
    headdim_v=None, cu_seqlens_q=None, cu_seqlens_k_new=None, cache_leftpad=None, page_size=None, max_seqlen_k_new=0, causal=False,
    window_size=(-1, -1), has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0,
) -> torch.Tensor:  # fmt: skip
    """vLLM 0.25.1 to 0.33.0."""
    assert batch_size == len(cache_seqlens) == len(cu_seqlens_q) - 1 and max_seqlen_k >= int(cache_seqlens.max())
    dims = (headdim, headdim if headdim_v is None else headdim_v)
    of_call = plan_of(num_heads_q, num_heads_kv, dims, page_size, causal, window_size, num_splits, qkv_dtype)
    return torch.cat((of_call, torch.tensor([max_seqlen_q, max_seqlen_k])))


def vllm_varlen_func(
    q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, q_v=None, dropout_p=0.0,
    softmax_scale=None, causal=False, window_size=None, softcap=0.0, alibi_slopes=None, deterministic=False,
    return_attn_probs=False, block_table=None, return_softmax_lse=False, out=None, scheduler_metadata=None, q_descale=None,
    k_descale=None, v_descale=None, num_splits=0, output_scale=None, fa_version=2, s_aux=None, cp_world_size=1, cp_rank=0,
    cp_tot_seqused_k=None, mask_mod=None, block_sparse_tensors=None, aux_tensors=None, aux_tensor_leading_dims=None,
    dynamic_causal=None,
):  # fmt: skip
    """vLLM 0.32.0. A plan must be of the same call. Version 2 knows no plans, sinks or scales, and no splits that are asked for."""
    window = (-1, -1) if window_size is None else tuple(window_size)
    descales = (q_descale, k_descale, v_descale)
    if fa_version == 2:
        assert (scheduler_metadata, s_aux, q_v, *descales) == (None,) * 6 and num_splits <= 1
        assert q.dtype == k.dtype == v.dtype == out.dtype != torch.float8_e4m3fn
        assert block_table is None or k.shape[1] % 16 == 0
    else:
        assert fa_version == 3 and (s_aux is None or q.shape[1] <= MAX_SINK_HEADS)
    if scheduler_metadata is not None:
        dims = (q.shape[-1], v.shape[-1])
        same = plan_of(q.shape[1], k.shape[2], dims, k.shape[1], causal, window, num_splits, q.dtype)
        assert scheduler_metadata.tolist() == [*same.tolist(), max_seqlen_q, max_seqlen_k]
    lse = attention(
        q, k, v, q_v, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table, softmax_scale, causal, window, s_aux, descales, out
    )  # fmt: skip
    return (out, lse) if return_softmax_lse else out


PARTS = 5  # of the keys, that SGLang's library makes if it chooses


def sglang_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
    cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None,
    q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=None,
    softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, num_splits=0, pack_gqa=None, only_qv=False, sm_margin=0,
    return_softmax_lse=False, sinks=None, score_mod=None, aux_tensors=None, ver=3, out=None,
):  # fmt: skip
    """sglang-kernel 0.4.10."""
    if scheduler_metadata is not None:
        dims = (q.shape[-1], v_cache.shape[-1])
        same = plan_of(q.shape[1], k_cache.shape[2], dims, k_cache.shape[1], causal, window_size, num_splits, q.dtype)
        assert scheduler_metadata[:-2].tolist() == same.tolist() and int(scheduler_metadata[-2]) == max_seqlen_q
    lse = attention(
        q, k_cache, v_cache, qv, cu_seqlens_q, None, cache_seqlens, page_table, softmax_scale, causal, window_size, sinks,
        (q_descale, k_descale, v_descale), out,
    )  # fmt: skip
    parts = torch.zeros(PARTS if num_splits == 0 else 0, 1)
    return (out, lse, parts, parts) if return_softmax_lse else out


def sglang_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, max_seqlen_k=None, seqused_q=None, seqused_k=None, page_table=None,
    softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1),
    attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, only_qv=False, sm_margin=0, return_softmax_lse=False, sinks=None,
    score_mod=None, aux_tensors=None, ver=3, out=None,
):  # fmt: skip
    """sglang-kernel 0.4.10. It does not read `page_table`."""
    assert max_seqlen_q is not None and max_seqlen_k is not None
    lse = attention(
        q, k, v, qv, cu_seqlens_q, cu_seqlens_k, seqused_k, None, softmax_scale, causal, window_size, sinks,
        (q_descale, k_descale, v_descale), out,
    )  # fmt: skip
    parts = torch.zeros(PARTS if num_splits == 0 else 0, 1)
    return (out, lse, parts, parts) if return_softmax_lse else out


def sglang_scheduler_metadata(
    batch_size, max_seqlen_q, max_seqlen_k, num_heads, num_heads_k, headdim, cache_seqlens, qkv_dtype=torch.bfloat16,
    headdim_v=None, cu_seqlens_q=None, cu_seqlens_k=None, cu_seqlens_k_new=None, seqused_q=None, leftpad_k=None, page_size=None,
    max_seqlen_k_new=0, causal=False, window_size=(-1, -1), attention_chunk=0, has_softcap=False, num_splits=0, pack_gqa=None,
    sm_margin=0,
) -> torch.Tensor:  # fmt: skip
    """sglang-kernel 0.4.10."""
    return vllm_scheduler_metadata(
        batch_size, max_seqlen_q, max_seqlen_k, num_heads, num_heads_k, headdim, cache_seqlens, qkv_dtype, headdim_v, cu_seqlens_q,
        page_size=page_size, causal=causal, window_size=window_size, num_splits=num_splits,
    )  # fmt: skip


VLLM = {"flash_attn_varlen_func": vllm_varlen_func, "get_scheduler_metadata": vllm_scheduler_metadata}
SGLANG = {
    "flash_attn_with_kvcache": sglang_with_kvcache,
    "flash_attn_varlen_func": sglang_varlen_func,
    "get_scheduler_metadata": sglang_scheduler_metadata,
}

"""Stand-ins for engines' kernels, with the libraries' signatures, that compute from their arguments alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from types import ModuleType
from typing import Any

import torch

from kernels.device import Device
from tests.helpers import flash_attention
from tests.helpers.plain_attention import attend, log_sum_exp, sees, tokens_of


class KVQuantMode(IntEnum):
    NONE = 0
    FP8_PER_TENSOR = 1


def unified_attention(
    q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size, block_table, softcap,
    q_descale, k_descale, v_descale, seq_threshold_3D=None, num_par_softmax_segments=None, softmax_segm_output=None,
    softmax_segm_max=None, softmax_segm_expsum=None, alibi_slopes=None, output_scale=None, qq_bias=None, sinks=None,
    mm_prefix_range=None, rswa_prefix_lens=None, rswa_window=None, use_alibi_sqrt=False, kv_quant_mode=0, k_scale_cache=None,
    v_scale_cache=None, chunk_lookback=-1, use_td=False, mm_prefix_clamp_sliding_window=False,
) -> None:  # fmt: skip
    """vLLM 0.25.1 to 0.33.0. Without a quantised cache it reads no scales; with FP8 queries it rounds probabilities without one."""
    in_8_bits = q.dtype == torch.float8_e4m3fn
    assert in_8_bits == (q_descale is not None) and k.dtype == v.dtype == (q.dtype if in_8_bits else k.dtype)
    assert softmax_segm_output.shape[:3] == softmax_segm_max.shape == softmax_segm_expsum.shape
    for request in range(len(seqused_k)):
        rows, length = slice(int(cu_seqlens_q[request]), int(cu_seqlens_q[request + 1])), int(seqused_k[request])
        keys, values = (tokens_of(cache, block_table[request], length) for cache in (k, v))
        if kv_quant_mode == KVQuantMode.FP8_PER_TENSOR:
            keys, values = keys * k_descale[request, :, None], values * v_descale[request, :, None]
        drafts = rows.stop - rows.start
        seen = sees(drafts, length, causal, window_size[0])
        if qq_bias is not None:
            seen[:, length - drafts :] &= qq_bias[:drafts, :drafts] == 0
        scale = softmax_scale * (float(q_descale) if in_8_bits else 1.0)
        out[rows] = attend(q[rows], keys, values, scale, seen, sinks, q.dtype if in_8_bits else None).to(out.dtype)


def takes_segments(release: str, device: Device, call: Mapping[str, Any]) -> bool:
    """`use_3d` in `unified_attention` of vLLM 0.25.1, 0.32.0 and 0.33.0, for these arguments."""
    (tokens, heads, dim), requests, longest = call["q"].shape, len(call["seqused_k"]), call["max_seqlen_q"]
    group = heads // call["k"].shape[2]
    if release != "0.33.0":
        return not (longest > 1 or requests > call["seq_threshold_3D"])
    block_m = 16 if group <= 16 else 1 << (group - 1).bit_length()
    tuned_large_head = dim == 256 and longest > 1 and group <= 16 and device.is_sm(10)
    block_q = (32 if tuned_large_head else block_m) // group
    use_3d = not (
        (longest > 1 and (longest > 8 or not call["causal"] or tuned_large_head))
        or requests * -(-longest // block_q) > call["seq_threshold_3D"]
    )
    return use_3d and call["softmax_segm_max"].shape[0] >= tokens


class NumberOfSplits:
    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(num_kv_splits_ptr, seq_lens_ptr, num_seq, num_group, num_head, num_kv_head, max_kv_splits, device_core_count,
                   MAX_NUM_SEQ, uneven_batch_ptr=None) -> None:  # fmt: skip
            assert num_seq == len(seq_lens_ptr) <= MAX_NUM_SEQ
            num_kv_splits_ptr.fill_(min(3, max_kv_splits))

        return launch


def decode_attention_fwd(
    q, k_buffer, v_buffer, o, kv_indptr, kv_indices, attn_logits, attn_lse, num_kv_splits, max_kv_splits, sm_scale, k_scale,
    v_scale, logit_cap=0.0, sinks=None, xai_temperature_len=-1, has_mla=False, use_pdl=False, page_size=1, score_mod=None,
    aux_tensors=None, enable_lean=None, lean_Mp=None, lean_Lp=None, lean_Op=None, lean_locks=None, uneven_batch=None,
) -> None:  # fmt: skip
    """SGLang 0.5.23. For grouped heads queries and probabilities are rounded to the dtype of the cache."""
    assert max_kv_splits == attn_logits.shape[2] == attn_lse.shape[2] and k_buffer.ndim == 3 and page_size == 1
    rounded = k_buffer.dtype if q.shape[1] > k_buffer.shape[1] else None
    for request in range(len(q)):
        rows = kv_indices[int(kv_indptr[request]) : int(kv_indptr[request + 1])]
        keys = k_buffer.float()[rows]
        values = keys[..., : v_buffer.shape[2]] if has_mla and rounded else v_buffer.float()[rows]
        seen = sees(1, len(rows), causal=True)
        attended = attend(q[request : request + 1], keys * k_scale, values * v_scale, sm_scale, seen, sinks, rounded)
        o[request] = attended[0].to(o.dtype)


def extend_attention_fwd(
    q_extend, k_extend, v_extend, o_extend, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, custom_mask, is_causal,
    mask_indptr, max_len_extend, k_scale, v_scale, sm_scale=None, logit_cap=0.0, skip_prefix_custom_mask=True,
    sliding_window_size=-1, sinks=None, window_kv_offsets=None, xai_temperature_len=-1, lse_extend=None, skip_prefix=False,
    skip_extend=False, page_size=1, score_mod=None, aux_tensors=None, extend_seq_lens_cpu=None, identity_kv_indices=False,
) -> None:  # fmt: skip
    """SGLang 0.5.23. For the context, queries and probabilities are rounded to the cache's dtype. A window of 0 is none."""
    assert k_buffer.ndim == 3 and page_size == 1 and k_extend.dtype == v_extend.dtype == q_extend.dtype
    assert skip_prefix_custom_mask and k_extend.is_contiguous() and v_extend.is_contiguous()
    for request in range(len(qo_indptr) - 1):
        new = slice(int(qo_indptr[request]), int(qo_indptr[request + 1]))
        rows, drafts = kv_indices[int(kv_indptr[request]) : int(kv_indptr[request + 1])], new.stop - new.start
        assert drafts <= max_len_extend
        keys = torch.cat((k_buffer.float()[rows] * k_scale, k_extend[new].float()))
        values = torch.cat((v_buffer.float()[rows] * v_scale, v_extend[new].float()))
        left = sliding_window_size if sliding_window_size > 0 else -1
        seen = sees(drafts, len(keys), is_causal and custom_mask is None, left)
        if custom_mask is not None:
            width = len(keys) + (int(window_kv_offsets[request]) if left > 0 else 0)
            own = custom_mask[int(mask_indptr[request]) :][: drafts * width].view(drafts, width)
            seen[:, len(rows) :] &= own[:, width - drafts :]
        attended = attend(q_extend[new], keys, values, sm_scale, seen, sinks, k_buffer.dtype, drafts)
        o_extend[new] = attended.to(o_extend.dtype)
        if lse_extend is not None:
            lse_extend[new] = log_sum_exp(q_extend[new], keys, sm_scale, seen)


def flash_attn_fwd(
    q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None,
    min_seqlen_k=None, page_table=None, softmax_scale=None, causal=False, softcap=None, window_size_left=None,
    window_size_right=None, learnable_sink=None, tile_mn=None, mma_pv_is_rs=None, intra_wg_overlap=None, num_threads=384,
    num_splits=1, pack_gqa=None, _arch=None, score_mod=None, mask_mod=None, block_sparse_tensors=None, return_lse=False, out=None,
    lse=None, aux_tensors=None, aux_scalars=None, q_descale=None, k_descale=None, v_descale=None, gather_kv_indices=None,
    scheduler_metadata=None, seqlen_k_per_split=None, disable_scheduler_metadata=False, gather_bwd_recompute_p=False,
) -> tuple[torch.Tensor, None, None, None, None]:  # fmt: skip
    """flash-attn-4 4.0.0b36."""
    assert (page_table is None) != (cu_seqlens_k is None)
    for request in range(len(cu_seqlens_q) - 1):
        rows = slice(int(cu_seqlens_q[request]), int(cu_seqlens_q[request + 1]))
        if page_table is None:
            keys, values = (t[int(cu_seqlens_k[request]) : int(cu_seqlens_k[request + 1])].float() for t in (k, v))
        else:
            keys, values = (tokens_of(cache, page_table[request], int(seqused_k[request])) for cache in (k, v))
        if k_descale is not None:
            keys, values = keys * k_descale[request, :, None], values * v_descale[request, :, None]
        left = -1 if window_size_left is None else window_size_left
        seen = sees(rows.stop - rows.start, len(keys), causal or window_size_right == 0, left)
        out[rows] = attend(q[rows], keys, values, softmax_scale, seen, learnable_sink).to(out.dtype)
    return out, None, None, None, None


def decode_of_rows(
    q, k_buffer, v_buffer, o, lse, req_to_token, b_seq_len, attn_logits, num_kv_splits, sm_scale, page_size=1, logit_cap=0.0,
    k_scale=None, v_scale=None, is_mla=False,
) -> None:  # fmt: skip
    """vLLM 0.33.0, `decode_attention_fwd`: a row of queries sees so many keys of its row of pages."""
    assert attn_logits.shape == (*q.shape[:2], num_kv_splits, v_buffer.shape[-1] + 1) and page_size == k_buffer.shape[1]
    for row, length in enumerate(b_seq_len.tolist()):
        keys = tokens_of(k_buffer, req_to_token[row], length) * k_scale
        values = keys[..., : v_buffer.shape[-1]] if is_mla else tokens_of(v_buffer, req_to_token[row], length) * v_scale
        seen = sees(1, length, causal=True)
        o[row] = attend(q[row][None], keys, values, sm_scale, seen)[0].to(o.dtype)
        lse[row] = log_sum_exp(q[row][None], keys, sm_scale, seen)[0]


def latent_attention(q, latent, pages, lens, scale, causal, width, rounded=None):
    """[B, Q, H, width] of queries [B, Q, H, D] over a latent [P, N, D]."""
    found = []
    for request, length in enumerate(lens.tolist()):
        keys = tokens_of(latent[:, :, None], pages[request], length)
        seen = sees(q.shape[1], length, causal)
        found.append(attend(q[request], keys, keys[..., :width], scale, seen, rounded=rounded))
    return torch.stack(found)


def flash_mla_with_kvcache(
    q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None, softmax_scale=None, causal=False,
    is_fp8_kvcache=False, indices=None, attn_sink=None, extra_k_cache=None, extra_indices_in_kvcache=None, topk_length=None,
    extra_topk_length=None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """tokenspeed-flashmla 1.0.0.post20260924. The plan of the first call serves the later ones."""
    assert k_cache.shape[1:3] == (64, 1) and isinstance(tile_scheduler_metadata, list)
    tile_scheduler_metadata.append("used")
    out = latent_attention(q, k_cache[:, :, 0], block_table, cache_seqlens, softmax_scale, causal, head_dim_v)
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1])
    for request, length in enumerate(cache_seqlens.tolist()):
        keys = tokens_of(k_cache, block_table[request], length)
        lse[request] = log_sum_exp(q[request], keys, softmax_scale, sees(q.shape[1], length, causal)).T
    return out.to(q.dtype), lse


def tokenspeed_mla_decode(
    query, kv_cache, workspace_buffer, kv_lora_rank, qk_rope_head_dim, block_tables, seq_lens, max_seq_len, softmax_scale,
    output_scale=1.0, out=None, is_var_seq=True, causal_mask=True, window_left=-1, enable_pdl=False, return_lse=False,
    causal_seqs=None, cp_world=1, cp_rank=0, cp_interleave_size=1, *, min_split_kv=1, local_visible_lens=None,
) -> torch.Tensor:  # fmt: skip
    """tokenspeed-mla 2.0.4."""
    assert workspace_buffer.dtype == torch.int8 and query.shape[-1] == kv_lora_rank + qk_rope_head_dim
    assert max_seq_len == int(seq_lens.max())
    found = latent_attention(query, kv_cache, block_tables, seq_lens, softmax_scale, causal_mask, kv_lora_rank)
    return out.copy_((found * output_scale).to(out.dtype))


# What the adapters import, by module.
STAND_INS: dict[str, Mapping[str, object]] = {
    "vllm.v1.attention.ops.triton_unified_attention": {"unified_attention": unified_attention},
    "vllm.v1.attention.ops.triton_decode_attention": {"decode_attention_fwd": decode_of_rows},
    "vllm.vllm_flash_attn": flash_attention.VLLM,
    "sgl_kernel.flash_attn": flash_attention.SGLANG,
    "vllm.v1.kv_cache_interface": {"KVQuantMode": KVQuantMode},
    "sglang.kernels.ops.attention.decode_attention": {"decode_attention_fwd": decode_attention_fwd},
    "sglang.kernels.ops.attention.extend_attention": {"extend_attention_fwd": extend_attention_fwd},
    "sglang.kernels.ops.attention.metadata": {"get_num_kv_splits_triton": NumberOfSplits()},
    "sglang.kernels.jit.utils.arch": {"is_arch_support_pdl": lambda: True},
    "flash_attn.cute.interface": {"_flash_attn_fwd": flash_attn_fwd},
    "flash_mla": {"flash_mla_with_kvcache": flash_mla_with_kvcache, "get_mla_metadata": lambda: ([], None)},
    "vllm.third_party.flashmla.flash_mla_interface": {
        "flash_mla_with_kvcache": flash_mla_with_kvcache,
        "get_mla_metadata": lambda: ([], None),
    },
    "vllm._flashmla_extension_C": {},  # registers the operators of `flash_mla_fp8.py`
    "tokenspeed_mla": {"tokenspeed_mla_decode": tokenspeed_mla_decode, "get_num_sm": lambda device: 2},
}


def modules(contents: Mapping[str, Mapping[str, object]]) -> dict[str, ModuleType]:
    """Modules of these names with these contents, and the packages that they lie in."""
    found: dict[str, ModuleType] = {}
    for name, attributes in contents.items():
        parts = name.split(".")
        for package in (".".join(parts[:i]) for i in range(1, len(parts) + 1)):
            found.setdefault(package, ModuleType(package))
        vars(found[name]).update(attributes)
    return found

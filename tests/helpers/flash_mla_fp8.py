"""Stand-ins for the operators of vLLM's FlashMLA over an FP8 latent, registered in PyTorch under the schemas of vLLM 0.33.0.

Those of 0.25.1 have the same arguments without names, so they are called by position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.helpers.engine_kernels import latent_attention

SCHEMAS = {
    "fwd_kvcache_mla_fp8": "(Tensor q, Tensor kcache, int head_size_v, Tensor seqlens_k, Tensor block_table, float softmax_scale, "
    "bool is_causal, Tensor tile_scheduler_metadata, Tensor num_splits, Tensor? descale_q, Tensor? descale_k) -> Tensor[]",
    "get_mla_decoding_metadata_dense_fp8": "(Tensor seqlens_k, int num_heads_per_head_k, int num_heads_k) -> Tensor[]",
}
FP8 = torch.float8_e4m3fn


def _plan(seqlens_k: Tensor, rows: int, num_heads_k: int) -> list[Tensor]:
    """One part that names what it was made for, and as many splits as requests."""
    part = torch.tensor([[rows, num_heads_k, len(seqlens_k), *[0] * 5]], dtype=torch.int32)
    return [part, torch.arange(len(seqlens_k) + 1, dtype=torch.int32)]


def _forward(
    q: Tensor, kcache: Tensor, head_size_v: int, seqlens_k: Tensor, block_table: Tensor, softmax_scale: float, is_causal: bool,
    plan: Tensor, num_splits: Tensor, descale_q: Tensor | None, descale_k: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    """As the kernel: a page of 64, probabilities rounded to FP8, the latent's scale in logits and output, an output in bf16."""
    assert (
        q.dtype == kcache.dtype == FP8 and kcache.shape[1:] == (64, 1, 576) and seqlens_k.dtype == block_table.dtype == torch.int32
    )
    assert plan.tolist() == _plan(seqlens_k, q.shape[1] * q.shape[2], kcache.shape[2])[0].tolist()
    assert num_splits.shape == (len(q) + 1,)
    assert descale_q is not None and descale_k is not None and descale_q.shape == descale_k.shape == (1,)
    scale = softmax_scale * float(descale_q) * float(descale_k)
    found = latent_attention(q, kcache[:, :, 0], block_table, seqlens_k, scale, is_causal, head_size_v, rounded=FP8)
    return [(found * descale_k).bfloat16(), torch.zeros(1)]


_library = torch.library.Library("_flashmla_extension_C", "DEF")
for _name, _function in (("fwd_kvcache_mla_fp8", _forward), ("get_mla_decoding_metadata_dense_fp8", _plan)):
    _library.define(_name + SCHEMAS[_name])
    _library.impl(_name, _function, "CPU")

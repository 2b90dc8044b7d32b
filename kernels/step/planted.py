"""The queries and the KV append of a layer: they wait for the layer's products, and write the values that the check knows.

An engine's attention reads queries and new keys that were computed just before. The check needs known ones: keys are planted, and
a reference takes long. So what is written is `known + 0 * computed`, in integers over the bits of both: exactly the known bits,
whatever the product is, by a kernel that reads the product and cannot start before it is there. Dtypes and bytes are those of an
engine: an FP8 cache gets the product divided by its scale and rounded to 8 bits first.
"""

# T = query tokens of all requests, H = num_qo_heads, K = stored KV heads, D = head_dim

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.inputs.tensors import slots, token_major

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.inputs import Inputs

ALL_ONES = {1: 0xFF, 2: -1, 4: -1}  # bits of a NaN in every dtype


class PlantedTokens:
    """The known queries of a layer, [T, H, D], and the keys and values of its new tokens, [T, K, D] each."""

    def __init__(self, inputs: Inputs) -> None:
        p = inputs.problem
        self.inputs = inputs
        self.at = new_slots(inputs)
        caches = inputs.kv[:1] if p.latent else inputs.kv
        self._caches = [_bits(token_major(p, cache)) for cache in caches]
        self._tokens = [cache[self.at] for cache in self._caches]
        self._queries = _bits(inputs.q).clone()
        self._scales = (inputs.k_scale, inputs.v_scale)

    def write_queries(self, computed: Tensor) -> None:
        """Writes the known queries where attention reads them, after `computed` [T, H, D]."""
        import torch

        product = computed.to(self.inputs.q.dtype).contiguous()
        torch.add(self._queries, _bits(product), alpha=0, out=_bits(self.inputs.q))

    def append(self, *computed: Tensor) -> None:
        """Writes the known keys and values of the new tokens into their pages, after `computed`, [T, K, D] each."""
        import torch

        for cache, tokens, product, scale in zip(self._caches, self._tokens, computed, self._scales, strict=False):
            stored = (product if scale == 1 else product / scale).to(self._dtype).contiguous()
            cache[self.at] = torch.add(tokens, _bits(stored), alpha=0)

    def poison(self) -> None:
        """Fills the queries and the new tokens with NaN: a step must write them before its attention reads them."""
        _bits(self.inputs.q).fill_(ALL_ONES[self.inputs.q.element_size()])
        for cache in self._caches:
            cache[self.at] = ALL_ONES[cache.element_size()]

    @property
    def _dtype(self) -> torch.dtype:
        return self.inputs.kv[0].dtype


def new_slots(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Physical page and slot of every query token's own key, int64 [T] each."""
    import torch

    request, position = new_positions(inputs)
    page, slot = slots(inputs, request, position)
    return page, slot.to(torch.int64)


def new_positions(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The request of every query token, and its position in that request's KV cache, int64 [T] each."""
    import torch

    q_lens = inputs.q_lens.long()
    request = torch.repeat_interleave(torch.arange(inputs.problem.batch_size, device=inputs.device), q_lens)
    in_draft = torch.arange(inputs.problem.num_q_tokens, device=inputs.device) - inputs.qo_indptr.long()[request]
    return request, (inputs.kv_lens.long() - q_lens)[request] + in_draft


def _bits(tensor: Tensor) -> Tensor:
    import torch

    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])

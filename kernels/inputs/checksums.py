"""Checksums of the tensors that backends share: they show whether one changed what it may only read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.inputs.tensors import Inputs


def checksums(inputs: Inputs) -> Tensor:
    """One int64 for each tensor that backends share: the sum of its words. A word that changes changes it."""
    import torch

    inputs = inputs.padded or inputs  # all of its tensors, with the rows of padded requests
    shared = [inputs.q, inputs.kv[0], *inputs.kv[1 : 1 if inputs.problem.latent else 2], *(inputs.kv_scales or ())]
    shared += [inputs.page_table, inputs.q_lens, inputs.qo_indptr, inputs.kv_lens, inputs.kv_indptr, inputs.kv_indices]
    shared += [inputs.last_page_len, *([] if inputs.sinks is None else [inputs.sinks])]
    return torch.stack([_sum(tensor) for tensor in shared])


def _sum(tensor: Tensor) -> Tensor:
    import torch

    size = tensor.element_size()
    whole = tensor.shape[-1] * size % 8 == 0 and all(n * size % 8 == 0 for n in tensor.stride()[:-1])
    words = tensor.view(torch.int64 if whole else {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    return words.sum(dtype=torch.int64)

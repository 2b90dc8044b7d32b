"""Which draft token sees which: the visibility of the draft block, and its packed form for XQA. Vectorised, on the device.

A mask speaks of the last `s_qo` keys alone; every query sees all keys before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

WORD_BITS = 32  # XQA reads the mask in 32-bit words; uint16 is only the type in which its binding takes them


def visibility(mask: str, s_qo: int, device: torch.device | str) -> torch.Tensor:
    """Bool [s_qo, s_qo]: entry (i, j) is true when draft query i sees draft key j."""
    import torch

    full = torch.ones(s_qo, s_qo, dtype=torch.bool, device=device)
    return full.tril() if mask == "causal" else full


def pack(visible: torch.Tensor, batch_size: int) -> torch.Tensor:
    """XQA's packed mask, uint16 [batch_size, s_qo, 2 * ceil(s_qo / 32)], from a bool [s_qo, s_qo].

    Bit k of 32-bit word w of row i says whether query i sees draft key 32 * w + k; the words are little-endian pairs of
    uint16 (FlashInfer 0.7.2, `xqa_batch_decode_with_kv_cache`).
    """
    import torch

    s_qo = visible.shape[0]
    words = -(-s_qo // WORD_BITS)
    bits = torch.zeros(s_qo, words * WORD_BITS, dtype=torch.int64, device=visible.device)
    bits[:, :s_qo] = visible
    weights = 1 << torch.arange(WORD_BITS, dtype=torch.int64, device=visible.device)
    packed = (bits.view(s_qo, words, WORD_BITS) * weights).sum(-1)
    halves = torch.stack((packed & 0xFFFF, packed >> 16), dim=-1).view(s_qo, 2 * words).to(torch.uint16)
    return halves.expand(batch_size, s_qo, 2 * words).contiguous()


def require_packed(mask: torch.Tensor | None, batch_size: int, s_qo: int, device: torch.device) -> torch.Tensor | None:
    """The mask, if a launch with `s_qo` query tokens may use it; ValueError says what is wrong with it.

    A kernel given a mask of another shape, dtype or device reads past it or reads garbage, and answers all the same.
    """
    import torch

    if s_qo == 1:
        return mask
    shape = (batch_size, s_qo, 2 * -(-s_qo // WORD_BITS))
    if mask is None:
        raise ValueError(f"s_qo={s_qo} needs a packed draft mask: uint16 of shape {shape} on {device}, got none")
    if tuple(mask.shape) != shape or mask.dtype != torch.uint16 or mask.device != device:
        raise ValueError(
            f"packed draft mask is {mask.dtype} of shape {tuple(mask.shape)} on {mask.device}; "
            f"s_qo={s_qo} and batch_size={batch_size} need torch.uint16 of shape {shape} on {device}"
        )
    return mask

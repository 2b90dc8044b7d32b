"""The FP8 cache of DeepSeek-V3.2 (`fp8_ds_mla` of vLLM): 656 bytes a token, with a scale for each 128 elements of the latent.

512 fp8_e4m3, then 4 scales in fp32, then the 64 rotated elements in bf16 (`flash_mla_interface.py` of tokenspeed-flashmla, and
`flashmla_sparse.py` of vLLM 0.25.1). Here the stored latent is what such a cache decodes to, exactly, in bf16: each scale has two
binary digits behind its first one, and other ones in each of the four parts. FlashMLA rounds scales to bf16 before it multiplies.
"""

from __future__ import annotations

from kernels.inputs.copies import InputCopy
from kernels.inputs.generate import UNUSED_SLOT
from kernels.lazy import Tensor, torch
from kernels.routines.sparse_mla.problem import TOKEN_BYTES

PART, LARGEST = 128, 448.0  # elements with one scale; number of fp8_e4m3
DIGITS = (1.0, 1.25, 1.5, 1.75)  # of the scales of the four parts, times powers of two
AT_ONCE = 2**17  # tokens


def parts_and_scales(latent: Tensor) -> tuple[Tensor, Tensor]:
    """The first 512 elements of tokens [n, ..., 576] divided by their scales, fp32 [n, 4, 128], and the scales [n, 4].

    A scale is the least of its kind by which no element exceeds 448, so what was decoded once is packed without loss.
    """
    parts = latent.reshape(len(latent), -1)[:, : PART * len(DIGITS)].float().view(len(latent), len(DIGITS), PART)
    digits = torch.tensor(DIGITS, device=latent.device)
    powers = (parts.abs().amax(-1) / (LARGEST * digits)).clamp_min(2.0**-40).log2().ceil()
    scales = digits * powers.exp2()
    return parts / scales[..., None], scales


def decoded(latent: Tensor) -> Tensor:
    """What the packed cache of these tokens decodes to, in their shape and dtype."""
    parts, scales = parts_and_scales(latent)
    found = latent.clone().view(len(latent), -1)
    found[:, : PART * len(DIGITS)] = (parts.to(torch.float8_e4m3fn).float() * scales[..., None]).flatten(1).to(latent.dtype)
    return found.view(latent.shape)


def unpacked(packed: Tensor) -> Tensor:
    """Tokens uint8 [..., 656] as a kernel decodes them, fp32 [..., 576]."""
    elements = PART * len(DIGITS)
    parts = packed[..., :elements].contiguous().view(torch.float8_e4m3fn).float().view(*packed.shape[:-1], len(DIGITS), PART)
    scales = packed[..., elements : elements + 4 * len(DIGITS)].contiguous().view(torch.float32)
    rotated = packed[..., elements + 4 * len(DIGITS) :].contiguous().view(torch.bfloat16).float()
    return torch.cat(((parts * scales[..., None]).flatten(-2), rotated), -1)


class PackedLatent(InputCopy):
    """The cache as uint8 [P, N, 1, 656]."""

    declared = "kv_dtype=fp8_ds_mla"

    def __init__(self, latent: Tensor, pages: int, listed: Tensor) -> None:
        """`latent` bf16 [P * N, 1, 1, 576]; `listed` int32 [n] are the slots of chosen tokens; others hold a large number."""
        self._latent, self._listed = latent, listed
        self._unused, self._filled = self._packed(torch.full_like(latent[:1], UNUSED_SLOT)), listed.new_empty(0).long()
        self._rows = torch.empty(len(latent), TOKEN_BYTES, dtype=torch.uint8, device=latent.device).copy_(self._unused)
        self.cache = self._rows.view(pages, -1, 1, TOKEN_BYTES)
        self.refresh()

    def refresh(self) -> None:
        self._rows[self._filled] = self._unused
        self._filled = torch.unique(self._listed).long()
        for at in torch.split(self._filled, AT_ONCE):
            self._rows[at] = self._packed(self._latent[at])

    def _packed(self, latent: Tensor) -> Tensor:
        """uint8 [n, 656]"""
        parts, scales = parts_and_scales(latent)
        rotated = latent.view(len(latent), -1)[:, PART * len(DIGITS) :].contiguous()
        bytes_of = (parts.to(torch.float8_e4m3fn).flatten(1), scales, rotated)
        return torch.cat([part.view(torch.uint8) for part in bytes_of], 1)

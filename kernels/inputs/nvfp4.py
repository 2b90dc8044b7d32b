"""NVFP4 as caches hold it: two e2m1 elements a byte, low nibble first, and an fp8_e4m3 scale for every 16 of them.

An element is `e2m1 * block_scale * global_scale`; the global scale is one fp32 number a tensor (here `k_scale`, `v_scale`).
"""

from __future__ import annotations

from kernels.lazy import Tensor, torch

BLOCK = 16
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of e2m1 codes 0 to 7; bit 3 is the sign
LARGEST = MAGNITUDES[-1]


def quantize(values: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 [..., D] to packed uint8 [..., D/2] and fp8_e4m3 scales [..., D/16]; the largest of a block has the largest code."""
    blocks = values.view(*values.shape[:-1], -1, BLOCK)
    scales = (blocks.abs().amax(-1) / LARGEST).clamp_min(2**-9).to(torch.float8_e4m3fn)
    scaled = blocks / scales.float().unsqueeze(-1)
    magnitudes = torch.tensor(MAGNITUDES, device=values.device)
    between = (magnitudes[1:] + magnitudes[:-1]) / 2
    codes = torch.bucketize(scaled.abs(), between) + 8 * (scaled < 0)
    flat = codes.flatten(-2)
    return (flat[..., 0::2] | flat[..., 1::2] << 4).to(torch.uint8), scales


def dequantize(packed: Tensor, scales: Tensor) -> Tensor:
    """fp32 [..., D] from packed uint8 [..., D/2] and fp8_e4m3 scales [..., D/16]."""
    codes = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2).long()
    table = torch.tensor([*MAGNITUDES, *(-m for m in MAGNITUDES)], device=packed.device)
    return (table[codes].view(*scales.shape, BLOCK) * scales.float().unsqueeze(-1)).flatten(-2)

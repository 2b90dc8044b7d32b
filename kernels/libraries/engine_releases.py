"""The releases of engines' packages whose attention calls are as the adapters make them."""

from __future__ import annotations

VLLM_READ = ("vllm>=0.25.1,<0.34",)  # FlashAttention and FlashMLA: read in 0.25.1, 0.32.0 and 0.33.0
# FlashAttention-3: read in 0.4.2.post2, which is for torch 2.11, and in 0.4.10.
SGLANG_KERNEL_READ = ("sglang-kernel>=0.4.2.post2,<=0.4.10",)

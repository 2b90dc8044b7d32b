"""The releases of engines' packages whose attention calls are as the adapters make them."""

from __future__ import annotations

VLLM_READ = ("vllm>=0.25.1,<0.34",)  # FlashAttention and FlashMLA: read in 0.25.1, 0.32.0 and 0.33.0

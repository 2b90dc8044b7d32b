from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ATTENTION_BACKEND_CHOICES = ["triton", "torch_native", "fa3", "flashinfer", "trtllm_mla"]


class ServerArgs:
    """Refuses a flag as SGLang does."""

    def __init__(self, **keys: Any) -> None:
        self.attention_backend = self.decode_attention_backend = self.speculative_algorithm = None
        self.__dict__.update(keys)
        if "trtllm_mla" in (self.decode_attention_backend, self.attention_backend):
            raise ValueError(
                "TRTLLM MLA backend is only supported on Blackwell GPUs (SM100/SM12x). Please use a different backend."
            )

    def get_attention_backends(self) -> tuple[str, str]:
        prefill = self.attention_backend or "fa3"
        return prefill, self.decode_attention_backend or prefill


@dataclass
class PortArgs:
    nccl_port: int = 1

    @staticmethod
    def init_new(args: ServerArgs) -> PortArgs:
        return PortArgs()

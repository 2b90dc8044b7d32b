from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

LATER = version("sglang") == "0.5.23"
GRAPHS = {"cuda_graph_bs", "cuda_graph_max_bs", "disable_piecewise_cuda_graph"}
LATER_GRAPHS = {"cuda_graph_bs_decode", "cuda_graph_max_bs_decode", "disable_prefill_cuda_graph"}

ATTENTION_BACKEND_CHOICES = ["triton", "torch_native", "fa3", "flashinfer", "trtllm_mla"]


class ServerArgs:
    """Refuses a flag as SGLang does."""

    def __init__(self, **keys: Any) -> None:
        self.attention_backend = self.decode_attention_backend = self.prefill_attention_backend = None
        self.speculative_algorithm = None
        graphs = {name for name in keys if "graph" in name}
        assert graphs == (LATER_GRAPHS if LATER else GRAPHS), f"unexpected keyword arguments {graphs}"
        self.__dict__.update(keys)
        if not LATER:
            self._resolve()
            self.attention_backend = self.attention_backend or "fa3"

    def _resolve(self) -> None:
        if "trtllm_mla" in (self.decode_attention_backend, self.attention_backend):
            raise ValueError(
                "TRTLLM MLA backend is only supported on Blackwell GPUs (SM100/SM12x). Please use a different backend."
            )


class LaterServerArgs(ServerArgs):
    """Of 0.5.23: they stay as they were typed. A view has what they resolve to."""

    resolved = False

    def resolve_once(self) -> None:
        self._resolve()
        self.resolved = True


if LATER:
    ServerArgs = LaterServerArgs  # type: ignore[misc]


@dataclass
class PortArgs:
    nccl_port: int = 1

    @staticmethod
    def init_new(args: ServerArgs) -> PortArgs:
        return PortArgs()

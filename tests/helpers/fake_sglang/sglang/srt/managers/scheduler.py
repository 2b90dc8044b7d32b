"""A stand-in for SGLang's scheduler, its event loop, worker and model runner. Nothing is computed.

`torch_native` ends each request after 20 tokens.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fake_gpu import launched

from sglang.srt.managers.io_struct import AbortReq, TokenizedGenerateReqInput
from sglang.srt.server_args import LATER, ServerArgs

KERNELS = {
    "fa3": [("prepare_varlen_num_blocks_kernel", 3_000), ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<...>>", 40_000)],
    "triton": [("_fwd_grouped_kernel_stage1", 50_000), ("_fwd_kernel_stage2", 5_000)],
    "triton, drafts": [("_fwd_kernel", 60_000)],
    "flashinfer": [("BatchPrefillWithPagedKVCacheKernel", 45_000)],
}


class Mode:
    def __init__(self, decode: bool) -> None:
        self.is_decode = lambda: decode


class Worker:
    def __init__(self, flag: str, layers: int) -> None:
        self.flag, self.layers = flag, layers
        self.model_runner = SimpleNamespace(**{"decode_cuda_graph_runner" if LATER else "graph_runner": SimpleNamespace()})

    def forward_batch_generation(self, step: Any) -> str:
        launched.append(("CPU", "cudaGraphLaunch", 0, 0))
        launched.extend(("CUDA", *kernel, 0) for _ in range(self.layers) for kernel in KERNELS.get(self.flag, KERNELS["fa3"]))
        launched.extend(("CUDA", "nvjet_product", 100_000, 0) for _ in range(self.layers))
        return "tokens"


@dataclass(frozen=True, slots=True)
class Receiver:
    """Who is asked for requests in 0.5.23."""

    polled: int

    def recv_requests(self, local_reqs: list[Any] | None = None) -> list[Any]:
        return [*(local_reqs or ())]


class Scheduler:
    """Prefills in chunks before it decodes. That of 0.5.23 has another signature, and runs drafts ahead too."""

    def __init__(self, server_args: ServerArgs, port_args: Any, **ranks: int | None) -> None:
        if LATER:
            from sglang.srt.runtime_context import published

            assert not ranks and published["scheduler"] is server_args
            self.request_receiver = Receiver(polled=0)
        else:
            assert {"gpu_id", "tp_rank", "dp_rank"} < set(ranks)
        drafts = server_args.speculative_algorithm is not None
        assert not drafts or server_args.speculative_ngram_max_bfs_breadth == 1, "a tree"
        self.server_args, self.enable_overlap = server_args, LATER or not drafts
        self.q = server_args.speculative_num_draft_tokens if drafts else 1
        config = json.loads(Path(server_args.model_path, "config.json").read_text())
        assert config["max_position_embeddings"] == server_args.context_length
        self.flag = flag = server_args.decode_attention_backend or server_args.attention_backend or "fa3"
        ran = f"{flag}, drafts" if drafts and flag == "triton" else flag
        self.tp_worker = self.model_worker = Worker(ran, config["num_hidden_layers"])
        self.waiting: list[Any] = []
        self.running: list[Any] = []

    def recv_requests(self) -> list[Any]:
        assert not LATER, "moved"
        return []

    def is_fully_idle(self) -> bool:
        return not self.waiting and not self.running

    def flush_cache(self) -> None:
        assert self.is_fully_idle()

    def run_event_loop(self) -> None:
        while True:
            for one in self.request_receiver.recv_requests(local_reqs=[]) if LATER else self.recv_requests():
                if isinstance(one, AbortReq):
                    self.waiting, self.running = [], []
                elif isinstance(one, TokenizedGenerateReqInput):
                    assert isinstance(one.input_ids, array if LATER else list)
                    assert len(one.input_ids) + one.sampling_params.max_new_tokens <= self.server_args.context_length
                    self.waiting.append(one)
            if self.waiting:
                self._prefill()
            elif self.running:
                self._decode()

    def _prefill(self) -> None:
        left = self.server_args.chunked_prefill_size
        for one in list(self.waiting):
            chunk = min(left, len(one.input_ids) - one.computed)
            one.computed, left = one.computed + chunk, left - chunk
            if one.computed == len(one.input_ids):
                self.waiting.remove(one)
                self.running.append(one)
        assert len(self.running) + bool(self.waiting) <= self.server_args.max_running_requests
        self._forward(self.running or self.waiting, decode=False)

    def _decode(self) -> None:
        """With drafts the lengths of a step are those before it, and some drafts are accepted."""
        if self.q > 1:
            self._forward(self.running, decode=True)
        for n, one in enumerate(self.running):
            one.computed += 1 + n % self.q
        assert sum(one.computed for one in self.running) <= self.server_args.max_total_tokens, "the cache is full"
        if self.q == 1:
            self._forward(self.running, decode=True)
        most = 20 if self.flag == "torch_native" else 1_000_000
        self.running = [
            one for one in self.running if one.computed < len(one.input_ids) + min(most, one.sampling_params.max_new_tokens)
        ]

    def _forward(self, requests: list[Any], *, decode: bool) -> None:
        lengths = [one.computed for one in requests]
        step = SimpleNamespace(forward_mode=Mode(decode), seq_lens=lengths, seq_lens_cpu=torch.tensor(lengths))
        self.model_worker.forward_batch_generation(step)

"""A stand-in for vLLM: its scheduler, model runner and flags as the program of an engine sees them. Nothing is computed.

A kernel is a name, a time, and by how much it begins before the one before it ends. Some flags misbehave: `FAKE_CRASH`,
`FAKE_HANG`, `FAKE_OOM`, `FAKE_OTHER`, `FAKE_ASSERT`.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from fake_gpu import launched

KERNELS = {
    "FLASH_ATTN": [("void cutlass::device_kernel<flash::FlashAttnFwdSm90<...>>", 40_000, 0), ("FlashAttnFwdCombine", 5_000, 3_000)],
    "TRITON_ATTN": [("kernel_unified_attention", 50_000, 0)],
    "FLASHINFER": [("kernel_mha", 45_000, 0)],
    "FAKE_OTHER": [("some_new_kernel", 45_000, 0)],
}


@dataclass
class SamplingParams:
    max_tokens: int
    ignore_eos: bool
    temperature: float
    detokenize: bool


@dataclass
class Request:
    id: str
    prompt: int
    most: int
    computed: int = 0
    produced: int = 0


@dataclass
class Runner:
    """The model runner. Its kernels are those of the flag, in each of `layers`."""

    flag: str
    layers: int
    windows: bool
    attn_groups: Any = field(init=False)

    def __post_init__(self) -> None:
        builder = SimpleNamespace(flashinfer_trtllm_api_decode_kernel="XQA" if self.flag == "FLASHINFER" else None)
        backend = SimpleNamespace(get_name=lambda: self.flag)
        self.attn_groups = [[SimpleNamespace(backend=backend, metadata_builders=[builder])]]

    def execute_model(self, scheduled: Any, intermediate: Any = None) -> None:
        if not scheduled.num_scheduled_tokens:
            return
        if self.flag == "FAKE_CRASH" and len(scheduled.num_scheduled_tokens) == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.flag == "FAKE_HANG" and len(scheduled.num_scheduled_tokens) == 2:
            time.sleep(1e6)
        if self.flag == "FAKE_ASSERT" and len(scheduled.num_scheduled_tokens) == 2:
            raise AssertionError
        launched.append(("CPU", "cudaGraphLaunch", 0, 0))
        for layer in range(self.layers):
            kernels = KERNELS.get(self.flag, KERNELS["FLASH_ATTN"])
            if self.windows and layer % 2 == 0:  # as gpt-oss has them
                kernels = [(f"{kernels[0][0]} with a window", 4_000, 0)]
            launched.extend(("CUDA", *kernel) for kernel in kernels)
        if self.flag == "FLASH_ATTN":
            launched.append(("CUDA", "prepare_varlen_num_blocks_kernel", 3_000, 0))
        launched.extend(("CUDA", "nvjet_product", 100_000, 0) for _ in range(self.layers))

    def sample_tokens(self, grammar: Any) -> str:
        return "tokens"


class Core:
    """The engine's core, whose scheduler prefills in chunks while it decodes."""

    def __init__(self, runner: Runner, q: int, budget: int, cache_tokens: int) -> None:
        worker = SimpleNamespace(model_runner=runner)
        self.model_executor = SimpleNamespace(driver_worker=SimpleNamespace(worker=worker))
        self.runner, self.q, self.budget, self.cache_tokens, self.async_scheduling = runner, q, budget, cache_tokens, q == 1
        self.requests: dict[str, Request] = {}
        self.steps = 0

    def step(self) -> None:
        left, tokens, cached = self.budget, {}, []
        self.steps += 1
        for one in self.requests.values():
            wanted = one.prompt - one.computed if one.computed < one.prompt else self.q
            if self.q > 1 and one.computed >= one.prompt and self.steps % 29 == 0:
                wanted = 1  # a draft was not proposed
            if count := min(left, wanted):
                cached += [one.computed]
                tokens[one.id] = count
                left -= count
        scheduled = SimpleNamespace(num_scheduled_tokens=tokens, scheduled_cached_reqs=SimpleNamespace(num_computed_tokens=cached))
        self.runner.execute_model(scheduled)
        if tokens:
            self.runner.sample_tokens(None)
        for name, count in tokens.items():
            one = self.requests[name]
            one.produced += count if one.computed >= one.prompt else 0
            one.computed += count
            if one.produced >= one.most:
                del self.requests[name]
        assert sum(one.computed for one in self.requests.values()) <= self.cache_tokens, "the cache is full"


class LLM:
    """Refuses a flag as vLLM does."""

    def __init__(self, model: str, attention_config: dict[str, Any], compilation_config: dict[str, Any], **keys: Any) -> None:
        import json
        from pathlib import Path

        config = json.loads(Path(model, "config.json").read_text())
        flag = attention_config.get("backend", "FLASH_ATTN")
        if flag == "FLEX_ATTENTION":
            raise ValueError("Selected backend FLEX_ATTENTION is not valid for this configuration. Reason: ['kv_cache_dtype']")
        if flag == "FAKE_OOM":
            raise torch.OutOfMemoryError("CUDA out of memory")
        assert (keys["kv_cache_dtype"] == "fp8") == ("-rotary_embedding" in compilation_config["custom_ops"])
        assert 128 // config["num_key_value_heads"] in compilation_config["cudagraph_capture_sizes"], "TRITON_ATTN would split less"
        layers, q = config["num_hidden_layers"], 1 + keys.get("speculative_config", {}).get("num_speculative_tokens", 0)
        assert (os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "0") == (q > 1)
        of_token = 2 * 2 * config["num_key_value_heads"] * config["head_dim"] * layers
        self.core = Core(
            Runner(flag, layers, config["model_type"] == "gpt_oss"),
            q,
            keys["max_num_batched_tokens"],
            keys["kv_cache_memory_bytes"] // of_token,
        )
        self.llm_engine, self.engine_core, self.max_len = self, SimpleNamespace(engine_core=self.core), keys["max_model_len"]
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=keys["block_size"]),
            compilation_config=SimpleNamespace(cudagraph_mode=f"CUDAGraphMode.{compilation_config['cudagraph_mode']}"),
        )

    def add_request(self, request_id: str, prompt: dict[str, Any], params: SamplingParams) -> None:
        tokens = len(prompt["prompt_token_ids"])
        assert tokens + params.max_tokens <= self.max_len, "longer than max_model_len"
        self.core.requests[request_id] = Request(request_id, tokens, params.max_tokens)

    def has_unfinished_requests(self) -> bool:
        return bool(self.core.requests)

    def step(self) -> None:
        self.core.step()

    def abort_request(self, ids: list[str]) -> None:
        for one in ids:
            self.core.requests.pop(one, None)

    def reset_prefix_cache(self) -> None:
        return

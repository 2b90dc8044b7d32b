"""vLLM with a model of a few layers in a process of its own environment, and the steps of one point in it. Seen running: 0.25.1."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kernels.engines.steps import Refused, Watch

# What is set already stays. The engine's core in this process, so that its model runner can be wrapped; XQA without asking a web
# server, since vLLM takes another kernel if none answers; nothing to compile or warm up beside attention; a group of one rank opens
# sockets too; no request to a network that waits for its end.
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_HAS_FLASHINFER_CUBIN": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
ENVIRONMENT |= {"VLLM_USE_DEEP_GEMM": "0", "VLLM_DEEP_GEMM_WARMUP": "skip", "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
ENVIRONMENT |= {"NCCL_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
DRAFT_TOKENS = 50  # ids of prompts if there are drafts: the last token has occurred before, so that each step proposes all


def start(spec: Mapping[str, Any]) -> tuple[RunningVllm, dict[str, Any]]:
    """The engine of a spec (`EngineStart.spec`), and what it says of itself. Raises Refused for a flag that it does not take."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if spec["drafts"]:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # the second runner of 0.25.1 has no n-gram proposer
    from vllm import LLM

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(spec["model"]))
        try:
            llm = LLM(model=folder, **_arguments(spec))
        except ValueError as error:
            if "is not valid for" in str(error) or "No valid attention backend" in str(error):
                raise Refused(str(error)) from None
            raise
    return (engine := RunningVllm(llm, spec)), engine.about()


def _arguments(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What is given to vLLM. No profile of memory decides how large the cache is."""
    drafts, q = spec["drafts"], spec["drafts"] + 1
    sizes = {"max_model_len": spec["max_model_len"], "max_num_batched_tokens": spec["prefill_tokens"]}
    sizes |= {"block_size": spec["page_size"], "max_num_seqs": max(2, *spec["batches"])}  # two: for a warm-up of the second runner
    # The free memory that a start insists on, if the cache has a size: a share that is always there.
    cache = {"kv_cache_memory_bytes": spec["cache_bytes"], "kv_cache_dtype": spec["kv_cache_dtype"], "gpu_memory_utilization": 0.1}
    # 128 over the KV heads, a size of vLLM's own list: TRITON_ATTN splits keys up to the captured size that is nearest to it.
    captured = sorted({*(batch * q for batch in spec["batches"]), max(1, 128 // spec["model"]["num_key_value_heads"])})
    graphs = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": captured, "custom_ops": _custom_ops(spec)}
    how = {"compilation_config": {"mode": 0, **graphs}, "kernel_config": {"enable_flashinfer_autotune": False}}  # 0: no inductor
    lookup = {"method": "ngram", "num_speculative_tokens": drafts, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    model = {"load_format": "dummy", "dtype": "bfloat16", "seed": 0, "skip_tokenizer_init": True, "enable_prefix_caching": True}
    attention = {"attention_config": _attention_config(spec["flag"], spec["off"]), "disable_log_stats": True}
    return {**model, **sizes, **cache, **how, **attention, **({"speculative_config": lookup} if drafts else {})}


def _custom_ops(spec: Mapping[str, Any]) -> list[str]:
    """Rotary embeddings in PyTorch over an FP8 cache: FLASHINFER of 0.25.1 wants contiguous queries (flashinfer.py:1587)."""
    return ["-rotary_embedding"] if spec["kv_cache_dtype"] == "fp8" else []


def _attention_config(flag: str | None, off: str | None) -> dict[str, Any]:
    """The engine's own names of a backend and of an option that is off. Raises Refused for names that it does not have."""
    from vllm.config import AttentionConfig
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    known = list(AttentionBackendEnum.__members__)
    if flag is not None and flag not in known:
        raise Refused(f"vllm {version('vllm')} has no attention backend {flag}; it has {', '.join(known)}")
    if off is not None and off not in AttentionConfig.__dataclass_fields__:
        raise Refused(f"vllm {version('vllm')} has no option {off} of attention")
    return {**({"backend": flag} if flag else {}), **({off: False} if off else {})}


class RunningVllm:
    """A running engine. One point at a time."""

    def __init__(self, llm: Any, spec: Mapping[str, Any]) -> None:
        self.spec, self.engine = spec, llm.llm_engine
        core = self.engine.engine_core.engine_core
        self.runner = core.model_executor.driver_worker.worker.model_runner
        self.scheduling = "async" if getattr(core, "async_scheduling", False) else "synchronous"
        self.graph = str(self.engine.vllm_config.compilation_config.cudagraph_mode).rpartition(".")[2]
        self.watch = Watch(spec, self.graph)
        _wrap(self.runner, self.watch)
        self._points, self._ids = 0, list[str]()

    def about(self) -> dict[str, Any]:
        """What the engine resolved its flag to, and how it runs, as columns of a row."""
        groups = [group for groups in self.runner.attn_groups for group in groups]
        names = dict.fromkeys(group.backend.get_name() for group in groups)
        builders = [builder for group in groups for builder in getattr(group, "metadata_builders", ())]
        decodes = dict.fromkeys(str(of) for b in builders if (of := getattr(b, "flashinfer_trtllm_api_decode_kernel", None)))
        block_size = self.engine.vllm_config.cache_config.block_size
        words = [f"max_model_len={self.spec['max_model_len']}", f"block_size={block_size}"]
        words += [f"custom_ops={op}" for op in _custom_ops(self.spec)]
        runner = 2 if type(self.runner).__module__.startswith("vllm.v1.worker.gpu.") else 1
        return {
            "engine_version": version("vllm"),
            "resolved_backend": " ".join(names),
            "kernel_config": " ".join([*words, *(f"decode_kernel={name}" for name in decodes)]),
            "engine_runner": f"V{runner} model runner, {self.scheduling} scheduling",
            "engine_graph": self.graph,
        }

    def point(self, batch: int, prompt: int, most: int, steps: Mapping[str, int], read: Callable[[], None]) -> dict[str, Any]:
        """Columns of a row (`Watch.measure`). Requests have `prompt` tokens and may get `most`."""
        self._add_requests(batch, prompt, most)
        try:
            for _ in self.watch.measure(batch, steps, read, self.engine.has_unfinished_requests):
                self.engine.step()
            return self.watch.found
        finally:
            self._end()

    def _add_requests(self, batch: int, prompt: int, most: int) -> None:
        from vllm import SamplingParams

        self._points += 1
        draw = random.Random(self._points)
        vocabulary = range(10, 10 + (DRAFT_TOKENS if self.spec["drafts"] else self.spec["model"]["vocab_size"] - 100))
        self._ids = [f"{self._points}-{request}" for request in range(batch)]
        for one in self._ids:
            params = SamplingParams(max_tokens=most, ignore_eos=True, temperature=0.0, detokenize=False)
            prompt_ids = draw.choices(vocabulary, k=prompt)
            self.engine.add_request(one, {"type": "token", "prompt_token_ids": prompt_ids}, params)

    def _end(self) -> None:
        self.engine.abort_request(self._ids)
        while self.engine.has_unfinished_requests():
            self.engine.step()
        for _ in range(3):  # what was scheduled ahead
            self.engine.step()
        self.engine.reset_prefix_cache()


def _wrap(runner: Any, watch: Watch) -> None:
    """Tells of each step of a model runner."""
    execute, sample = runner.execute_model, runner.sample_tokens

    def on_execute(scheduled: Any, *args: Any, **keys: Any) -> Any:
        if not (tokens := scheduled.num_scheduled_tokens):
            return execute(scheduled, *args, **keys)
        cached = scheduled.scheduled_cached_reqs.num_computed_tokens
        pure = len(tokens) == watch.batch and set(tokens.values()) == {watch.q}
        watch.opens(sum(cached) / len(cached) + watch.q if pure else None)
        return watch.calls(lambda: execute(scheduled, *args, **keys), ends=False)

    runner.execute_model = on_execute
    runner.sample_tokens = lambda *args, **keys: watch.calls(lambda: sample(*args, **keys), ends=True)

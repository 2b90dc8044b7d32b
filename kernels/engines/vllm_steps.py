"""vLLM with a model of a few layers, and the steps of one point in it. Seen running: vLLM 0.25.1 on Hopper.

Runs in the engine's own environment, in a process of its own (`kernels/environment/serve.py`). Imports nothing of this project.
Each request has a random prompt of its own, which is prefilled for real. A *pure* step is one in which every request of the point
has exactly `q` tokens: one, or its draft and one more. Only pure steps are timed and profiled, under the engine's own CUDA graphs.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Parts of the names of kernels beside those that compute attention, whose parts a spec has (`main_kernels`). From profiles of
# FLASH_ATTN, FLASHINFER and TRITON_ATTN; those of FlashAttention-2, FlashMLA and TRITON_MLA were read in their sources.
BESIDE = {
    "combine": ("FlashAttnFwdCombine", "splitkv_combine", "MergeStates", "reduce_segments", "mla_combine", "_fwd_kernel_stage2"),
    "metadata": ("prepare_varlen_num_blocks", "get_mla_metadata"),
}
# What is set already stays. The engine's core in this process, so that its model runner can be wrapped; XQA without asking a web
# server, since vLLM takes another kernel if none answers; nothing to compile or warm up beside attention; a group of one rank opens
# sockets too; no request to a network that waits for its end.
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_HAS_FLASHINFER_CUBIN": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
ENVIRONMENT |= {"VLLM_USE_DEEP_GEMM": "0", "VLLM_DEEP_GEMM_WARMUP": "skip", "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
ENVIRONMENT |= {"NCCL_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
DRAFT_TOKENS = 50  # ids of prompts if there are drafts: the last token has occurred before, so that each step proposes all
MAX_NAME, MAX_OTHER, MAX_KERNELS = 320, 60, 16  # characters of an attention kernel's name, and another's; kernels of a kind
MAX_BESIDE = 0.01  # of attention's time, in which kernels of another part run, before a row says so
READS = 4  # how often the clocks are read while steps are timed


class NotMeasured(Exception):
    """A point whose steps show no time. The engine serves others."""

    healthy = True


class Refused(Exception):
    """The engine has no such flag, or does not take it here."""


def start(spec: Mapping[str, Any]) -> tuple[Running, dict[str, Any]]:
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
    return (engine := Running(llm, spec)), engine.about()


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
    """Rotary embeddings in PyTorch over an FP8 cache, whose queries FLASHINFER of 0.25.1 wants contiguous (its flashinfer.py:1587).

    Inductor makes them so; vLLM's own operation, in place, leaves them a part of the projection. All flags, so that steps compare.
    """
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


class Running:
    """A running engine. One point at a time."""

    def __init__(self, llm: Any, spec: Mapping[str, Any]) -> None:
        self.spec, self.engine = spec, llm.llm_engine
        core = self.engine.engine_core.engine_core
        self.runner = core.model_executor.driver_worker.worker.model_runner
        self.watch = Watch(self.runner)
        self.scheduling = "async" if getattr(core, "async_scheduling", False) else "synchronous"
        self.graph = str(self.engine.vllm_config.compilation_config.cudagraph_mode).rpartition(".")[2]
        self._points, self._ids = 0, list[str]()
        with _profile():  # the first profile of a process takes seconds
            pass

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
        """Medians of pure steps, and the kernels of those that follow, as columns of a row. `read` reads the clocks meanwhile.

        Requests have `prompt` tokens and may get `most`; `steps` says how many are `warm`, `timed` and `profiled`. Raises
        NotMeasured if too few steps are pure, or no kernel of attention ran.
        """
        self._add_requests(batch, prompt, most)
        try:
            self._until(steps["warm"], batch)
            for at in range(READS):
                self._until(steps["timed"] // READS, batch, fresh=at == 0)
                read()
            timed = self.watch.times()
            for _ in range(steps["profiles"]):  # a step in which a draft was short makes a profile useless
                with _profile() as profile:
                    self._until(steps["profiled"], batch)
                if self.watch.pure == self.watch.steps:
                    found = {"engine_kv_tokens": statistics.mean(self.watch.kv_tokens), "engine_profiled_steps": self.watch.steps}
                    events = profile.profiler.kineto_results.events()
                    return {**timed, **found, **kernels_of(events, self.spec, self.watch.steps, self.graph)}
            raise NotMeasured(f"in {steps['profiles']} profiles some steps had requests without {self.watch.q} tokens")
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

    def _until(self, count: int, batch: int, *, fresh: bool = True) -> None:
        """Runs steps until so many more were pure. With `fresh` those before are forgotten."""
        if fresh:
            self.watch.begin(batch, self.spec["drafts"] + 1)
        wanted = self.watch.pure + count
        while self.watch.pure < wanted:
            if not self.engine.has_unfinished_requests():
                raise NotMeasured(f"the requests ended after {self.watch.pure} steps with {self.watch.q} tokens of each request")
            self.engine.step()

    def _end(self) -> None:
        self.engine.abort_request(self._ids)
        while self.engine.has_unfinished_requests():
            self.engine.step()
        for _ in range(3):  # what was scheduled ahead
            self.engine.step()
        self.engine.reset_prefix_cache()


@contextmanager
def _profile() -> Iterator[Any]:
    """Kernels of the steps in it alone: the GPU has done those before, and does all of these."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        yield found
        torch.cuda.synchronize()


class Watch:
    """Sees each step of a model runner, by wrapping it. Counts those of which every request has `q` tokens, and times them."""

    def __init__(self, runner: Any) -> None:
        self._execute, self._sample = runner.execute_model, runner.sample_tokens
        runner.execute_model, runner.sample_tokens = self._on_execute, self._on_sample
        self.begin(0, 1)

    def begin(self, batch: int, q: int) -> None:
        """Forgets all steps so far."""
        self.batch, self.q, self.steps, self.pure = batch, q, 0, 0
        self.kv_tokens: list[float] = []
        self._starts: list[float | None] = []  # by the host's clock; None for a step that was not pure
        self._host: list[float] = []
        self._events: list[tuple[Any, Any]] = []
        self._open = False  # whether a pure step waits for its tokens

    def times(self) -> dict[str, Any]:
        """Medians in microseconds. A step's wall time is until the next one starts, if both are pure."""
        import torch

        torch.cuda.synchronize()
        pairs = zip(self._starts, self._starts[1:], strict=False)
        walls = [(after - before) * 1e6 for before, after in pairs if before is not None and after is not None]
        gpu = [before.elapsed_time(after) * 1e3 for before, after in self._events]
        host = [seconds * 1e6 for seconds in self._host]
        if not walls or not gpu:
            raise NotMeasured(f"no two steps in a row had {self.q} tokens of each request")
        medians = (round(statistics.median(times), 3) for times in (walls, gpu, host))
        return dict(zip(("engine_wall_us", "engine_step_us", "engine_host_us"), medians, strict=True)) | {"engine_steps": len(gpu)}

    def _on_execute(self, scheduled: Any, *args: Any, **keys: Any) -> Any:
        tokens = scheduled.num_scheduled_tokens
        if not tokens:
            return self._execute(scheduled, *args, **keys)
        import torch

        self._open = len(tokens) == self.batch and set(tokens.values()) == {self.q}
        self.steps += 1
        if not self._open:
            self._starts.append(None)
            return self._execute(scheduled, *args, **keys)
        self.pure += 1
        cached = scheduled.scheduled_cached_reqs.num_computed_tokens
        self.kv_tokens.append(sum(cached) / len(cached) + self.q)
        begun = time.perf_counter()
        self._starts.append(begun)
        event: Any = torch.cuda.Event
        self._events.append((event(enable_timing=True), event(enable_timing=True)))
        self._events[-1][0].record()
        found = self._execute(scheduled, *args, **keys)
        self._host.append(time.perf_counter() - begun)
        return found

    def _on_sample(self, *args: Any, **keys: Any) -> Any:
        begun = time.perf_counter()
        found = self._sample(*args, **keys)
        if self._open:
            self._open = False
            self._events[-1][1].record()
            self._host[-1] += time.perf_counter() - begun
        return found


def kernels_of(events: Sequence[Any], spec: Mapping[str, Any], steps: int, graph: str) -> dict[str, Any]:
    """The kernels of `steps` profiled steps by phase, as columns of a row. `reason`: some did not run equally often in each layer.

    The time of each phase is a sum. `attention_us` counts the time in which a main and a combining kernel run together once: a
    combining one may be launched before the main one ends, and waits for it. Time beside kernels of another part is counted whole,
    and `reason` says so. Raises NotMeasured if no kernel of attention ran.
    """
    layers, phases = spec["layers"], {**BESIDE, "main": spec["main_kernels"]}  # the first that has a part of a name is its phase
    spans: dict[str, dict[str, list[tuple[int, int]]]] = {phase: defaultdict(list) for phase in (*phases, "other")}
    launches = 0
    for event in events:
        name = event.name()
        if str(event.device_type()).endswith("CUDA"):
            phase = next((phase for phase, parts in phases.items() if any(part in name for part in parts)), "other")
            begin = event.start_ns()
            spans[phase][name.removeprefix("void ")[:MAX_NAME]].append((begin, begin + event.duration_ns()))
        else:
            launches += "GraphLaunch" in name
    ordered = {phase: sorted(of, key=lambda name: -summed_us(of[name]))[:MAX_KERNELS] for phase, of in spans.items()}
    if not spans["main"]:
        raise NotMeasured(f"no kernel of attention is known among those that ran: {' | '.join(ordered['other'])}")
    combine, metadata, main, other = ([span for of in named.values() for span in of] for named in spans.values())
    in_layers = {**spans["main"], **spans["combine"]}
    uneven = [name for name, of in in_layers.items() if len(of) % (steps * layers)]
    attention, every = covered_us(main + combine), covered_us(main + combine + metadata + other)
    beside = attention + covered_us(other) - covered_us(main + combine + other)
    amiss = [f"not equally often in each layer: {', '.join(uneven)}"] if uneven else []
    amiss += [f"{beside / attention:.0%} of attention's time beside other kernels"] if beside > MAX_BESIDE * attention else []
    return {
        **{f"{phase}_kernels": " | ".join(ordered[phase]) or None for phase in phases},
        "other_kernels": " | ".join(
            f"{name[:MAX_OTHER]} {summed_us(spans['other'][name]) / steps:.1f}" for name in ordered["other"]
        ),
        "attention_us": attention / steps / layers,
        "attention_main_us": summed_us(main) / steps / layers,
        "attention_combine_us": summed_us(combine) / steps / layers,
        "attention_metadata_us": summed_us(metadata) / steps,
        "attention_share": covered_us(main + combine + metadata) / every,
        "engine_kernels_us": every / steps,
        "engine_graph": f"{graph}, {launches / steps:g} graph launches a step",
        "reason": "; ".join(amiss),
    }


def summed_us(spans: Iterable[tuple[int, int]]) -> float:
    """Microseconds of all spans (begin and end in nanoseconds)."""
    return sum(end - begin for begin, end in spans) / 1e3


def covered_us(spans: Iterable[tuple[int, int]]) -> float:
    """Microseconds in which at least one of the spans (begin and end in nanoseconds) lasts."""
    covered, until = 0, 0
    for begin, end in sorted(spans):
        covered += max(0, end - max(begin, until))
        until = max(until, end)
    return covered / 1e3

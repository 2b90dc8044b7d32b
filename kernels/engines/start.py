"""One start of an engine: the model that it loads, which points it serves, and how large it must be for all of them.

The model is a config.json of a few layers with dummy weights. One GPU has its share of heads and MLP, without communication. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from kernels.engines.flags import DEFAULT, KV_DTYPES, OFF
from kernels.problem import Problem
from kernels.problem.dtypes import size_bytes
from kernels.step.shapes import WEIGHT_BYTES, LayerShape, nope_dim, weight_bytes

LAYERS = 4  # of the model, unless timing.step_layers says otherwise
START_S = 33.0  # 25 to 40 s on an H200, its imports included; the first time of a backend takes longest
VOCABULARY = 32_000  # so that embeddings take little memory
WINDOW = 128  # of gpt-oss, in its layers 0, 2, ...
PREFILL_TOKENS = 16_384  # of all requests in one step
# Steps, and how often a profile is tried. During the first ones the clock recovers from the prefill, which reaches the power cap.
WARM, TIMED, TIMED_DRAFTS, PROFILED, PROFILES = 40, 100, 40, 12, 3
PAGES_MORE, BYTES_MORE = 1.08, 2**28  # of the cache: vLLM keeps some pages for itself
ACTIVATION_BYTES = 6 * 2**30  # of a prefill of PREFILL_TOKENS, with room for graphs and workspaces
POINT_OVERHEAD_S, STEP_OVERHEAD_S, PREFILL_SHARE = 1.0, 2e-3, 0.45  # PREFILL_SHARE: of the matrix rate that prompts reach


def key_of(problem: Problem, backend: str, env: str | None) -> Hashable:
    """What the points of one start share: flag, environment, heads, dtypes and draft length; all but how many tokens there are."""
    kept = problem.model_dump(exclude={"batch_size", "s_kv", "tree"}, exclude_defaults=True)
    return (backend, env, *sorted((name, str(value)) for name, value in kept.items()))


@dataclass(frozen=True)
class EngineStart:
    """A start that serves all of `problems`, which have one `key_of`. Maximum length and cache fit the largest of them."""

    backend: str
    problems: tuple[Problem, ...]
    layer: LayerShape
    layers: int = LAYERS

    @property
    def engine(self) -> str:
        return self.backend.partition("/")[0]

    @property
    def in_words(self) -> str:
        """The model, as a row says it."""
        tp = self.problems[0].tp
        share = f", the share of 1 of {tp} GPUs by heads and MLP, without communication" if tp > 1 else ""
        measured = f", measured in layers {', '.join(map(str, of))}" if len(of := self._measured()) < self.layers else ""
        return f"{self._model()['architectures'][0]}, {self.layers} layers, dummy weights{share}{measured}"

    def _measured(self) -> list[int]:
        """The layers of the problem's kind: vLLM's gpt-oss has its window in 0, 2, ..., whatever their types."""
        first = self.problems[0]
        return list(range(int(first.window is None), self.layers, 2) if first.sinks else range(self.layers))

    def spec(self) -> dict[str, Any]:
        """What the program of the engine is told to start."""
        first, longest = self.problems[0], max(max(p.max_seq_len or 0, longest_request(p)) for p in self.problems)
        name, _, off = self.backend.partition("/")[2].partition(OFF)
        return {
            "flag": None if name == DEFAULT else name,
            "off": off or None,
            "model": self._model() | {"max_position_embeddings": longest},
            "layers": self.layers,
            "measured": self._measured(),
            "drafts": first.s_qo - 1,
            "page_size": first.page_size,
            "kv_cache_dtype": KV_DTYPES[first.kv_dtype],
            "batches": sorted({p.batch_size for p in self.problems}),
            "max_model_len": longest,
            "prefill_tokens": PREFILL_TOKENS,
            "cache_bytes": max(cache_bytes(p, self.layers) for p in self.problems),
            "cache_tokens": int(max(map(cache_tokens, self.problems)) * PAGES_MORE),
        }

    def _model(self) -> dict[str, Any]:
        """A config.json: DeepSeek-V3's class for a latent, gpt-oss's (8 experts) for sinks, else Llama's. Experts are one MLP."""
        p, layer = self.problems[0], self.layer
        wide = layer.intermediate_size * (layer.experts_per_token or 1) + (layer.shared_intermediate_size or 0)
        found: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": layer.hidden_size, "num_hidden_layers": self.layers}
        found |= {"num_attention_heads": p.num_qo_heads, "num_key_value_heads": p.num_kv_heads, "tie_word_embeddings": False}
        found |= {"intermediate_size": -(-layer.of_mlp(wide, p.tp) // 64) * 64, "rope_theta": 10000.0}
        if p.latent:
            found |= {"qk_nope_head_dim": nope_dim(p), "qk_rope_head_dim": p.head_dim_kpe, "v_head_dim": p.head_dim_vo}
            found |= {"q_lora_rank": layer.q_lora_rank, "kv_lora_rank": p.head_dim_ckv, "first_k_dense_replace": self.layers}
            return {**found, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
        found |= {"head_dim": p.head_dim_qk, "hidden_act": "silu", "rms_norm_eps": 1e-5}
        if p.window is not None or p.sinks:
            kinds = ["sliding_attention", "full_attention" if p.sinks else "sliding_attention"]  # only gpt-oss's layers differ
            found |= {"layer_types": [kinds[layer % 2] for layer in range(self.layers)], "sliding_window": p.window or WINDOW}
        if not p.sinks:
            return {**found, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        found |= {"num_local_experts": 8, "num_experts_per_tok": layer.experts_per_token or 1}
        found |= {"intermediate_size": layer.of_mlp(layer.intermediate_size, p.tp)}
        return {**found, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"}


def point_request(problem: Problem) -> dict[str, Any]:
    """What the program of the engine is told to measure. `most` is how many tokens a request may get.

    It has about `s_kv` in the profiled steps if all drafts are accepted, and is decoded on average in half of the prefill steps.
    """
    # Fewer steps with drafts, which lengthen the context by several tokens a step, and half as many more in case some are short.
    timed = TIMED if problem.s_qo == 1 else TIMED_DRAFTS
    prefill = math.ceil(problem.batch_size * problem.s_kv / PREFILL_TOKENS) + 1
    before = round((WARM + timed + PROFILED / 2 + prefill / 2) * problem.s_qo)
    most = (prefill + (WARM + timed + PROFILES * PROFILED) * 3 // 2 + 16) * problem.s_qo
    steps = {"warm": WARM, "timed": timed, "profiled": PROFILED, "profiles": PROFILES}
    return {"batch": problem.batch_size, "prompt": max(1, problem.s_kv - before), "most": most, "steps": steps}


def longest_request(problem: Problem) -> int:
    """Tokens of a request at its end."""
    asked = point_request(problem)
    return int(asked["prompt"] + asked["most"])


def cache_tokens(problem: Problem) -> int:
    """Tokens of all requests of a point at their end, in whole pages."""
    return problem.batch_size * math.ceil(longest_request(problem) / problem.page_size) * problem.page_size


def cache_bytes(problem: Problem, layers: int) -> int:
    """Bytes of a cache that holds all requests of a point to their end."""
    return int(layers * size_bytes(problem.kv_dtype, cache_tokens(problem) * problem.kv_token_elements) * PAGES_MORE) + BYTES_MORE


def memory_bytes(problem: Problem, layer: LayerShape, layers: int) -> int:
    """Bytes of device memory that an engine takes for a point."""
    embeddings = 2 * WEIGHT_BYTES * VOCABULARY * layer.hidden_size
    return cache_bytes(problem, layers) + layers * weight_bytes(problem, layer) + embeddings + ACTIVATION_BYTES


def point_seconds(problem: Problem, layer: LayerShape, layers: int, bytes_s: float, flops_s: float) -> float:
    """Seconds of a point: its prefill at a share of the matrix rate, and its steps at the memory rate."""
    weights, tokens = weight_bytes(problem, layer), problem.batch_size * problem.s_kv
    of_mask = problem.num_qo_heads * (problem.head_dim_qk + problem.head_dim_vo) * problem.s_kv  # half of the pairs
    prefill_s = layers * tokens * (2 * weights / WEIGHT_BYTES + of_mask) / (PREFILL_SHARE * flops_s)
    step_s = STEP_OVERHEAD_S + layers * (weights + problem.unshared_bytes) / bytes_s
    return POINT_OVERHEAD_S + prefill_s + (WARM + TIMED + PROFILES * PROFILED) * step_s

"""One start of an engine: which points it serves, and how large it must be for all of them. Pure Python, no torch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from kernels.engines.flags import DEFAULT, KV_DTYPES, OFF
from kernels.engines.model import VOCABULARY, config_of, in_words
from kernels.problem import Problem
from kernels.problem.dtypes import size_bytes
from kernels.step.shapes import WEIGHT_BYTES, LayerShape, weight_bytes

LAYERS = 4  # of the model, unless timing.step_layers says otherwise
START_S = 33.0  # 25 to 40 s on an H200, its imports included; the first time of a backend takes longest
PREFILL_TOKENS = 16_384  # of all requests in one step
PROFILES = 3  # as often a profile is tried
WARM, TIMED, TIMED_DRAFTS, PROFILED = 15, 100, 40, 12  # steps
PAGES_MORE, BYTES_MORE = 1.08, 2**28  # of the cache: vLLM keeps some pages for itself
ACTIVATION_BYTES = 6 * 2**30  # of a prefill of PREFILL_TOKENS, with room for graphs and workspaces
POINT_OVERHEAD_S, STEP_OVERHEAD_S, PREFILL_SHARE = 1.0, 2e-3, 0.45  # PREFILL_SHARE: of the matrix rate that prompts reach


class HasProblem(Protocol):
    """A point, as far as a start depends on it."""

    @property
    def problem(self) -> Problem: ...
    @property
    def backend(self) -> str: ...
    @property
    def shares(self) -> Hashable: ...


def key_of(problem: Problem, backend: str, env: str | None) -> Hashable:
    """What the points of one start share: flag, environment, heads, dtypes and draft length; all but how many tokens there are."""
    kept = problem.model_dump(exclude={"batch_size", "s_kv", "tree"}, exclude_defaults=True)
    return (backend, env, *sorted((name, str(value)) for name, value in kept.items()))


def steps_of(problem: Problem) -> dict[str, int]:
    """How many pure steps of a point are of which kind. Fewer with drafts, which lengthen the context by several tokens a step."""
    return {"warm": WARM, "timed": TIMED if problem.s_qo == 1 else TIMED_DRAFTS, "profiled": PROFILED}


def prefill_steps(problem: Problem) -> int:
    return math.ceil(problem.batch_size * problem.s_kv / PREFILL_TOKENS) + 1


def most_new_tokens(problem: Problem) -> int:
    """Tokens that a request may get: all of its steps with all of the draft accepted, half as many again in case some are short."""
    steps = steps_of(problem)
    pure = steps["warm"] + steps["timed"] + PROFILES * steps["profiled"]
    return (prefill_steps(problem) + pure * 3 // 2 + 16) * problem.s_qo


def prompt_tokens(problem: Problem) -> int:
    """Tokens of each prompt, so that a request has about `s_kv` in the profiled steps if all drafts are accepted.

    The first requests are decoded while the last ones are prefilled: on average for half of the prefill steps.
    """
    steps = steps_of(problem)
    before = steps["warm"] + steps["timed"] + steps["profiled"] / 2 + prefill_steps(problem) / 2
    return max(1, problem.s_kv - round(before * problem.s_qo))


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
    def flag(self) -> str:
        return self.backend.partition("/")[2]

    @property
    def model(self) -> dict[str, Any]:
        """The config.json of its model."""
        return config_of(self.problems[0], self.layer, self.layers) | {"max_position_embeddings": self.max_len}

    @property
    def in_words(self) -> str:
        """The model, as a row says it."""
        return in_words(self.model, self.problems[0])

    @property
    def max_len(self) -> int:
        """Tokens that a request may have at most: the engine's own maximum if the problem names one."""
        return max(max(p.max_seq_len or 0, prompt_tokens(p) + most_new_tokens(p)) for p in self.problems)

    @property
    def cache_bytes(self) -> int:
        return max(cache_bytes(p, self.layers) for p in self.problems)

    def spec(self) -> dict[str, Any]:
        """What the program of the engine is told to start."""
        first = self.problems[0]
        name, _, off = self.flag.partition(OFF)
        return {
            "flag": None if name == DEFAULT else name,
            "off": off or None,
            "model": self.model,
            "layers": self.layers,
            "drafts": first.s_qo - 1,
            "page_size": first.page_size,
            "kv_cache_dtype": KV_DTYPES[first.kv_dtype],
            "batches": sorted({p.batch_size for p in self.problems}),
            "max_model_len": self.max_len,
            "prefill_tokens": PREFILL_TOKENS,
            "cache_bytes": self.cache_bytes,
        }


def point_request(problem: Problem) -> dict[str, Any]:
    """What the program of the engine is told to measure."""
    return {
        "batch": problem.batch_size,
        "prompt": prompt_tokens(problem),
        "max_tokens": most_new_tokens(problem),
        "steps": steps_of(problem),
    }


def cache_bytes(problem: Problem, layers: int) -> int:
    """Bytes of a cache that holds all requests of a point to their end."""
    longest = prompt_tokens(problem) + most_new_tokens(problem)
    tokens = problem.batch_size * math.ceil(longest / problem.page_size) * problem.page_size
    return int(layers * size_bytes(problem.kv_dtype, tokens * problem.kv_token_elements) * PAGES_MORE) + BYTES_MORE


def memory_bytes(problem: Problem, layer: LayerShape, layers: int) -> int:
    """Bytes of device memory that an engine takes for a point."""
    embeddings = 2 * WEIGHT_BYTES * VOCABULARY * layer.hidden_size
    return cache_bytes(problem, layers) + layers * weight_bytes(problem, layer) + embeddings + ACTIVATION_BYTES


def point_seconds(problem: Problem, layer: LayerShape, layers: int, bytes_s: float, flops_s: float) -> float:
    """Seconds of a point: its prefill at a share of the matrix rate, and its steps at the memory rate."""
    weights, tokens = weight_bytes(problem, layer), problem.batch_size * problem.s_kv
    of_mask = problem.num_qo_heads * (problem.head_dim_qk + problem.head_dim_vo) * problem.s_kv  # half of the pairs
    prefill_s = layers * tokens * (2 * weights / WEIGHT_BYTES + of_mask) / (PREFILL_SHARE * flops_s)
    steps = steps_of(problem)
    step_s = STEP_OVERHEAD_S + layers * (weights + problem.unshared_bytes) / bytes_s
    return POINT_OVERHEAD_S + prefill_s + (steps["warm"] + steps["timed"] + 2 * steps["profiled"]) * step_s


def starts_of(points: Iterable[HasProblem], layer: LayerShape, layers: int) -> dict[Hashable, EngineStart]:
    """The starts that these points need, by what they share."""
    members: dict[Hashable, list[HasProblem]] = {}
    for point in points:
        members.setdefault(point.shares, []).append(point)
    return {key: EngineStart(of[0].backend, tuple(one.problem for one in of), layer, layers) for key, of in members.items()}

"""Attention in several calls whose partial answers are merged by their log-sum-exp, with torch alone: what engines compose.

`torch_two_calls` reads a shared prefix once, for the queries of all requests together, and each request's own keys in a second
call. `torch_chunks` goes over the context in chunks of so many keys of every request, as the prefill of a chunk of a prompt does
over DeepSeek's latents (vLLM, `MLACommonImpl._compute_prefill_context`): requests with a shorter context have empty chunks.
Both are slow and serve every problem; they show what a composition must give, and that its log-sum-exp is right.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce

from kernels.adapter import Adapter, Device, EngineMaximum, Inputs, Need, Problem, QueryLengths, Runner
from kernels.inputs.states import State, attend, attend_together, merged
from kernels.lazy import torch
from kernels.libraries.flashinfer_common import fp8_output_scale
from kernels.problem.dtypes import FP8, torch_dtype
from kernels.problem.features import FEATURES, Feature

CHUNK = 256  # keys of each request: small, so that a CPU sees several


@dataclass(frozen=True, kw_only=True)
class TorchStates(Adapter):
    """What both share: partial answers in the output's dtype, as kernels write them, and the merge of each with the next."""

    query_lengths: QueryLengths = "varlen"
    takes_soft_cap: bool = True
    gives_lse: bool = True
    max_seq_len: EngineMaximum = "unread"
    skips_unused: bool = True
    distributions: tuple[str, ...] = ("torch",)
    passes: frozenset[Feature] | None = frozenset(FEATURES) - {"attention sinks"}
    merge: Callable[[State, State], State] = merged

    @abstractmethod
    def states(self, inputs: Inputs, dtype: torch.dtype) -> Iterator[State]:
        """The partial answers. Each key that a query sees is in one of them."""

    @abstractmethod
    def keys_at_once(self, problem: Problem) -> int:
        """The most keys of a call."""

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def workspace_bytes(self, problem: Problem) -> int:
        p = problem
        rows = p.num_q_tokens * p.num_qo_heads
        return 4 * (3 * rows * self.keys_at_once(p) + 2 * self.keys_at_once(p) * p.kv_token_elements + 6 * rows * p.value_dim)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        p, out, lse, scale = inputs.problem, inputs.empty_output(), inputs.empty_lse(), fp8_output_scale(inputs.problem)
        partial = torch_dtype("bf16" if p.output_dtype in FP8 else p.output_dtype)

        def launch() -> None:
            state = reduce(self.merge, self.states(inputs, partial))
            out.copy_(state.out / scale)
            if lse is not None:
                lse.copy_(state.lse)

        return Runner(launch, out, f"{self.name}_{inputs.device.type}", "fp32", caller_scale=scale, lse=lse)


@dataclass(frozen=True, kw_only=True)
class TorchTwoCalls(TorchStates):
    routine: str = "cascade"
    name: str = "torch_two_calls"

    def states(self, inputs: Inputs, dtype: torch.dtype) -> Iterator[State]:
        p = inputs.problem
        yield attend_together(inputs, range(p.prefix_tokens), dtype)
        yield attend(inputs, [range(p.prefix_tokens, length) for length in p.kv_lens], dtype)

    def keys_at_once(self, problem: Problem) -> int:
        return problem.s_kv


@dataclass(frozen=True, kw_only=True)
class TorchChunks(TorchStates):
    name: str = "torch_chunks"
    takes_empty: bool = True
    takes_no_keys: bool = True
    takes_window: bool = True
    takes_two_sided_window: bool = True
    takes_prefix_mask: bool = True
    takes_more_queries: bool = True
    chunk: int = CHUNK

    def states(self, inputs: Inputs, dtype: torch.dtype) -> Iterator[State]:
        p = inputs.problem
        contexts = [max(0, kv - q) for q, kv in zip(p.q_lens, p.kv_lens, strict=True)]
        for start in range(0, max(contexts), self.chunk):
            yield attend(inputs, [range(start, max(start, min(start + self.chunk, end))) for end in contexts], dtype)
        yield attend(inputs, [range(end, kv) for end, kv in zip(contexts, p.kv_lens, strict=True)], dtype)

    def keys_at_once(self, problem: Problem) -> int:
        return max(self.chunk, problem.s_qo)


ADAPTERS = (TorchTwoCalls(), *(TorchChunks(routine=r) for r in ("paged_decode", "paged_prefill", "ragged_prefill", "mla")))

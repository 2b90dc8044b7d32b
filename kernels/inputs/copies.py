"""Copies of inputs that a call reads in their place: the project makes them, since what nobody times must not compute.

`Runner.copies` names those of a call. They are brought up to date whenever the inputs have changed, untimed, as an engine does it
before the call: it orders a batch before it computes queries, and has keys and values of new tokens from its product.
"""

# B = batch_size, T = query tokens, H = num_qo_heads, K = stored KV heads, S = s_kv, n = num_states, D = head_dim

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from kernels.inputs import Inputs
from kernels.inputs.rows import rows_of, token_rows
from kernels.inputs.states import State, attend, ranges
from kernels.inputs.tensors import bits
from kernels.lazy import torch
from kernels.problem.arithmetic import NATURAL
from kernels.problem.dtypes import torch_dtype


class InputCopy(ABC):
    """Memory with inputs in another layout. Backends of a routine's folder read copies of classes of this folder undeclared."""

    declared: str  # how an adapter says that its call reads such a copy

    @abstractmethod
    def refresh(self) -> None:
        """Copies the inputs as they are now."""


class CopiedCache(InputCopy):
    """Keys and values without pages, [B, K, S, D] each, of requests of one length: for references, which are never ranked."""

    declared = "copies_cache=True"

    def __init__(self, inputs: Inputs) -> None:
        p = inputs.problem
        shape, like = (p.batch_size, p.stored_kv_heads, p.s_kv), inputs.kv[0]
        self.inputs = inputs
        self.k, self.v = (torch.empty(*shape, dim, dtype=like.dtype, device=like.device) for dim in (p.key_dim, p.value_dim))
        self.refresh()

    def refresh(self) -> None:
        for request in range(self.inputs.problem.batch_size):
            for copy, tokens in zip((self.k, self.v), self.inputs.tokens_by_head((request,), 0, self.k.shape[2]), strict=True):
                copy[request] = tokens


class NewTokens(InputCopy):
    """Keys and values of the query tokens beside the cache, as the QKV product leaves them: [T, K, D] each, times their scale.

    Rows behind the last token, if padded requests have none, are 0.
    """

    declared = "copies_new_tokens=True"

    def __init__(self, inputs: Inputs) -> None:
        p, like = inputs.problem, inputs.q
        self.k, self.v = (
            torch.zeros(p.num_q_tokens, p.stored_kv_heads, dim, dtype=like.dtype, device=like.device)
            for dim in (p.key_dim, p.value_dim)
        )
        self._scales = (inputs.k_scale, inputs.v_scale)
        views = [rows_of(p, cache) for cache in inputs.kv]
        self._stored = [view for view, _ in views]
        _, self._rows = token_rows(inputs, views[0][1], inputs.kv_lens - inputs.q_lens, inputs.kv_lens)
        self.refresh()

    def refresh(self) -> None:
        for copy, stored, scale in zip((self.k, self.v), self._stored, self._scales, strict=True):
            picked = bits(stored)[self._rows].view(stored.dtype)
            copy[: len(picked)].copy_(picked if scale == 1 else picked.float().mul_(scale))


class OrderedQueries(InputCopy):
    """Queries [T, H, D_qk] with the requests in this order. `source` int64 [T] says which row of the problem each row holds."""

    declared = "reorders"

    def __init__(self, inputs: Inputs, order: Sequence[int]) -> None:
        queries = (inputs.queries(request) for request in order)
        self.inputs, self.q = inputs, torch.empty_like(inputs.q)
        self.source = torch.tensor([row for rows in queries for row in range(rows.start, rows.stop)], device=inputs.device)
        self.refresh()

    def refresh(self) -> None:
        bits(self.q).copy_(bits(self.inputs.q)[self.source])


class States(InputCopy):
    """The partial answers that a call of `merge_states` merges, with log-sum-exps of this base.

    `out` is [n, T, H, D_vo] and `lse` fp32 [n, T, H]; with `token_first` all states of a token lie beside each other: [T, n, ...].
    `states` are views of each, [T, H, D_vo] and [T, H].
    """

    declared = "the routine merge_states"

    def __init__(self, inputs: Inputs, *, token_first: bool, base: Literal["e", "2"]) -> None:
        p, self.inputs, self.base = inputs.problem, inputs, base
        n, tokens, heads = p.num_states or 1, p.num_q_tokens, p.num_qo_heads
        shape = (tokens, n, heads) if token_first else (n, tokens, heads)
        self.out = torch.empty(*shape, p.value_dim, dtype=torch_dtype(p.state_dtype), device=inputs.device)
        self.lse = torch.empty(shape, dtype=torch.float32, device=inputs.device)
        by_state = (t.unbind(int(token_first)) for t in (self.out, self.lse))
        self.states = tuple(State(*pair) for pair in zip(*by_state, strict=True))
        self.refresh()

    def refresh(self) -> None:
        for number, state in enumerate(self.states):
            over_range = attend(self.inputs, ranges(self.inputs.problem, number), self.out.dtype)
            state.out.copy_(over_range.out)
            state.lse.copy_(over_range.lse / NATURAL[self.base])

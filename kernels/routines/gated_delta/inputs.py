"""The tensors of a gated delta net, and how they are drawn: such that whatever a wrong kernel does shows in some row.

Queries are partly along their keys (`ALONG`), so the newest token weighs in its own output and a token that is lost or counted
twice moves it by a third. Keys and queries are about sqrt(K) long, and a quarter of them a 16th of that, so a kernel that does not
normalise them, or not short ones, is far off. Every other value head forgets fast, a quarter of its state and more at each token,
and nearly all of it at one in four: by exp(-5) to exp(-20), so products of many decays are 0 and their inverses infinite. The heads
between keep theirs over a whole prompt, so a state that a chunk loses shows there to the end. beta is between 0.18 and 0.82, so
that every token counts; at a quarter of the tokens of slow heads it is nearly 0 or 1. The pool has its slots in random order, and
slots that no request has (`SPARE_SLOTS`), whose states are as large as the others.
"""

# B = batch_size, T = tokens of all requests, H = heads of queries and keys, HV = value heads, N = slots of the pool

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from kernels.contract.runner import Restored
from kernels.inputs.copies import InputCopy
from kernels.inputs.guards import guarded_output
from kernels.inputs.tensors import OwnInputs, generator_of, turned
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.dtypes import torch_dtype
from kernels.routines.gated_delta.problem import GATE_DTYPE, kept_states, num_slots

ALONG = 0.5  # cosine of a query and its token's key
FORGOTTEN = 0.3  # of the logarithm of a fast head's state, at a token
LEFT_OVER = 2.0  # of a slow head's, over a whole prompt
RARE = 0.25  # of tokens and heads: those with
STRONG = (5.0, 20.0)  # of the logarithm of a fast head's state that is forgotten,
FAR = (4.0, 8.0)  # logits of beta of a slow head, of either sign,
SHORT = 1 / 16  # of the usual length of a key, and of a query; a power of two, which rounds nothing


@dataclass(frozen=True)
class DeltaInputs(OwnInputs):
    """What every backend reads. What a call overwrites it keeps elsewhere: `pool` stays as it is drawn."""

    problem: Problem
    q: Tensor  # [T, H, K], not normalised
    k: Tensor  # [T, H, K], not normalised
    v: Tensor  # [T, HV, V]
    a: Tensor  # [T, HV], of which the decay is made
    b: Tensor  # [T, HV], of which beta is made
    a_log: Tensor  # fp32 [HV]
    dt_bias: Tensor  # fp32 [HV]
    pool: Tensor  # [N, HV, V, K], the states before the call
    slots: Tensor  # int32 [B], the slot of each request

    @property
    def decay(self) -> Tensor:
        """log(alpha), fp32 [T, HV]: what is left of the state at each token is exp of it. As in Mamba-2 and Qwen3-Next."""
        return -self.a_log.exp() * torch.nn.functional.softplus(self.a.float() + self.dt_bias)

    @property
    def beta(self) -> Tensor:
        """fp32 [T, HV]: how far the state is moved to the new value."""
        return self.b.float().sigmoid()

    @property
    def scale(self) -> float:
        """Of the queries."""
        return 1.0 / math.sqrt(self.problem.head_dim_qk)

    def own_states(self, by_request: bool = False, dtype: str | None = None) -> Restored:
        """The states before the call in memory of its own, between guards: the pool, or those of the requests in their order."""
        rows = self.slots if by_request else None
        shape = (len(self.pool if rows is None else rows), *self.pool.shape[1:])
        found = Restored(guarded_output(shape, dtype or self.problem.kv_dtype, self.device), self.pool, rows)
        found.bring_back()
        return found

    def by_request(self, rows: Tensor) -> Tensor:
        """A tensor [T, ...] as [B, s_qo, ...]."""
        return rows.view(self.problem.batch_size, self.problem.s_qo, *rows.shape[1:])

    def empty_output(self) -> Tensor:
        """[T, HV, V], full of NaN, between guards."""
        p = self.problem
        return guarded_output((p.num_q_tokens, p.num_kv_heads, p.head_dim_vo), p.output_dtype, self.device)

    def empty_states(self) -> Tensor:
        """[B, kept, HV, V, K] of the state's dtype, for states that stand beside the pool."""
        p = self.problem
        return guarded_output((p.batch_size, kept_states(p), *self.pool.shape[1:]), p.kv_dtype, self.device)


class Gates(InputCopy):
    """What a kernel of its own makes of a and b in each layer of an engine: log(alpha), alpha and beta, fp32 [T, HV] each."""

    declared = "routine=gated_delta"

    def __init__(self, inputs: DeltaInputs) -> None:
        self._inputs = inputs
        self.decay, self.alpha, self.beta = inputs.decay, inputs.decay.exp(), inputs.beta

    def refresh(self) -> None:
        self.decay.copy_(self._inputs.decay)
        torch.exp(self.decay, out=self.alpha)
        self.beta.copy_(self._inputs.beta)


def draw(problem: Problem, device: torch.device | str) -> DeltaInputs:
    """The inputs of a problem, the same for the same seed, problem and kind of device."""
    p, tokens = problem, problem.num_q_tokens

    def empty(*shape: int, dtype: str = p.q_dtype) -> Tensor:
        return torch.empty(shape, dtype=torch_dtype(dtype), device=device)

    gates = GATE_DTYPE if p.q_dtype != "fp32" else "fp32"
    keys, values = (tokens, p.num_qo_heads, p.head_dim_qk), (tokens, p.num_kv_heads, p.head_dim_vo)
    heads, state = p.num_kv_heads, (p.num_kv_heads, p.head_dim_vo, p.head_dim_qk)
    inputs = DeltaInputs(
        p, empty(*keys), empty(*keys), empty(*values), empty(tokens, heads, dtype=gates), empty(tokens, heads, dtype=gates),
        empty(heads, dtype="fp32"), empty(heads, dtype="fp32"), empty(num_slots(p), *state, dtype=p.kv_dtype),
        empty(p.batch_size, dtype="int32"),
    )  # fmt: skip
    redraw(inputs)
    return inputs


def redraw(inputs: DeltaInputs) -> None:
    """Writes the values into their tensors again."""
    write_values(inputs, generator_of(inputs.problem, inputs.device))
    order = torch.randperm(len(inputs.pool), generator=generator_of(inputs.problem, "cpu"))
    inputs.slots.copy_(order[: inputs.problem.batch_size])


def write_values(inputs: DeltaInputs, generator: torch.Generator) -> None:
    """All but the slots of the requests."""

    def drawn(of: Tensor, low: float, high: float) -> Tensor:
        return torch.empty_like(of, dtype=torch.float32).uniform_(low, high, generator=generator)

    for tensor in (inputs.q, inputs.k, inputs.v, inputs.a, inputs.pool):
        tensor.normal_(generator=generator)
    inputs.q.copy_(ALONG * inputs.k.float() + (1 - ALONG**2) ** 0.5 * inputs.q.float())
    for rows in (inputs.q, inputs.k):
        rows.mul_(torch.where(drawn(rows[..., :1], 0, 1) < RARE, SHORT, 1.0))
    inputs.dt_bias.normal_(-1.0, 0.2, generator=generator)  # softplus of it, with a, is 0.4 at the mean
    slow = min(FORGOTTEN, LEFT_OVER / inputs.problem.s_qo) / 0.4
    rate = drawn(inputs.a_log, 0.8, 1.6) * (FORGOTTEN / 0.4)
    rate[1::2] *= slow / (FORGOTTEN / 0.4)
    inputs.a_log.copy_(rate.log())
    inputs.b.copy_(drawn(inputs.b, -1.5, 1.5))  # a small beta would hide its token
    rare = drawn(inputs.a, 0, 1) < RARE
    fast = torch.arange(inputs.a.shape[1], device=inputs.device) % 2 == 0
    inputs.a.copy_(torch.where(rare & fast, drawn(inputs.a, *STRONG) / rate, inputs.a))
    inputs.b.copy_(torch.where(rare & ~fast, drawn(inputs.b, *FAR) * inputs.b.float().sign(), inputs.b))


def other_queries(inputs: DeltaInputs) -> AbstractContextManager[None]:
    """Queries and keys with their elements in reverse order, and gates of opposite logits, while it lasts."""
    return turned(lambda: (inputs.q.copy_(inputs.q.flip(-1)), inputs.k.copy_(inputs.k.flip(-1)), inputs.a.neg_(), inputs.b.neg_()))


def other_cache(inputs: DeltaInputs) -> AbstractContextManager[None]:
    """Values and states of opposite signs while it lasts: outputs and states then have opposite signs too."""
    return turned(lambda: (inputs.v.neg_(), inputs.pool.neg_()))


def copied_tokens(inputs: DeltaInputs, copied: Sequence[Sequence[int]]) -> AbstractContextManager[None]:
    """Values and states have opposite signs in one element of each request and value head, `copied` [B, HV], for a while.

    No element of a value meets another one, so the same elements of outputs and states turn their signs, and no others.
    Of no elements: all heads stand in reverse order, keys, queries and states have their elements along keys so, and the slots of
    the pool. Then outputs and states are those of before in this order (`reordered`).
    """
    if not len(copied):
        return turned(partial(_reorder, inputs))
    signs = torch.ones(*inputs.by_request(inputs.v)[:, 0].shape, dtype=inputs.v.dtype, device=inputs.device)
    signs.scatter_(-1, torch.tensor(copied, device=inputs.device)[..., None], -1.0)
    values, rows = inputs.by_request(inputs.v), inputs.slots.long()

    def turn() -> None:
        values.mul_(signs[:, None])
        inputs.pool[rows] = inputs.pool[rows] * signs[..., None].to(inputs.pool.dtype)

    return turned(turn)


def reordered(out: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """An output [T, HV, V] and states [B, S, HV, V, K] as they are while all is in reverse order."""
    return out.flip(1), states.flip(2, 4)


def _reorder(inputs: DeltaInputs) -> None:
    """Undoes itself if it is called again."""
    heads, keys, alone = (inputs.v, inputs.a, inputs.b), (inputs.q, inputs.k), (inputs.a_log, inputs.dt_bias)
    for tensors, dims in ((keys, (1, 2)), (heads, (1,)), (alone, (0,)), ((inputs.pool,), (0, 1, 3))):
        for tensor in tensors:
            tensor.copy_(tensor.flip(dims))
    inputs.slots.neg_().add_(len(inputs.pool) - 1)

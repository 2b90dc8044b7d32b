"""The right answer of a gated delta net, from its definition as a recurrence in fp32, and how far off rounding may leave a kernel.

S. Yang, J. Kautz and A. Hatamizadeh, Gated Delta Networks: Improving Mamba2 with Delta Rule, 2024 (arXiv 2412.06464), equation 10:

    S_t = alpha_t S_(t-1) (1 - beta_t k_t k_t^T) + beta_t v_t k_t^T        o_t = S_t q_t

with S [V, K], keys and queries of length 1, queries then scaled by 1/sqrt(K), alpha = exp(-exp(A) softplus(a + d)) and
beta = sigmoid(b), as in Qwen3-Next. The length of a vector is taken of its squares plus 1e-6, as there.

What rounding may do to a row, an output [V] or a row [K] of a state, relative to its length:

- Its own rounding as it is stored, at most the unit roundoff u of its dtype.
- In a kernel that multiplies in `compute_dtype`: keys and queries are rounded to it, the state before a product, the value that is
  left to add, and in kernels in chunks the decayed products of keys and the inverse that is made of them. Each is as large as the
  row in its effect. Emulated (`tests/kernels/routines/test_gated_delta.py`), they leave 0.9 u at the root mean square, and 2 u in
  the worst of 10^4 rows. `PRODUCTS` leaves room for the worst of 10^7 rows, and for kernels that round once or twice more.
- In fp32, exponentials and roots of the GPU, `APPROXIMATE` at a token, which add up as independent errors do.
"""

# B = batch_size, T = tokens of all requests, H = heads of queries and keys, HV = value heads, S = states that are kept

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kernels.check.answer import Answer
from kernels.check.oracle import exact
from kernels.inputs.checksums import sum_of_words
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.arithmetic import Arithmetic
from kernels.problem.dtypes import UNIT_ROUNDOFF
from kernels.routines.gated_delta.inputs import DeltaInputs
from kernels.routines.gated_delta.problem import kept_states

EPSILON = 1e-6  # added to the squares of a key or a query
PRODUCTS = 8.0  # unit roundoffs of a product's operands, in the worst row
APPROXIMATE = 2.0**-15
ROUNDED, SHARE = 0.75, 0.3  # of a row's own rounding, and of what products round: root mean squares of many rows


@dataclass(frozen=True)
class DeltaAnswer(Answer):
    """The right output, `out` [T, HV, V], and states fp32 [B, S, HV, V, K]."""

    states: Tensor = field(kw_only=True)

    def checksum(self) -> Tensor:
        return torch.stack([sum_of_words(rows, of_vectors=True) for rows in (self.out, self.states)]).sum()


def normalised(rows: Tensor) -> Tensor:
    """fp32 rows of length 1."""
    wide = rows.float()
    return wide / (wide.square().sum(-1, keepdim=True) + EPSILON).sqrt()


def step(state: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """The state [..., V, K] behind a token of key [..., K], value [..., V] and gates [...]."""
    decayed = alpha[..., None, None] * state
    missing = v - (decayed @ k[..., None]).squeeze(-1)
    return decayed + (beta[..., None] * missing)[..., None] * k[..., None, :]


@dataclass(frozen=True)
class Terms:
    """What the recurrence adds up, fp32, by request and token: the states before it, and of each token key, query, value, gates."""

    state: Tensor  # [B, HV, V, K]
    q: Tensor  # [B, s_qo, HV, K]
    k: Tensor
    v: Tensor  # [B, s_qo, HV, V]
    alpha: Tensor  # [B, s_qo, HV]
    beta: Tensor


def terms_of(inputs: DeltaInputs) -> Terms:
    group = inputs.problem.num_kv_heads // inputs.problem.num_qo_heads
    q, k = (inputs.by_request(normalised(rows)).repeat_interleave(group, 2) for rows in (inputs.q, inputs.k))
    gates = (inputs.by_request(gate) for gate in (inputs.decay.exp(), inputs.beta))
    return Terms(inputs.pool[inputs.slots.long()].float(), q * inputs.scale, k, inputs.by_request(inputs.v.float()), *gates)


def run(terms: Terms, kept: int) -> tuple[Tensor, Tensor]:
    """Outputs [B, s_qo, HV, V] and the last `kept` states [B, S, HV, V, K], one token after the other."""
    state, outs, states = terms.state, [], []
    with exact():
        for t in range(terms.q.shape[1]):
            state = step(state, terms.k[:, t], terms.v[:, t], terms.alpha[:, t], terms.beta[:, t])
            outs.append((state @ terms.q[:, t, ..., None]).squeeze(-1))
            if t >= terms.q.shape[1] - kept:
                states.append(state)
    return torch.stack(outs, 1), torch.stack(states, 1)


def answer(inputs: DeltaInputs) -> DeltaAnswer:
    """The output of the problem and its states. Raises torch.OutOfMemoryError if the device is full."""
    out, states = run(terms_of(inputs), kept_states(inputs.problem))
    rows = out.flatten(0, 1)
    none = rows.new_zeros(1)
    return DeltaAnswer(rows, none, none, none, states=states)


def mean_tolerance(problem: Problem, dtype: str, how: Arithmetic, rows: int) -> float:
    """Largest root mean square of the relative errors of so many rows of a value head, of an output or a state.

    Right kernels on an H200 (120 points, to 16,384 tokens) had up to 0.44 u of a state's rounding to bf16, and in chunks 0.17 of
    what is granted to products, where `SHARE` allows 0.3 of many rows.
    """
    products = tolerance(problem, dtype, how) - UNIT_ROUNDOFF[dtype]
    return ROUNDED * UNIT_ROUNDOFF[dtype] + (SHARE + (1 - SHARE) / math.sqrt(rows)) * products


def tolerance(problem: Problem, dtype: str, how: Arithmetic) -> float:
    """Largest relative error of a row that is stored in `dtype`."""
    approximate = APPROXIMATE * math.sqrt(problem.s_qo)
    return UNIT_ROUNDOFF[dtype] + PRODUCTS * UNIT_ROUNDOFF[how.compute_dtype] + approximate

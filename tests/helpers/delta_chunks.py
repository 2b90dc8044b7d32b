"""A gated delta net in chunks of tokens, as kernels compute prompts, with what they round."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.routines.gated_delta.inputs import DeltaInputs


def in_chunks(
    inputs: DeltaInputs, state: Tensor, size: int, rounded: Callable[[Tensor], Tensor] = lambda x: x
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, HV, V] and the state behind each chunk [B, chunks, HV, V, K], from the states before [B, HV, V, K], fp32.

    With decays d of a chunk, added up from its begin, each token's missing value is U - W S^T, where (U, W) = (1 + A)^-1
    (beta v, beta exp(d) k) and A_ij = beta_i exp(d_i - d_j) k_i.k_j for j < i. `rounded` is what a kernel does to each factor.
    """
    group = inputs.problem.num_kv_heads // inputs.problem.num_qo_heads

    def heads(rows: Tensor) -> Tensor:  # [B, HV, T, ...]
        return inputs.by_request(rows).transpose(1, 2)

    def unit(rows: Tensor) -> Tensor:
        wide = rows.float()
        return rounded(wide * (wide.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).repeat_interleave(group, 1)

    rows = unit(heads(inputs.q)), unit(heads(inputs.k)), *map(heads, (inputs.v.float(), inputs.beta, inputs.decay))
    outs, states = [], []
    for start in range(0, inputs.problem.s_qo, size):
        q, k, v, beta, decay = (t[:, :, start : start + size] for t in rows)
        d, beta, one = decay.cumsum(-1)[..., None], beta[..., None], torch.eye(q.shape[2], device=q.device)
        between = (d - d.transpose(-1, -2)).tril().exp().tril()  # [B, HV, C, C]
        a = (beta * between * (k @ k.transpose(-1, -2))).tril(-1)
        inverse = rounded(torch.linalg.solve_triangular(a + one, one.expand_as(a), upper=False))
        u, w = inverse @ rounded(beta * v), inverse @ rounded(beta * d.exp() * k)
        missing = rounded(u) - rounded(w) @ rounded(state).transpose(-1, -2)
        inside = rounded(between * (q @ k.transpose(-1, -2))) @ rounded(missing)
        outs.append((d.exp() * (q @ rounded(state).transpose(-1, -2)) + inside) * inputs.scale)
        left, last = (d[:, :, -1:] - d).exp(), d[:, :, -1:].exp()
        state = last * state + rounded(left * missing).transpose(-1, -2) @ k
        states.append(state)
    return torch.cat(outs, 2).transpose(1, 2), torch.stack(states, 1)

"""The error that all rows of a KV head have in common if a tensor core multiplies in 8 bits: it cuts each product off towards zero.

Such a core adds up 32 products and the sum of before. It aligns them to the largest of these and keeps few digits of each. So a
product of a probability and a value loses half of the last digit on average, in the direction of its own sign. Probabilities are
positive, so this is the sign of the value, in every row alike. The error lies along t, the sum over keys of the signs of values:
t is the same for all rows that see the same keys. docs/correctness.md has the measurement and the emulation.
"""

# M = requests of equal lengths times stored KV heads, R = rows of a KV head, D = head_dim_vo

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from kernels.check.estimates import TINY, Rows

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.check.estimates import OutputErrors, RightRows
    from kernels.inputs import Inputs

ELEMENTS_AT_ONCE = 2**24  # of values whose signs are added up at once


def without_cut_products(errors: OutputErrors, rows: Rows) -> tuple[Rows, Tensor]:
    """The rows without the part of their error that lies along t, and how large that part is [M, 1].

    Independent noise loses 1 / D of its size, and so does the change by a lost key, whose value leans towards t only by chance.
    The part is given as the factor by which it would raise the variance of a key's `a` over b, if all rows weighed the key alike.
    In units of the noise of an element, z is a row's part: by Cauchy's inequality the factor is at most sum(z^2) / D. Of
    independent noise each z^2 is 1 on average, and that is taken off.
    """
    right = rows.right
    key = ("signs of values", right.requests, right.tokens)
    along = errors.answer.kept(key, lambda: _direction(errors.inputs, right))[:, None]  # [M, 1, D]
    part = (rows.error * along).sum(-1, keepdim=True)
    z_squared = part.square() / rows.weight.clamp_min(TINY)
    shown = (z_squared - 1).sum(1).clamp_min(0.0) / along.shape[-1]
    return replace(rows, error=rows.error - part * along), shown


def _direction(inputs: Inputs, rows: RightRows) -> Tensor:
    """t as a unit vector, fp32 [M, D], from the keys that the last of these rows sees."""
    import torch

    heads = len(rows.requests) * inputs.problem.stored_kv_heads
    total = torch.zeros(heads, inputs.problem.value_dim, device=inputs.device)
    for keys in _chunks(inputs, rows):
        _, values = inputs.tokens_of(rows.requests, keys.start, keys.stop)  # [N, keys, K, D]
        total += values.to(torch.float16).sign().sum(1, dtype=torch.float32).flatten(0, 1)
    size: Tensor = total.norm(dim=-1, keepdim=True)
    return total / size.clamp_min(TINY)


def _chunks(inputs: Inputs, rows: RightRows) -> Iterator[range]:
    p, request = inputs.problem, rows.requests[0]
    length, before = p.kv_lens[request], p.kv_lens[request] - p.q_lens[request]
    first = 0 if p.window is None else max(0, before + rows.tokens.start - p.window + 1)
    stop = before + rows.tokens.stop if p.mask == "causal" else length
    step = max(1, ELEMENTS_AT_ONCE // (len(rows.requests) * p.stored_kv_heads * p.value_dim))
    for at in range(first, stop, step):
        yield range(at, min(at + step, stop))

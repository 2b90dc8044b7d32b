"""Errors that all rows of a KV head have in common and that are no fault of a key: the gain of the output, and cut products.

They are taken out of the rows before keys are weighed, and judged by themselves or granted as noise.
"""

# M = requests of equal lengths times stored KV heads, R = rows of a KV head, D = head_dim_vo

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from kernels.check.estimates import TINY, KeyWeights, OutputErrors, RightRows, Rows
from kernels.inputs import Inputs
from kernels.inputs.masks import seen_to
from kernels.lazy import Tensor, torch

# The variance of a may exceed b by this factor, since rows that share a key have errors in common. One H200 showed up to 2.5. What
# exceeds it is no rounding, unless the gain or the signs of values show what is cut off towards zero: a fault, too, moves all rows
# together.
MAX_CORRELATED = 3.0
# What such an accumulator loses beside its gain, in the variance of its gain. Derived in docs/correctness_numbers.md.
BESIDE_GAIN = 9 * math.pi / 16 - 1
# What cut products lose beside the signs of values, in parts of what lies along these: emulations showed 0.23 and 0.25.
BESIDE_SIGNS = 1 / 3
SIGNED = {1: "int8", 2: "int16", 4: "int32"}  # a number as stored has the sign of these bits; -0 counts as negative
ELEMENTS_AT_ONCE = 2**26  # of values whose signs are added up at once


def gain(all_rows: list[Rows]) -> KeyWeights:
    """By how much the output is too large as a whole: the regression of the error on the right output, [M, 1]."""
    of_a = [(rows.error * rows.right.out).sum((1, 2)) for rows in all_rows]
    of_b = [(rows.weight * rows.right.out.square()).sum((1, 2)) for rows in all_rows]
    a, b = (found[0] if len(found) == 1 else torch.stack(found).sum(0) for found in (of_a, of_b))
    return KeyWeights("gain", all_rows[0].right.requests, a[:, None], b[:, None], b[:, None])


def cleared(errors: OutputErrors, all_rows: list[Rows], whole: KeyWeights) -> tuple[list[Rows], Tensor]:
    """The rows without errors that all rows of a KV head have and that are no fault of a key: the gain, and that of cut products.

    The size of the latter, [M, 1], is the factor by which it would raise the variance of a over b.
    """
    ungained = [without_gain(rows, whole) for rows in all_rows]
    if not errors.in_8_bits:
        return ungained, torch.zeros_like(whole.a)
    found = [without_cut_products(errors, rows) for rows in ungained]
    return [rows for rows, _ in found], torch.stack([size for _, size in found]).sum(0)


def most_correlated(inputs: Inputs, whole: KeyWeights, cut: Tensor) -> Tensor:
    """[M, 1]: the largest factor by which errors that rows have in common raise the variance of a over b, in a right kernel.

    A common error of the size of the gain's would raise it by c^2 B / D, for the gain's c and B, if all rows' outputs were equal.
    One of the size that was found along the signs of values would raise it by `cut`. A lost key hardly moves either, so it does not
    buy itself a larger factor.
    """
    of_gain = whole.a.square() / whole.b.clamp_min(TINY) / inputs.problem.value_dim
    return MAX_CORRELATED + BESIDE_GAIN * of_gain + BESIDE_SIGNS * cut


def without_gain(rows: Rows, whole: KeyWeights) -> Rows:
    """The rows without the part of their error that `whole` explains: all rows of a head have it, so it says nothing of a key."""
    c = (whole.a / whole.b.clamp_min(TINY))[..., None]  # [M, 1, 1]
    return replace(rows, error=rows.error - c * rows.weight * rows.right.out)


# A tensor core that multiplies in 8 bits cuts each product off towards zero, so all rows of a KV head have an error in common. It
# adds up 32 products and the sum of before, aligns them to the largest of these and keeps few digits of each. So a product of a
# probability and a value loses half of the last digit on average, in the direction of its own sign. Probabilities are positive,
# so this is the sign of the value, in every row alike. The error lies along t, the sum over keys of the signs of values: t is the
# same for all rows that see the same keys. docs/correctness_numbers.md has the measurement and the emulation.
# M = requests of equal lengths times stored KV heads, R = rows of a KV head, D = head_dim_vo
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
    heads = len(rows.requests) * inputs.problem.stored_kv_heads
    total = torch.zeros(heads, inputs.problem.value_dim, device=inputs.device)
    for keys in _chunks_of_rows(inputs, rows):
        values = inputs.values_of(rows.requests, keys.start, keys.stop)  # [N, keys, K, D]
        total += values.view(getattr(torch, SIGNED[values.element_size()])).sign().sum(1, dtype=torch.int32).flatten(0, 1)
    size: Tensor = total.norm(dim=-1, keepdim=True)
    return total / size.clamp_min(TINY)


def _chunks_of_rows(inputs: Inputs, rows: RightRows) -> Iterator[range]:
    p, request = inputs.problem, rows.requests[0]
    before = p.kv_lens[request] - p.q_lens[request]
    first = 0 if p.window is None else max(0, before + rows.tokens.start - p.window + 1)
    stop = seen_to(p, request, rows.tokens)
    step = max(1, ELEMENTS_AT_ONCE // (len(rows.requests) * p.stored_kv_heads * p.value_dim))
    for at in range(first, stop, step):
        yield range(at, min(at + step, stop))

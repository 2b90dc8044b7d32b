"""Estimates for single pairs of a query and a key near the edges of the mask, and for the size of the whole output."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernels.check.estimates import NEARLY_ALL, TINY, KeyWeights, RightRows, Rows, grid_of, keys_and_values, probabilities
from kernels.inputs.masks import hidden

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.check.estimates import OutputErrors
    from kernels.inputs import Inputs

# Of the variance of a pair's `a` in MLA. Values are the first part of keys there, and draft keys are planted along queries. So the
# errors of a row lie along a few directions, those of its values, and are not spread over all elements. 324 right outputs in
# fp8_e4m3 showed up to 1.8.
OF_KEYS_AS_VALUES = 3.0
# Of b as well: the most that the variance of a pair's `a` may be elsewhere. A right kernel's error knows nothing of the value of a
# light key, but may lie along the row's own output: where logits are rounded, the error of a row with one heavy key does. That part
# of `a` is known. Its square counts as variance up to this bound, since a wrong mask moves a row along its output too.
MAX_ALONG_OUTPUT = 3.0


@dataclass(frozen=True)
class _Effects:
    """What a wrong mask would do to the rows, for each of some keys. All backends of a problem have it in common."""

    v: Tensor  # [M, D, C]
    of_pair: Tensor  # [M, R, C]: the change of a row, in parts of v - o
    squared: Tensor  # [M, R, C]
    gap: Tensor  # [M, R, C]: |v - o|^2
    undefined: Tensor  # bool [M, Q, C]: without this key some row is undefined, as its error shows


def weigh_pairs(errors: OutputErrors, rows: Rows) -> Iterator[KeyWeights]:
    """Each query of the requests' end with each draft key, and under a window with each key at its edge, visible or hidden."""
    inputs, p, right = errors.inputs, errors.inputs.problem, rows.right
    length = p.kv_lens[right.requests[0]]
    ranges = [range(length - len(right.tokens), length)]
    if p.window is not None and (stop := length - p.window + 1) > 0:
        ranges.append(range(max(0, stop - len(right.tokens) - 1), min(stop, ranges[0].start)))
    for keys in ranges:
        if len(keys):
            key = ("effects", right.requests, right.tokens, keys, errors.how, errors.least is None)
            effects = errors.answer.kept(key, functools.partial(_effects, inputs, right, keys))
            yield _pairs(inputs, rows, keys, effects)


def _effects(inputs: Inputs, rows: RightRows, keys: range) -> _Effects:
    """Here the effect is exact: a visible key that is lost changes the row by -p / (1 - p) * (v - o), a hidden one that is seen by
    p / (1 + p) * (v - o). So c is 0, or 1 if the mask is wrong there.
    """
    import torch

    k, v = (t.float() for t in keys_and_values(inputs, rows.requests, keys))
    grid = grid_of(inputs, rows, keys)
    prob = probabilities(inputs, rows, k)
    effect = torch.where(prob < NEARLY_ALL, -prob / (1 - prob), 0.0)
    unseen = hidden(inputs.problem, rows.requests[0], rows.tokens, keys, inputs.device)
    if unseen is not None:
        effect = torch.where(unseen, (prob / (1 + prob)).view(grid), effect.view(grid)).flatten(1, 2)
    gap = v.square().sum(-1)[:, None] - 2 * rows.out @ v.transpose(1, 2) + rows.size
    undefined = (prob >= NEARLY_ALL).view(grid).any(1)
    return _Effects(v.transpose(1, 2), effect, effect.square(), gap.clamp_min(0), undefined)


def _pairs(inputs: Inputs, rows: Rows, keys: range, effects: _Effects) -> KeyWeights:
    import torch

    right, grid = rows.right, grid_of(inputs, rows.right, keys)
    own = (rows.error * right.out).sum(-1, keepdim=True)
    a = (effects.of_pair * (rows.error @ effects.v - own)).view(grid).sum(1)
    along_output = (effects.of_pair * own).view(grid).sum(1)
    b = (rows.weight * effects.squared * effects.gap).view(grid).sum(1).masked_fill_(effects.undefined, torch.inf)
    most = b * (OF_KEYS_AS_VALUES if inputs.problem.latent else MAX_ALONG_OUTPUT)
    variance = most if inputs.problem.latent else (b + along_output.square()).minimum(most)
    of_fault = torch.where(b.isfinite(), most - variance, 0.0)
    return KeyWeights("pair", right.requests, a, b, variance, keys.start, right.tokens.start, of_fault=of_fault)


def gain(all_rows: list[Rows]) -> KeyWeights:
    """By how much the output is too large as a whole: the regression of the error on the right output, [M, 1]."""
    import torch

    a, b = (
        found[0] if len(found) == 1 else torch.stack(found).sum(0)
        for found in (
            [(rows.error * rows.right.out).sum((1, 2)) for rows in all_rows],
            [(rows.weight * rows.right.out.square()).sum((1, 2)) for rows in all_rows],
        )
    )
    return KeyWeights("gain", all_rows[0].right.requests, a[:, None], b[:, None], b[:, None])


def without_gain(rows: Rows, whole: KeyWeights) -> Rows:
    """The rows without the part of their error that `whole` explains. That part is judged by itself, and says nothing of one key.

    All rows of a KV head have it, and their outputs are alike. So it would stand in every estimate of the head, and grow with rows
    where independent noise averages out.
    """
    c = (whole.a / whole.b.clamp_min(TINY))[..., None]  # [M, 1, 1]
    return replace(rows, error=rows.error - c * rows.weight * rows.right.out)

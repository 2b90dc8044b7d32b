"""Weighs each pair of a query token and a draft key near it: an estimate of how wrong the mask is there, all along a prompt.

Under a window, pairs with keys at its edge are weighed too. `weighing.py` explains c = a / b.
"""

# M = requests of equal lengths times stored KV heads, G = query heads of a KV head, Q = query tokens of a part, R = G * Q rows,
# C = keys, D = head_dim_vo

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from kernels.check.estimates import (
    NEARLY_ALL,
    KeyWeights,
    Kind,
    OutputErrors,
    RightRows,
    Rows,
    grid_of,
    keys_and_values,
    probabilities,
)
from kernels.inputs import Inputs
from kernels.inputs.draft_keys import first_near
from kernels.inputs.masks import hidden
from kernels.inputs.sentinel_logit import PLANTED
from kernels.lazy import Tensor, torch
from kernels.problem import Problem

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
    """Each of these queries with the draft keys near it, and under a window with each key at its edge, visible or hidden."""
    inputs, right = errors.inputs, rows.right
    for kind, keys in _keys_of(inputs.problem, right.requests[0], right.tokens).items():
        if len(keys):
            key = ("effects", right.requests, right.tokens, keys, errors.how, errors.least is None)
            effects = errors.answer.kept(key, partial(_effects, inputs, right, keys))
            yield _pairs(inputs, rows, kind, keys, effects)


def _keys_of(p: Problem, request: int, tokens: range) -> dict[Kind, range]:
    """The keys with which these query tokens are weighed: half of `PLANTED` draft keys before and behind them, and at the edge."""
    length, q_len = p.kv_lens[request], p.q_lens[request]
    before, beside = length - q_len, PLANTED // 2 if q_len > PLANTED else 0
    drafts = range(max(0, before + max(0, tokens.start - beside)), before + min(q_len, tokens.stop + beside))
    if p.window is None:
        return {"pair": drafts}
    stop = before + tokens.stop - p.window + 1
    return {"pair": drafts, "edge": range(max(0, stop - len(tokens) - 1), min(stop, drafts.start))}


def near(q_len: int, tokens: range, keys: range, device: torch.device) -> Tensor:
    """Bool [Q, C]: the pairs of query tokens and draft keys, counted from the draft's first, that are looked at and planted."""
    own = torch.arange(keys.start, keys.stop, device=device)
    behind = torch.arange(tokens.start, tokens.stop, device=device)[:, None] - first_near(own, q_len)
    return (behind >= 0) & (behind < PLANTED)


def _effects(inputs: Inputs, rows: RightRows, keys: range) -> _Effects:
    """Here the effect is exact: a visible key that is lost changes the row by -p / (1 - p) * (v - o), a hidden one that is seen by
    p / (1 + p) * (v - o). So c is 0, or 1 if the mask is wrong there.
    """
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


def _pairs(inputs: Inputs, rows: Rows, kind: Kind, keys: range, effects: _Effects) -> KeyWeights:
    right, grid = rows.right, grid_of(inputs, rows.right, keys)
    own = (rows.error * right.out).sum(-1, keepdim=True)
    a = (effects.of_pair * (rows.error @ effects.v - own)).view(grid).sum(1)
    along_output = (effects.of_pair * own).view(grid).sum(1)
    b = (rows.weight * effects.squared * effects.gap).view(grid).sum(1).masked_fill_(effects.undefined, torch.inf)
    most = b * (OF_KEYS_AS_VALUES if inputs.problem.latent else MAX_ALONG_OUTPUT)
    variance = most if inputs.problem.latent else (b + along_output.square()).minimum(most)
    of_fault = torch.where(b.isfinite(), most - variance, 0.0)
    return KeyWeights(kind, right.requests, a, b, variance, keys.start, right.tokens.start, of_fault=of_fault)

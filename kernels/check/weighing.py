"""Estimates the weight of each key in the output: a regression of its error on what a lost or doubled key would change.

Write p for a key's probability, v for its value, o for the right output of a row, and e for the error of the kernel's row.
A kernel that counts the key 1 + c times is off by c * p * (v - o), up to terms in p^2. So c is estimated over all rows that read
the key as A / B, with

    A = sum of p * <e, v - o> / s^2        B = sum of p^2 * |v - o|^2 / s^2

where s^2 is the variance of the row's rounding noise for each element. A right kernel has c = 0 with a standard error of
1 / sqrt(B). A lost key has c = -1, a doubled one c = +1. The same holds for any set of keys, with the sum of their p * (v - o).
This is least squares with known variances (the Gauss-Markov theorem), that is, a matched filter for each fault.
"""

# N = requests of equal lengths, K = stored KV heads, M = N * K, R = rows of a KV head, C = keys of a chunk, D = head_dim_vo
from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.check import fused
from kernels.check.estimates import (
    MAX_BLOCK,
    NEARLY_ALL,
    OF_FAULT,
    ROWS_AT_ONCE,
    TINY,
    KeyWeights,
    Levels,
    OutputErrors,
    RightRows,
    Rows,
    beyond_faults,
    grid_of,
    keys_and_values,
    probabilities,
    rows_of,
    weighed_parts,
)
from kernels.check.oracle import exact_for_16_bits
from kernels.inputs import Inputs
from kernels.inputs.masks import hidden

UNIT = 4  # keys of the smallest block; any 2n - 1 keys in a row hold an aligned block of n
CHUNK_BYTES = 256 * 2**20  # of the largest temporary tensor in fp32
# Requests are weighed together up to this many bytes of it, so that a GPU waits less for Python: of 128 requests of MLA on an H200,
# weighed one by one, a judgement took 0.7 s. It takes six to eight such tensors, and a sixteenth of the free memory leaves as much
# again.
GROUP_BYTES, SHARE_OF_FREE = 2**31, 16
PAIRED = 64  # last query tokens of a request whose pairs with draft keys are tested one by one
# The variance of a may exceed b by this factor, since rows that share a key have errors in common. One H200 showed up to 2.5. What
# exceeds it is no rounding, unless the gain or the signs of values show what is cut off towards zero: a fault, too, moves all rows
# together.
MAX_CORRELATED = 3.0
# What such an accumulator loses beside its gain, in the variance of its gain. Derived in docs/correctness.md.
BESIDE_GAIN = 9 * math.pi / 16 - 1
# What cut products lose beside the signs of values, in parts of what lies along these: emulations showed 0.23 and 0.25.
BESIDE_SIGNS = 1 / 3
# Of the variance of a pair's `a` in MLA. Values are the first part of keys there, and draft keys are planted along queries. So the
# errors of a row lie along a few directions, those of its values, and are not spread over all elements. 324 right outputs in
# fp8_e4m3 showed up to 1.8.
OF_KEYS_AS_VALUES = 3.0
# Of b as well: the most that the variance of a pair's `a` may be elsewhere. A right kernel's error knows nothing of the value of a
# light key, but may lie along the row's own output: where logits are rounded, the error of a row with one heavy key does. That part
# of `a` is known. Its square counts as variance up to this bound, since a wrong mask moves a row along its output too.
MAX_ALONG_OUTPUT = 3.0
ELEMENTS_AT_ONCE = 2**24  # of values whose signs are added up at once


def weigh(errors: OutputErrors) -> Iterator[KeyWeights]:
    """Estimates for every request: single keys, blocks of 4, 8, ... keys, each pair of query and draft key, and the gain."""
    inputs = errors.inputs
    for requests in _of_equal_lengths(inputs):
        q_len = inputs.problem.q_lens[requests[0]]
        all_rows = [rows_of(errors, requests, part) for part in weighed_parts(inputs.problem, q_len)]
        last = all_rows[0] if q_len <= PAIRED else rows_of(errors, requests, range(q_len - PAIRED, q_len))
        whole = gain(all_rows)
        cleared, common = _cleared(errors, all_rows, whole)
        with exact_for_16_bits():
            yield from _of_blocks(inputs, cleared, _most_correlated(inputs, whole, common))
            yield from weigh_pairs(errors, cleared[0] if last is all_rows[0] else _cleared(errors, [last], whole)[0][0])
        yield whole


def _cleared(errors: OutputErrors, all_rows: list[Rows], whole: KeyWeights) -> tuple[list[Rows], Tensor]:
    """The rows without errors that all rows of a KV head have and that are no fault of a key: the gain, and that of cut products.

    The size of the latter, [M, 1], is the factor by which it would raise the variance of a over b.
    """
    cleared = [without_gain(rows, whole) for rows in all_rows]
    if not errors.in_8_bits:
        return cleared, torch.zeros_like(whole.a)
    found = [without_cut_products(errors, rows) for rows in cleared]
    return [rows for rows, _ in found], torch.stack([size for _, size in found]).sum(0)


def _most_correlated(inputs: Inputs, whole: KeyWeights, cut: Tensor) -> Tensor:
    """[M, 1]: the largest factor by which errors that rows have in common raise the variance of a over b, in a right kernel.

    A common error of the size of the gain's would raise it by c^2 B / D, for the gain's c and B, if all rows' outputs were equal.
    One of the size that was found along the signs of values would raise it by `cut`. A lost key hardly moves either, so it does not
    buy itself a larger factor.
    """
    of_gain = whole.a.square() / whole.b.clamp_min(TINY) / inputs.problem.value_dim
    return MAX_CORRELATED + BESIDE_GAIN * of_gain + BESIDE_SIGNS * cut


def _of_equal_lengths(inputs: Inputs) -> Iterator[tuple[int, ...]]:
    """Requests of equal lengths, as many at a time as memory allows. How many does not change what is found."""
    p, room = inputs.problem, 0
    for (q_len, kv_len), requests in p.requests_by_lengths.items():
        bytes_each = kv_len * _bytes_a_key(inputs, q_len)
        if bytes_each * len(requests) > CHUNK_BYTES:  # only then: asking how much memory is free takes half a millisecond
            room = room or _group_bytes(inputs)
        at_once = max(1, min(max(room, CHUNK_BYTES) // bytes_each, fused.MAX_HEADS // p.stored_kv_heads))
        for at in range(0, len(requests), at_once):
            yield requests[at : at + at_once]


def _group_bytes(inputs: Inputs) -> int:
    """Of the largest temporary tensor, for all requests that are weighed together."""
    if inputs.device.type != "cuda":
        return CHUNK_BYTES
    unused = torch.cuda.memory_reserved(inputs.device) - torch.cuda.memory_allocated(inputs.device)
    free = torch.cuda.mem_get_info(inputs.device)[0] + unused
    return max(CHUNK_BYTES, min(GROUP_BYTES, free // SHARE_OF_FREE))


def _bytes_a_key(inputs: Inputs, q_len: int) -> int:
    """Of the largest temporary tensor, for one key of one request."""
    p = inputs.problem
    rows = p.num_qo_heads * min(q_len, ROWS_AT_ONCE)
    if fused.serves(inputs):
        return 4 * (8 * p.stored_kv_heads + -(-rows // fused.TILE))
    return 4 * max(rows, p.stored_kv_heads * p.key_dim)


def _of_blocks(inputs: Inputs, all_rows: list[Rows], most: Tensor) -> Iterator[KeyWeights]:
    """Single keys and aligned blocks, chunk by chunk of the requests' keys."""
    requests, is_fused = all_rows[0].right.requests, fused.serves(inputs)
    for keys in _chunks(inputs, requests):
        k, v = (None, None) if is_fused else keys_and_values(inputs, requests, keys)
        levels: Levels = ()
        total: Tensor | None = None
        for rows in all_rows:
            levels, found = _fused_sums(inputs, rows, keys) if k is None or v is None else _sums(inputs, rows, keys, k, v)
            total = found if total is None else total.add_(found)
        assert total is not None  # there is a row
        a, noise, own, b = total
        variance = noise.sub_(own).clamp(b, most * b)
        of_fault = (b * (OF_FAULT / inputs.problem.value_dim)).minimum(most - MAX_CORRELATED).mul_(b)
        yield KeyWeights("block", requests, a, b, variance, keys.start, levels=levels, of_fault=of_fault)


def _chunks(inputs: Inputs, requests: tuple[int, ...]) -> Iterator[range]:
    """Keys that some query sees, in chunks of whole tiles of the fused kernel: the same for one request and for several."""
    p = inputs.problem
    length, q_len = p.kv_lens[requests[0]], p.q_lens[requests[0]]
    step = max(1, CHUNK_BYTES // _bytes_a_key(inputs, q_len) // fused.TILE) * fused.TILE
    start = 0 if p.window is None else max(0, length - q_len - p.window + 1) // UNIT * UNIT
    for at in range(start, length, step):
        yield range(at, min(at + step, length))


def _sums(inputs: Inputs, rows: Rows, keys: range, k: Tensor, v: Tensor) -> tuple[Levels, Tensor]:
    """What these rows say of single keys, then of blocks that double in size: A, the variance of A by chance, A^2 / |v|^2 (the
    part of it that A itself explains) and B, in [4, M, all blocks]. Keys beyond the chunk's end count as absent.
    """
    prob = _usable(inputs, rows, keys, k)
    vv = v.float().square().sum(-1)  # [M, C]
    g = prob * vv[:, None].to(prob.dtype) * prob  # [M, R, C]
    *single, b = _of_keys(inputs, rows, prob, g, v)
    blocks = _pyramid(torch.stack((_by_unit(prob), _by_unit(g))))
    levels, found = _all_levels(single, b, [_of_blocks_in_rows(rows, blocks)])
    if inputs.problem.latent:
        found[0] += beyond_faults(rows, [prob, *(level[0] for level in blocks)])
    return levels, found


def _fused_sums(inputs: Inputs, rows: Rows, keys: range) -> tuple[Levels, Tensor]:
    """What `_sums` gives, by the kernel of `fused.py`, which reads keys and values once."""
    found, one = fused.tile_sums(inputs, rows, keys), inputs.v_scale**2
    single = [found.a, found.error_squared, found.a.square().div_(found.vv.clamp_min_(TINY))]
    if one != 1.0:  # of 16-bit caches it is 1: two passes less over numbers that fill a gigabyte at 64 requests of 131,072 tokens
        single[1:] = (t.mul_(one) for t in single[1:])
    of_blocks = [found.of_levels[..., first:stop].flatten(2) for first, stop in fused.LEVELS]
    if len(wider := _pyramid(found.of_tiles)) > 1:
        of_blocks.append(_of_blocks_in_rows(rows, wider[1:]))
    return _all_levels(single, found.b, of_blocks)


def _all_levels(single: Sequence[Tensor], b: Tensor, of_blocks: Sequence[Tensor]) -> tuple[Levels, Tensor]:
    """Puts all levels side by side. `of_blocks` has B and the largest weight in a row, [2, M, blocks], of one level or several.

    They are written where they stay: at 64 requests of 131,072 tokens a copy of one of the four sums is half a gigabyte.
    """
    keys = b.shape[-1]
    found = b.new_empty(4, b.shape[0], keys + sum(level.shape[-1] for level in of_blocks))
    for number, one in enumerate((*single, b)):
        found[number, :, :keys] = one
    levels = _pyramid(_by_unit(found[:3, :, :keys]))
    found[:3, :, keys:] = torch.cat(levels, -1)
    found[3, :, keys:] = torch.cat([level[0] for level in of_blocks], -1)
    found[3].clamp_min_(0)
    found[..., keys:] *= torch.cat([level[1] for level in of_blocks], -1) < MAX_BLOCK
    sizes = (1, *(UNIT << n for n in range(len(levels))))
    return tuple(zip(sizes, (keys, *(level.shape[-1] for level in levels)), strict=True)), found


def _of_blocks_in_rows(rows: Rows, levels: Sequence[Tensor]) -> Tensor:
    """B of blocks and their largest weight in any row, [2, M, blocks of all levels], from sums over their keys [2, M, R, blocks].

    With values that are independent of one another, a set S of keys with the weight p_S has
    |sum of p * (v - o)|^2 = (1 - 2 p_S) * g_S + p_S^2 * |o|^2, where g_S is the sum of p^2 |v|^2 over S.
    """
    prob, g = torch.cat(tuple(levels), -1)
    return torch.stack(((rows.weight * ((1 - 2 * prob) * g + prob.square() * rows.right.size)).sum(1), prob.amax(1)))


def _pyramid(level: Tensor) -> list[Tensor]:
    """Sums over blocks, then over blocks of twice as many keys, until one block holds all."""
    levels = [level]
    while levels[-1].shape[-1] > 1:
        levels.append(_halved(levels[-1]))
    return levels


def _usable(inputs: Inputs, rows: Rows, keys: range, k: Tensor) -> Tensor:
    """[M, R, C]: the probability of each visible key, 0 for one that holds half of its row or more."""
    right = rows.right
    prob = probabilities(inputs, right, k)
    unseen = hidden(inputs.problem, right.requests[0], right.tokens, keys, inputs.device)
    if unseen is not None:
        prob.view(grid_of(inputs, right, keys)).masked_fill_(unseen, 0.0)
    return torch.where(prob < MAX_BLOCK, prob, 0.0)


def _of_keys(inputs: Inputs, rows: Rows, prob: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `_sums` has of single keys, [M, C] each.

    The error knows nothing of a light key's value, which was drawn at random. So A, as a sum over values, has the variance |E|^2
    with E = sum of p * e / s^2 over rows. It says more than B, since the errors of rows that share a key are not independent.
    """
    own = (rows.error * rows.right.out).sum(-1, keepdim=True)  # <e, o> / s^2
    moved = (prob.transpose(1, 2) @ torch.cat((rows.error, own), -1).to(prob.dtype)).float()  # [M, C, D + 1]
    error, vv = moved[..., :-1], v.float().square().sum(-1).clamp_min(TINY)
    a = (error * v).sum(-1) - moved[..., -1]
    by_row = torch.cat((rows.weight, rows.weight * rows.right.size), -1).transpose(1, 2).to(prob.dtype)  # [M, 2, R]
    b = (by_row[:, :1] @ torch.addcmul(g, prob, g, value=-2)).squeeze(1).float()
    b += (by_row[:, 1:] @ g).squeeze(1).float() / vv
    one = inputs.v_scale**2  # the variance of an element of a value
    return a, error.square().sum(-1) * one, a.square() / vv * one, b


def _by_unit(t: Tensor) -> Tensor:
    """Sums over `UNIT` neighbours in the last dimension, in fp32."""
    if absent := -t.shape[-1] % UNIT:  # padding copies, even by nothing
        t = torch.nn.functional.pad(t, (0, absent))
    return t.view(*t.shape[:-1], -1, UNIT).sum(-1, dtype=torch.float32)


def _halved(t: Tensor) -> Tensor:
    """Sums of two neighbours each in the last dimension."""
    if t.shape[-1] % 2:
        t = torch.nn.functional.pad(t, (0, 1))
    return t.view(*t.shape[:-1], -1, 2).sum(-1)


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


# A tensor core that multiplies in 8 bits cuts each product off towards zero, so all rows of a KV head have an error in common. It
# adds up 32 products and the sum of before, aligns them to the largest of these and keeps few digits of each. So a product of a
# probability and a value loses half of the last digit on average, in the direction of its own sign. Probabilities are positive,
# so this is the sign of the value, in every row alike. The error lies along t, the sum over keys of the signs of values: t is the
# same for all rows that see the same keys. docs/correctness.md has the measurement and the emulation.
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
        _, values = inputs.tokens_of(rows.requests, keys.start, keys.stop)  # [N, keys, K, D]
        total += values.to(torch.float16).sign().sum(1, dtype=torch.float32).flatten(0, 1)
    size: Tensor = total.norm(dim=-1, keepdim=True)
    return total / size.clamp_min(TINY)


def _chunks_of_rows(inputs: Inputs, rows: RightRows) -> Iterator[range]:
    p, request = inputs.problem, rows.requests[0]
    length, before = p.kv_lens[request], p.kv_lens[request] - p.q_lens[request]
    first = 0 if p.window is None else max(0, before + rows.tokens.start - p.window + 1)
    stop = before + rows.tokens.stop if p.mask == "causal" else length
    step = max(1, ELEMENTS_AT_ONCE // (len(rows.requests) * p.stored_kv_heads * p.value_dim))
    for at in range(first, stop, step):
        yield range(at, min(at + step, stop))

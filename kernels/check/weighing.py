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

from collections.abc import Iterable, Iterator, Sequence

from kernels.check import fused
from kernels.check.common_errors import MAX_CORRELATED, cleared, gain, most_correlated
from kernels.check.estimates import (
    MAX_BLOCK,
    OF_FAULT,
    ROWS_AT_ONCE,
    TINY,
    KeyWeights,
    Levels,
    OutputErrors,
    Rows,
    along_outputs,
    grid_of,
    keys_and_values,
    probabilities,
    rows_of,
    weighed_parts,
)
from kernels.check.mask_pairs import weigh_pairs
from kernels.check.oracle import exact_for_16_bits
from kernels.inputs import Inputs
from kernels.inputs.masks import hidden
from kernels.inputs.sentinel_logit import parts_of
from kernels.lazy import Tensor, torch

UNIT = 4  # keys of the smallest block; any 2n - 1 keys in a row hold an aligned block of n
CHUNK_BYTES = 256 * 2**20  # of the largest temporary tensor in fp32
# Requests are weighed together up to this many bytes of it, so that a GPU waits less for Python: of 128 requests of MLA on an H200,
# weighed one by one, a judgement took 0.7 s. It takes six to eight such tensors, and a sixteenth of the free memory leaves as much
# again.
GROUP_BYTES, SHARE_OF_FREE = 5 * 2**29, 16  # 64 requests of 131,072 tokens at once


def weigh(errors: OutputErrors, groups: Iterable[tuple[int, ...]] = ()) -> Iterator[KeyWeights]:
    """Estimates for every request: single keys, blocks of 4, 8, ... keys, each pair of query and draft key, and the gain."""
    inputs, p = errors.inputs, errors.inputs.problem
    for requests in groups or _of_equal_lengths(inputs):  # weighed together: these, or as many as memory allows now
        q_len = p.q_lens[requests[0]]
        weighed = {part: rows_of(errors, requests, part) for part in weighed_parts(p, q_len)}
        whole = gain([*weighed.values()])
        found, common = cleared(errors, [*weighed.values()], whole)
        clear = dict(zip(weighed, found, strict=True))
        with exact_for_16_bits():
            yield from _of_blocks(inputs, found, most_correlated(inputs, whole, common))
            for part in parts_of(q_len):  # those that are not weighed come one by one: all of a long prompt are too large
                rows = clear.get(part) or cleared(errors, [rows_of(errors, requests, part)], whole)[0][0]
                yield from weigh_pairs(errors, rows)
        yield whole


def _of_equal_lengths(inputs: Inputs) -> Iterator[tuple[int, ...]]:
    """Requests of equal lengths, as many at a time as memory allows. How many does not change what is found."""
    p, room = inputs.problem, 0
    for (q_len, kv_len), requests in p.requests_by_lengths.items():
        if not kv_len:
            continue
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
    blocks, found = _pyramid(torch.stack((_by_unit(prob), _by_unit(g)))), _room(inputs, rows, len(keys))
    found[..., : len(keys)] = torch.stack(_of_keys(inputs, rows, prob, g, v))
    levels = _add_levels(found, len(keys), [_of_blocks_in_rows(rows, blocks, inputs.problem.latent)])
    if inputs.problem.latent:
        found[0] += along_outputs(rows, [prob, *(level[0] for level in blocks)]) * (found[3] > 0)  # no block left out
    return levels, found


def _fused_sums(inputs: Inputs, rows: Rows, keys: range) -> tuple[Levels, Tensor]:
    """What `_sums` gives, by the kernel of `fused.py`, which reads keys and values once."""
    whole = -(-len(keys) // fused.TILE) * fused.TILE
    found = _room(inputs, rows, whole)
    of_levels, of_tiles = fused.tile_sums(inputs, rows, keys, found)
    of_blocks = [of_levels[..., first:stop].flatten(2) for first, stop in fused.LEVELS]
    if len(wider := _pyramid(of_tiles)) > 1:
        of_blocks.append(_of_blocks_in_rows(rows, wider[1:]))
    return _add_levels(found, whole, of_blocks), found


def _room(inputs: Inputs, rows: Rows, keys: int) -> Tensor:
    """Where all sums of so many keys are written and stay: at 64 requests of 131,072 tokens a copy is two gigabytes."""
    blocks = [keys, count := -(-keys // UNIT)]
    while count > 1:
        blocks.append(count := -(-count // 2))
    return rows.error.new_empty(4, len(rows.error), sum(blocks))


def _add_levels(found: Tensor, keys: int, of_blocks: Sequence[Tensor]) -> Levels:
    """Writes all levels of blocks behind the single keys. `of_blocks` has B and the largest weight in a row, [2, M, blocks], of one
    level or several.
    """
    levels = _pyramid(_by_unit(found[:3, :, :keys]))
    found[:3, :, keys:] = torch.cat(levels, -1)
    torch.cat([level[0] for level in of_blocks], -1, out=found[3, :, keys:])
    found[3].clamp_min_(0)
    found[..., keys:] *= torch.cat([level[1] for level in of_blocks], -1) < MAX_BLOCK
    sizes = (1, *(UNIT << n for n in range(len(levels))))
    return tuple(zip(sizes, (keys, *(level.shape[-1] for level in levels)), strict=True))


def _of_blocks_in_rows(rows: Rows, levels: Sequence[Tensor], latent: bool = False) -> Tensor:
    """B of blocks and their largest weight in any row, [2, M, blocks of all levels], from sums over their keys [2, M, R, blocks].

    With values that are independent of one another, a set S of keys with the weight p_S has
    |sum of p * (v - o)|^2 = (1 - 2 p_S) * g_S + p_S^2 * |o|^2, where g_S is the sum of p^2 |v|^2 over S. Without what lies along
    the output, as in MLA, (1 - p_S) * g_S is left.
    """
    prob, g = torch.cat(tuple(levels), -1)
    squares = (1 - prob) * g if latent else (1 - 2 * prob) * g + prob.square() * rows.right.size
    return torch.stack(((rows.weight * squares).sum(1), prob.amax(1)))


def _pyramid(level: Tensor) -> list[Tensor]:
    """Sums over blocks, then over blocks of twice as many keys, until one block holds all."""
    levels = [level]
    while levels[-1].shape[-1] > 1:
        last = levels[-1]
        if last.shape[-1] % 2:
            last = torch.nn.functional.pad(last, (0, 1))
        levels.append(last[..., ::2] + last[..., 1::2])  # a GPU reduces a dimension of two slowly
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
    latent = inputs.problem.latent  # as in `_of_blocks_in_rows`
    b = (by_row[:, :1] @ torch.addcmul(g, prob, g, value=-1 if latent else -2)).squeeze(1).float()
    if not latent:
        b += (by_row[:, 1:] @ g).squeeze(1).float() / vv
    one = inputs.v_scale**2  # the variance of an element of a value
    return a, error.square().sum(-1) * one, a.square() / vv * one, b


def _by_unit(t: Tensor) -> Tensor:
    """Sums over `UNIT` neighbours in the last dimension, in fp32."""
    if absent := -t.shape[-1] % UNIT:  # padding copies, even by nothing
        t = torch.nn.functional.pad(t, (0, absent))
    return t.view(*t.shape[:-1], -1, UNIT).sum(-1, dtype=torch.float32)

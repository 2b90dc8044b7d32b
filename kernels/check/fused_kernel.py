"""The Triton kernel of `fused.py`. Import it only where there is Triton."""

from __future__ import annotations

import triton
import triton.language as tl

# Lengths and counts differ from problem to problem. Triton would compile the kernel again if one is 1 or a multiple of 16.
LENGTHS = ("start", "stop", "draft_start", "first_token", "tokens", "count", "window", "s_qo", "table_stride")


@triton.jit(do_not_specialize=LENGTHS)  # type: ignore[untyped-decorator]
def weigh_tile(  # type: ignore[no-untyped-def]
    k_cache,  # [P, N, K, D_qk] by its strides
    v_cache,  # [P, N, K, D_vo] by its strides
    page_table,  # int32 [B, pages]
    requests,  # int32 [N]
    queries,  # [M, R, D_qk]
    errors,  # [M, R, D_vo]: errors over their variance
    by_row,  # fp32 [M, R, 5]: lse, <e, o> / s^2, 1 / s^2, |o|^2 / s^2, least probability that counts
    visible,  # uint8 [s_qo, s_qo], read only for a tree
    single,  # fp32 [4, M, tiles * TILE]
    levels,  # fp32 [2, M, tiles, LEVELS_WIDTH]
    whole,  # fp32 [2, M, R, tiles]
    logit_scale,
    v_scale,
    start,
    stop,
    draft_start,  # position of the first query's own key
    first_token,  # of the request's query tokens, the first of these rows
    tokens,  # query tokens of these rows
    count,  # R
    window,
    s_qo,
    table_stride,
    k_page,
    k_slot,
    k_head,
    v_page,
    v_slot,
    v_head,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    LEVELS_WIDTH: tl.constexpr,
    TREE: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    MAX_WEIGHT: tl.constexpr,
):
    """One tile of keys of one KV head of one request: all that its rows say about each key and each block of 4 to TILE keys."""
    tile, m = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tiles, num = tl.num_programs(0), tl.num_programs(1)
    request, head = tl.load(requests + m // KV_HEADS), m % KV_HEADS
    key = start + tile * TILE + tl.arange(0, TILE)
    present = key < stop
    page = tl.load(page_table + request.to(tl.int64) * table_stride + key // PAGE, mask=present, other=0).to(tl.int64)
    slot = (key % PAGE).to(tl.int64)
    d_key, d_value = tl.arange(0, KEY_WIDTH), tl.arange(0, VALUE_WIDTH)
    k_at = page * k_page + slot * k_slot + head * k_head
    v_at = page * v_page + slot * v_slot + head * v_head
    k = tl.load(k_cache + k_at[:, None] + d_key[None, :], mask=present[:, None] & (d_key < KEY_DIM)[None, :], other=0.0)
    v = tl.load(v_cache + v_at[:, None] + d_value[None, :], mask=present[:, None] & (d_value < VALUE_DIM)[None, :], other=0.0)
    k = tl.trans(k.to(queries.dtype.element_ty))
    v = v.to(tl.float32) * v_scale
    vv = tl.sum(v * v, 1)

    error = tl.zeros((TILE, VALUE_WIDTH), tl.float32)
    own, b = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
    b4, top4 = tl.zeros((TILE // 4,), tl.float32), tl.zeros((TILE // 4,), tl.float32)
    b8, top8 = tl.zeros((TILE // 8,), tl.float32), tl.zeros((TILE // 8,), tl.float32)
    b16, top16 = tl.zeros((TILE // 16,), tl.float32), tl.zeros((TILE // 16,), tl.float32)
    b32, top32 = tl.zeros((TILE // 32,), tl.float32), tl.zeros((TILE // 32,), tl.float32)
    b64, top64 = tl.zeros((TILE // 64,), tl.float32), tl.zeros((TILE // 64,), tl.float32)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)
        real = row < count
        at = m * count + row
        q = tl.load(queries + at[:, None] * KEY_DIM + d_key[None, :], mask=real[:, None] & (d_key < KEY_DIM)[None, :], other=0.0)
        e = tl.load(
            errors + at[:, None] * VALUE_DIM + d_value[None, :], mask=real[:, None] & (d_value < VALUE_DIM)[None, :], other=0.0
        )
        lse = tl.load(by_row + at * 5, mask=real, other=0.0)
        own_error = tl.load(by_row + at * 5 + 1, mask=real, other=0.0)
        weight = tl.load(by_row + at * 5 + 2, mask=real, other=0.0)
        weight_size = tl.load(by_row + at * 5 + 3, mask=real, other=0.0)
        least = tl.load(by_row + at * 5 + 4, mask=real, other=0.0)

        query = first_token + row % tokens
        seen = _seen(key, query, visible, draft_start, s_qo, window, real[:, None] & present[None, :], TREE, CAUSAL, WINDOW)
        prob = tl.exp(tl.dot(q, k, input_precision="ieee") * logit_scale - lse[:, None])
        prob = tl.where(seen & (prob >= least[:, None]) & (prob < MAX_WEIGHT), prob, 0.0)
        g = prob * prob * vv[None, :]

        error += tl.dot(tl.trans(prob).to(e.dtype), e)
        own += tl.sum(prob * own_error[:, None], 0)
        b += tl.sum(weight[:, None] * (1 - 2 * prob) * g + weight_size[:, None] * prob * prob, 0)
        p4, g4 = _joined(prob, g, 4)
        b4, top4 = _add_level(b4, top4, p4, g4, weight, weight_size)
        p8, g8 = _joined(p4, g4, 2)
        b8, top8 = _add_level(b8, top8, p8, g8, weight, weight_size)
        p16, g16 = _joined(p8, g8, 2)
        b16, top16 = _add_level(b16, top16, p16, g16, weight, weight_size)
        p32, g32 = _joined(p16, g16, 2)
        b32, top32 = _add_level(b32, top32, p32, g32, weight, weight_size)
        p64, g64 = _joined(p32, g32, 2)
        b64, top64 = _add_level(b64, top64, p64, g64, weight, weight_size)
        tl.store(whole + at * tiles + tile, tl.sum(p64, 1), mask=real)
        tl.store(whole + (num * count + at) * tiles + tile, tl.sum(g64, 1), mask=real)

    place = single + m * tiles * TILE + tile * TILE + tl.arange(0, TILE)
    column = num.to(tl.int64) * tiles * TILE
    tl.store(place, tl.sum(error * v, 1) - own)
    tl.store(place + column, b)
    tl.store(place + 2 * column, tl.sum(error * error, 1))
    tl.store(place + 3 * column, vv)
    place = levels + (m * tiles + tile) * LEVELS_WIDTH
    column = num.to(tl.int64) * tiles * LEVELS_WIDTH
    _store_level(place, column, b4, top4)
    _store_level(place + TILE // 4, column, b8, top8)
    _store_level(place + 3 * TILE // 8, column, b16, top16)
    _store_level(place + 7 * TILE // 16, column, b32, top32)
    _store_level(place + 15 * TILE // 32, column, b64, top64)


@triton.jit
def touch(flag):  # type: ignore[no-untyped-def]
    """Shows that Triton works here."""
    tl.store(flag, 1)


@triton.jit  # type: ignore[untyped-decorator]
def _seen(  # type: ignore[no-untyped-def]
    key, query, visible, draft_start, s_qo, window, seen, TREE: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr
):
    """Which queries see which keys, [rows, keys]."""
    if TREE:
        in_draft = (key >= draft_start)[None, :]
        pair = visible + query[:, None] * s_qo + (key - draft_start)[None, :]
        seen = seen & (tl.load(pair, mask=seen & in_draft, other=1) != 0)
    if CAUSAL:
        seen = seen & (key[None, :] <= (draft_start + query)[:, None])
    if WINDOW:
        seen = seen & (key[None, :] > (draft_start + query - window)[:, None])
    return seen


@triton.jit  # type: ignore[untyped-decorator]
def _joined(prob, g, BY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Weight and g of blocks of BY neighbours, [rows, n / BY] each."""
    shape: tl.constexpr = [prob.shape[0], prob.shape[1] // BY, BY]
    return tl.sum(tl.reshape(prob, shape), 2), tl.sum(tl.reshape(g, shape), 2)


@triton.jit
def _add_level(b, top, prob, g, weight, weight_size):  # type: ignore[no-untyped-def]
    """B of each block, and its largest weight in any row, with these rows added."""
    added = weight[:, None] * (1 - 2 * prob) * g + weight_size[:, None] * prob * prob
    return b + tl.sum(added, 0), tl.maximum(top, tl.max(prob, 0))


@triton.jit
def _store_level(place, column, b, top):  # type: ignore[no-untyped-def]
    at = place + tl.arange(0, b.shape[0])
    tl.store(at, b)
    tl.store(at + column, top)

"""The Triton kernels of `fused.py` and `fused_reference.py`. Import them only where there is Triton."""

from __future__ import annotations

import triton
import triton.language as tl

# Lengths and counts differ from problem to problem. Triton would compile the kernel again if one is 1 or a multiple of 16.
LENGTHS = (
    *("start", "stop", "draft_start", "first_token", "tokens", "count", "window", "both_ways", "s_qo"),
    *("kv_heads", "page_size", "columns", "table_stride"),
)


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
    single,  # fp32 [4, M, columns], of which the first tiles * TILE are written: A, |E|^2 and A^2 / |v|^2, as variances, and B
    levels,  # fp32 [2, M, tiles, BLOCKS]
    whole,  # fp32 [2, M, R, tiles]
    blocks,  # fp32 [TILE, BLOCKS]: which keys of the tile each block holds
    logit_scale, v_scale, soft_cap, start, stop,
    draft_start,  # position of the first query's own key
    first_token,  # of the request's query tokens, the first of these rows
    tokens,  # query tokens of these rows
    count,  # R
    window,
    both_ways,  # the first query tokens, which see one another
    s_qo, kv_heads, page_size, columns, table_stride, k_page, k_slot, k_head, v_page, v_slot, v_head,
    KEY_DIM: tl.constexpr, KEY_WIDTH: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_WIDTH: tl.constexpr, TILE: tl.constexpr,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, TREE: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, MAX_WEIGHT: tl.constexpr,
):  # fmt: skip
    """One tile of keys of one KV head of one request: all that its rows say about each key and each block of 4 to TILE keys."""
    tile, m = tl.program_id(0), tl.program_id(1).to(tl.int64)
    tiles, num = tl.num_programs(0), tl.num_programs(1)
    request, head = tl.load(requests + tl.program_id(1) // kv_heads), tl.program_id(1) % kv_heads
    key = start + tile * TILE + tl.arange(0, TILE)
    present = key < stop
    page = tl.load(page_table + request.to(tl.int64) * table_stride + key // page_size, mask=present, other=0).to(tl.int64)
    slot = (key % page_size).to(tl.int64)
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
    block = tl.arange(0, BLOCKS)
    of_block = tl.load(blocks + tl.arange(0, TILE)[:, None] * BLOCKS + block[None, :])
    of_blocks, top = tl.zeros((BLOCKS,), tl.float32), tl.zeros((BLOCKS,), tl.float32)
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
        pairs = real[:, None] & present[None, :]
        seen = _seen(key, query, visible, draft_start, s_qo, window, both_ways, pairs, TREE, CAUSAL, WINDOW)
        logit = tl.dot(q, k, input_precision="ieee") * logit_scale
        if CAPPED:
            logit = soft_cap * (2 * tl.sigmoid(2 * logit / soft_cap) - 1)  # cap * tanh(logit / cap)
        prob = tl.exp(logit - lse[:, None])
        prob = tl.where(seen & (prob >= least[:, None]) & (prob < MAX_WEIGHT), prob, 0.0)
        g = prob * prob * vv[None, :]

        error += tl.dot(tl.trans(prob).to(e.dtype), e)
        own += tl.sum(prob * own_error[:, None], 0)
        b += tl.sum(weight[:, None] * (1 - 2 * prob) * g + weight_size[:, None] * prob * prob, 0)
        # TF32 keeps 11 bits of the significand of each summand. The estimates need fewer.
        held, g_held = tl.dot(prob, of_block, input_precision="tf32"), tl.dot(g, of_block, input_precision="tf32")
        of_blocks += tl.sum(weight[:, None] * (1 - 2 * held) * g_held + weight_size[:, None] * held * held, 0)
        top = tl.maximum(top, tl.max(held, 0))
        tl.store(whole + at * tiles + tile, tl.sum(prob, 1), mask=real)
        tl.store(whole + (num * count + at) * tiles + tile, tl.sum(g, 1), mask=real)

    place = single + m * columns + tile * TILE + tl.arange(0, TILE)
    each, a, one = num.to(tl.int64) * columns, tl.sum(error * v, 1) - own, v_scale * v_scale
    tl.store(place, a)
    tl.store(place + each, tl.sum(error * error, 1) * one)
    tl.store(place + 2 * each, a * a / tl.maximum(vv, 1e-30) * one)
    tl.store(place + 3 * each, b)
    place = levels + (m * tiles + tile) * BLOCKS + block
    tl.store(place, of_blocks)
    tl.store(place + num.to(tl.int64) * tiles * BLOCKS, top)


@triton.jit(do_not_specialize=(*LENGTHS, "keys", "splits"))  # type: ignore[untyped-decorator]
def attend_split(  # type: ignore[no-untyped-def]
    k_cache,  # [P, N, K, D_qk] by its strides
    v_cache,  # [P, N, K, D_vo] by its strides
    page_table,  # int32 [B, pages]
    requests,  # int32 [N]
    queries,  # [M, R, D_qk] in 16 bits
    visible,  # uint8 [s_qo, s_qo], read only for a tree
    sums,  # fp32 [M, splits, R, D_vo]
    of_rows,  # fp32 [3, M, splits, R]: the largest logit, the sum of weights, and that of w^2 |v|^2
    logit_scale, start, stop,
    keys, splits,  # keys of a split, and how many there are
    draft_start, first_token, tokens, count, window, s_qo, kv_heads, page_size, table_stride,
    k_page, k_slot, k_head, v_page, v_slot, v_head,
    KEY_DIM: tl.constexpr, KEY_WIDTH: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_WIDTH: tl.constexpr, TILE: tl.constexpr,
    ROWS: tl.constexpr, TREE: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Some rows of one KV head of one request over one split of its keys."""
    split, m, block = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    request, head = tl.load(requests + tl.program_id(1) // kv_heads).to(tl.int64), tl.program_id(1) % kv_heads
    row = block * ROWS + tl.arange(0, ROWS)
    real = row < count
    query = first_token + row % tokens
    d_key, d_value = tl.arange(0, KEY_WIDTH), tl.arange(0, VALUE_WIDTH)
    q_at = (m * count + row)[:, None] * KEY_DIM + d_key[None, :]
    q = tl.load(queries + q_at, mask=real[:, None] & (d_key < KEY_DIM)[None, :], other=0.0)
    peak = tl.full((ROWS,), -3.4028234663852886e38, tl.float32)
    total, squares = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, VALUE_WIDTH), tl.float32)
    first = start + split * keys
    for tile in range(first, tl.minimum(first + keys, stop), TILE):
        key = tile + tl.arange(0, TILE)
        present = key < stop
        page = tl.load(page_table + request * table_stride + key // page_size, mask=present, other=0).to(tl.int64)
        slot = (key % page_size).to(tl.int64)
        k_at, v_at = page * k_page + slot * k_slot + head * k_head, page * v_page + slot * v_slot + head * v_head
        k = tl.load(k_cache + k_at[:, None] + d_key[None, :], mask=present[:, None] & (d_key < KEY_DIM)[None, :], other=0.0)
        v = tl.load(v_cache + v_at[:, None] + d_value[None, :], mask=present[:, None] & (d_value < VALUE_DIM)[None, :], other=0.0)
        k, v = tl.trans(k.to(q.dtype)), v.to(q.dtype)
        seen = _seen(key, query, visible, draft_start, s_qo, window, 0, real[:, None] & present[None, :], TREE, CAUSAL, WINDOW)
        logit = tl.where(seen, tl.dot(q, k, input_precision="ieee") * logit_scale, float("-inf"))
        higher = tl.maximum(peak, tl.max(logit, 1))
        weight, rescale = tl.exp(logit - higher[:, None]), tl.exp(peak - higher)
        size = v.to(tl.float32)
        total = total * rescale + tl.sum(weight, 1)
        squares = squares * rescale * rescale + tl.sum(weight * weight * tl.sum(size * size, 1)[None, :], 1)
        # A weight has 24 bits, and a tensor core takes 8 or 11: three parts, of which each next is 2^-11 of the one before or less.
        high = weight.to(q.dtype)
        rest = (weight - high.to(tl.float32)) * 2048
        middle = rest.to(q.dtype)
        low = ((rest - middle.to(tl.float32)) * 2048).to(q.dtype)
        small = tl.dot(middle, v, input_precision="ieee") + tl.dot(low, v, input_precision="ieee") / 2048
        acc = acc * rescale[:, None] + (tl.dot(high, v, input_precision="ieee") + small / 2048)
        peak = higher

    place = (m * splits + split) * count + row
    programs = tl.num_programs(1).to(tl.int64) * splits * count
    tl.store(of_rows + place, peak, mask=real)
    tl.store(of_rows + programs + place, total, mask=real)
    tl.store(of_rows + 2 * programs + place, squares, mask=real)
    tl.store(sums + place[:, None] * VALUE_DIM + d_value[None, :], acc, mask=real[:, None] & (d_value < VALUE_DIM)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _seen(  # type: ignore[no-untyped-def]
    key, query, visible, draft_start, s_qo, window, both_ways, seen, TREE: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr
):
    """Which queries see which keys, [rows, keys]."""
    if TREE:
        in_draft = (key >= draft_start)[None, :]
        pair = visible + query[:, None] * s_qo + (key - draft_start)[None, :]
        seen = seen & (tl.load(pair, mask=seen & in_draft, other=1) != 0)
    if CAUSAL:
        in_prefix = (query < both_ways)[:, None] & (key < draft_start + both_ways)[None, :]
        seen = seen & ((key[None, :] <= (draft_start + query)[:, None]) | in_prefix)
    if WINDOW:
        seen = seen & (key[None, :] > (draft_start + query - window)[:, None])
        if not CAUSAL:
            seen = seen & (key[None, :] < (draft_start + query + window)[:, None])
    return seen

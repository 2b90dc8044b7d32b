"""Decode and drafts over a paged cache in Triton: queries of 16 bits, a cache of their dtype or of FP8."""

import triton
import triton.language as tl


@triton.jit
def attend(
    q, k, v, out, pages, lens, scale, v_scale, q_token, q_head, page, head, slot, table,
    T: tl.constexpr, G: tl.constexpr, R: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One program: the T query tokens of one request times the G query heads of one KV head, page after page of N slots, with an
    online softmax.

    q and out are [B * T, H, D] of the same strides, k and v [P, N, K, D] of theirs (page, slot, head), pages int32 [B, table], lens
    int32 [B], which count the query tokens. R rows are computed, since tl.dot takes no fewer than 16.
    """
    request, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    rows, slots, dims = tl.arange(0, R), tl.arange(0, N), tl.arange(0, D)
    at = ((request * T + rows // G) * q_token + (kv_head * G + rows % G) * q_head)[:, None] + dims
    is_row, length = (rows < T * G)[:, None], tl.load(lens + request)
    queries, seen = tl.load(q + at, mask=is_row, other=0.0), length - T + 1 + tl.minimum(rows // G, T - 1)
    largest, total = tl.full([R], float("-inf"), tl.float32), tl.zeros([R], tl.float32)
    sums = tl.zeros([R, D], tl.float32)
    for start in range(0, length, N):
        number, used = tl.load(pages + request * table + start // N).to(tl.int64), start + slots < length
        tile = number * page + kv_head * head + slots[:, None] * slot + dims
        keys = tl.load(k + tile, mask=used[:, None], other=0.0).to(queries.dtype)
        values = tl.load(v + tile, mask=used[:, None], other=0.0).to(queries.dtype)
        logits = tl.dot(queries, tl.trans(keys)) * scale
        logits = tl.where(start + slots[None, :] < seen[:, None], logits, float("-inf"))
        new = tl.maximum(largest, tl.max(logits, 1))
        weights, kept = tl.exp(logits - new[:, None]), tl.exp(largest - new)
        total, sums = total * kept + tl.sum(weights, 1), sums * kept[:, None] + tl.dot(weights.to(values.dtype), values)
        largest = new
    tl.store(out + at, (sums / total[:, None] * v_scale).to(queries.dtype), mask=is_row)

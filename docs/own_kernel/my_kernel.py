"""Decode over a paged cache in Triton: one query token for each request, of 16 bits."""

import triton
import triton.language as tl


@triton.jit
def attend(
    q, k, v, out, pages, lens, scale, q_request, q_head, page, head, slot, table,
    G: tl.constexpr, R: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One program: the G query heads of one KV head of one request, over page after page of N slots, with an online softmax.

    q and out are [B, H, D] of the same strides, k and v [P, N, K, D] of theirs (page, slot, head), pages int32 [B, table], lens
    int32 [B]. R rows are computed, since tl.dot takes no fewer than 16.
    """
    request, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    rows, slots, dims = tl.arange(0, R), tl.arange(0, N), tl.arange(0, D)
    at, is_row = request * q_request + (kv_head * G + rows)[:, None] * q_head + dims, (rows < G)[:, None]
    queries, length = tl.load(q + at, mask=is_row, other=0.0), tl.load(lens + request)
    largest, total = tl.full([R], float("-inf"), tl.float32), tl.zeros([R], tl.float32)
    sums = tl.zeros([R, D], tl.float32)
    for start in range(0, length, N):
        number, used = tl.load(pages + request * table + start // N).to(tl.int64), start + slots < length
        tile = number * page + kv_head * head + slots[:, None] * slot + dims
        keys = tl.load(k + tile, mask=used[:, None], other=0.0)
        values = tl.load(v + tile, mask=used[:, None], other=0.0)
        logits = tl.where(used[None, :], tl.dot(queries, tl.trans(keys)) * scale, float("-inf"))
        new = tl.maximum(largest, tl.max(logits, 1))
        weights, kept = tl.exp(logits - new[:, None]), tl.exp(largest - new)
        total, sums = total * kept + tl.sum(weights, 1), sums * kept[:, None] + tl.dot(weights.to(values.dtype), values)
        largest = new
    tl.store(out + at, (sums / total[:, None]).to(queries.dtype), mask=is_row)

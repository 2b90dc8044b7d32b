"""The Triton kernel of `checksums.py`. Import it only where there is Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=("count", "second_size", "third_size"))  # type: ignore[untyped-decorator]
def sum_of_vectors(  # type: ignore[no-untyped-def]
    words,  # int64 [A, B, C, W] by its strides; the words of a vector are adjacent
    found,  # int64 [programs]
    count,  # A * B * C
    second_size, third_size, first_stride, second_stride, third_stride,
    W: tl.constexpr, WIDTH: tl.constexpr, VECTORS: tl.constexpr, FIRST_FACTOR: tl.constexpr, SECOND_FACTOR: tl.constexpr,
):  # fmt: skip
    """The sums of words, weighed in some vectors and by the place of each, which has 32 bits: a GPU divides longer ones slowly."""
    vector = tl.program_id(0) * VECTORS + tl.arange(0, VECTORS)
    present = vector < count
    rest = vector // third_size
    first = rest // second_size
    at = first.to(tl.int64) * first_stride + (rest - first * second_size).to(tl.int64) * second_stride
    at += (vector - rest * third_size).to(tl.int64) * third_stride
    word = tl.arange(0, WIDTH)
    part = tl.load(words + at[:, None] + word[None, :], mask=present[:, None] & (word < W)[None, :], other=0)
    part *= (2 * word + 1)[None, :]
    weight = (vector.to(tl.int64) + 1) * FIRST_FACTOR
    weight ^= weight >> 31
    weight *= SECOND_FACTOR
    weight ^= weight >> 31
    tl.store(found + tl.program_id(0), tl.sum(tl.sum(part * (weight | 1)[:, None], 0), 0))


@triton.jit
def touch(flag):  # type: ignore[no-untyped-def]
    """Shows that Triton works here."""
    tl.store(flag, 1)

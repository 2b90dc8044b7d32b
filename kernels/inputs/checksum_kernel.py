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
    """The sums of some vectors' words, each times the weight of its place."""
    vector = tl.program_id(0).to(tl.int64) * VECTORS + tl.arange(0, VECTORS)
    present = vector < count
    third, rest = vector % third_size, vector // third_size
    at = (rest // second_size) * first_stride + (rest % second_size) * second_stride + third * third_stride
    word = tl.arange(0, WIDTH)
    part = tl.load(words + at[:, None] + word[None, :], mask=present[:, None] & (word < W)[None, :], other=0)
    weight = (vector + 1) * FIRST_FACTOR
    weight ^= weight >> 31
    weight *= SECOND_FACTOR
    weight ^= weight >> 31
    tl.store(found + tl.program_id(0), tl.sum(tl.sum(part, 1) * (weight | 1), 0))


@triton.jit
def touch(flag):  # type: ignore[no-untyped-def]
    """Shows that Triton works here."""
    tl.store(flag, 1)

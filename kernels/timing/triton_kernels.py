"""Triton kernels: one streams memory, one writes down the time, one is only long. Import it only if torch comes with Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def read_sum(words, sums, BLOCK: tl.constexpr, LOADS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each program adds up LOADS consecutive blocks of BLOCK int32 words and writes one word."""
    program = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.int32)
    for load in range(LOADS):
        total += tl.load(words + (program * LOADS + load) * BLOCK + tl.arange(0, BLOCK))
    tl.store(sums + program, tl.sum(total))


@triton.jit
def stamp(notes, count):  # type: ignore[no-untyped-def]
    """Appends (nanoseconds of the device, cycles of this multiprocessor, its number) to int64 `notes` [n, 3]."""
    row = notes + 3 * tl.atomic_add(count, 1)
    ns = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    multiprocessor = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(row, ns)
    tl.store(row + 1, cycles)
    tl.store(row + 2, multiprocessor.to(tl.int64))


@triton.jit  # type: ignore[untyped-decorator]
def stretch(sums, CODE: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Runs CODE once in each of WIDTH threads a program. The result is written, so that the compiler keeps the code."""
    lane = tl.arange(0, WIDTH)
    x = tl.inline_asm_elementwise(CODE, "=r,r", [lane], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(sums + tl.program_id(0) * WIDTH + lane, x)

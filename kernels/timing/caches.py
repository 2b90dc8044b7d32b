"""The state of a device's caches before each sample: data in the L2, instructions in each multiprocessor.

An engine runs other kernels between two calls of attention. Their data replaces the KV cache in the L2, and their code replaces
the code of attention. On an H200, XQA's long kernels then take 7 to 17 µs more, as they do after a clean flush (docs/timing.md).

Nearly all that an engine's kernels leave in the L2 was read: weights and KV caches. Such lines are clean, and replacing them costs
nothing. A flush that writes leaves dirty lines, and the timed kernel pays for putting them back into memory (docs/timing.md).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Literal

from kernels.lazy import torch
from kernels.timing.graphs import capture

L2State = Literal["clean", "dirty", "warm"]
ICacheState = Literal["warm", "cold"]

CODE_BYTES = 256 * 2**10  # on an H200, more than 64 KB made XQA no slower (docs/timing.md)
INSTRUCTION_BYTES = 16  # of one SASS instruction since Volta
SETTLING_READS = 4  # of a new flush buffer: each puts back lines that making it left dirty
WIDTH = 128  # threads of a program: a warp for each of a multiprocessor's four instruction buffers


@dataclass(frozen=True)
class Caches:
    """The state to time in. `l2_flush_factor`: bytes read (`clean`) or written (`dirty`) to empty the L2, over its size."""

    l2: L2State = "clean"
    l2_flush_factor: float = 2.0
    icache: ICacheState = "warm"

    def restore(self) -> None:
        """Brings the caches into this state, other code first: the flush pushes it out of the L2 too. Raises RuntimeError."""
        device = torch.cuda.current_device()
        if self.icache == "cold":
            other_code(device)[0].replay()
        if self.l2 != "warm":
            flush = flush_of(device, self.l2_flush_factor)
            flush.read() if self.l2 == "clean" else flush.write()


@dataclass(frozen=True)
class Flush:
    """What empties the L2: a buffer larger than it, `[n]` uint8, and where the reduction of a read goes, `[]` int64.

    Both ways run on the current stream. `read` leaves clean lines of the buffer: torch's reduction loads every element, and writes
    its result and a few partial results alone. What an earlier kernel left dirty is put back meanwhile. `write` leaves dirty lines.
    """

    buffer: torch.Tensor
    largest: torch.Tensor

    def read(self) -> None:
        torch.amax(self.buffer.view(torch.int64), 0, out=self.largest)

    def write(self) -> None:
        self.buffer.zero_()


@cache
def flush_of(device: int, factor: float) -> Flush:
    """The flush of a device: a buffer of `factor` times its L2, written once, so that every page of it is there."""
    size, place = int(l2_bytes(device) * factor) // torch.int64.itemsize * torch.int64.itemsize, f"cuda:{device}"
    flush = Flush(torch.zeros(size, dtype=torch.uint8, device=place), torch.zeros((), dtype=torch.int64, device=place))
    for _ in range(SETTLING_READS):
        flush.read()
    return flush


def l2_bytes(device: int = 0) -> int:
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def reset_persisting_l2() -> None:
    """Releases lines of the L2 that a kernel may have pinned (`cuCtxResetPersistingL2Cache`). Raises RuntimeError."""
    if (code := ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache()) != 0:
        raise RuntimeError(f"cuCtxResetPersistingL2Cache: CUDA error {code}")


@cache
def other_code(device: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A graph, and the output that must live as long: a kernel that runs `CODE_BYTES` of instructions once on every multiprocessor.

    Raises RuntimeError if Triton, which compiles it, is missing or fails.
    """
    torch.cuda.synchronize()  # an error of earlier work must not look like one of this
    try:
        from kernels.timing.triton_kernels import stretch

        # PTX from `$1` to `$0`: instructions without a branch, all different, so that the compiler can merge none.
        counted = range(1, CODE_BYTES // INSTRUCTION_BYTES + 1)
        steps = " ".join(f"mad.lo.u32 x, x, x, {2654435761 * i % 2**31};" for i in counted)
        code = f"{{ .reg .u32 x; mov.u32 x, $1; {steps} mov.u32 $0, x; }}"
        programs = 2 * torch.cuda.get_device_properties(device).multi_processor_count
        sums = torch.empty(programs * WIDTH, dtype=torch.int32, device=f"cuda:{device}")

        def launch() -> None:
            stretch[(programs,)](sums, code, WIDTH, num_warps=WIDTH // 32)

        launch()  # compiles
    except Exception as error:  # no triton, no C compiler, an unknown driver
        raise RuntimeError(f"timing.icache=cold: its code cannot be compiled ({error}); type timing.icache=warm") from error
    return capture(launch), sums

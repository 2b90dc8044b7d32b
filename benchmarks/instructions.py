"""What the code of other kernels costs a kernel of attention: its replays after so many bytes of other instructions.

    python benchmarks/instructions.py +sweep=specdec_long_ctx [key=value ...]

Needs a CUDA device with its CUPTI to itself, Triton and compiled kernels. Of each point the median of CUPTI's kernel time, in µs,
right after the L2's flush and with straight-line code of 16 to 512 KB before it; and the same with kernels of an engine's layer
(matrix product, softmax, sort) in its place.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import prepared  # noqa: E402
from kernels.caches import Caches, other_code  # noqa: E402
from kernels.timers import Cupti  # noqa: E402
from orchestrator import grid  # noqa: E402
from orchestrator.grid import Grid  # noqa: E402

KILOBYTES = (0, 16, 32, 64, 96, 128, 192, 256, 512)
BLOCKS, SAMPLES = 5, 20
HEADER = ("kernel", "batch", "s_kv", "s_qo", "keys", *(f"{size} KB" for size in KILOBYTES), "a layer's kernels")


class After(Cupti):
    """CUPTI's time of replays that each follow something else."""

    def __init__(self, runner: Any, before: Callable[[], None]) -> None:
        self.before = before
        super().__init__(runner, 3, Caches())

    def _before(self) -> None:
        self.before()
        super()._before()


def layers_kernels() -> Callable[[], None]:
    """A matrix product, a softmax, a sort and a sum, each small and of all multiprocessors."""
    import torch

    x = torch.randn(2048, 1024, device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        x @ x.T
        torch.softmax(x, 1)
        x.sort(1)
        x.cumsum(0)

    return run


def main(overrides: list[str]) -> None:
    """One line a point."""
    between = [(lambda size=size: other_code(0, size * 1024).run()) if size else lambda: None for size in KILOBYTES]
    between.append(layers_kernels())
    cells, witness = [], prepared.pace().witness
    for _, point, prepare in prepared.points(overrides):
        runner, p = prepare(), point.problem
        timers = [After(runner, before) for before in between]
        taken: list[list[float]] = [[] for _ in timers]
        for _ in range(BLOCKS):  # in turns
            for samples, timer in zip(taken, timers, strict=True):
                samples.extend(timer.block(SAMPLES, witness).us)
        shape = (str(p.batch_size), f"{p.s_kv:,}", str(p.s_qo), p.kv_dtype)
        cells.append((f"{point.backend}: {runner.resolved_backend}", *shape, *(f"{statistics.median(us):.1f}" for us in taken)))
        print(*cells[-1], sep="  ", flush=True)
        del timers, runner
    print(grid.markdown([Grid("", HEADER, tuple(cells))]).partition("\n\n")[2])


if __name__ == "__main__":
    main(sys.argv[1:])

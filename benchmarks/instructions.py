"""What the code of other kernels costs a kernel of attention: its replays after so many bytes of other instructions.

    python benchmarks/instructions.py measure FILE.csv +sweep=specdec_long_ctx [key=value ...]
    python benchmarks/instructions.py table benchmarks/data/h200_instructions.csv

`measure` needs a CUDA device with its CUPTI to itself, Triton and compiled kernels, and appends a line a point: the median of
CUPTI's kernel time, in µs, right after a flush of the L2 that writes and with straight-line code of 16 to 512 KB before it; and the
same with small kernels such as an engine's layer has (matrix product, softmax, sort, prefix sum) in its place.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import prepared
from kernels.timing.caches import Caches, other_code
from kernels.timing.timers import Cupti
from orchestrator import tables
from orchestrator.tables import Grid

DATA = ROOT / "benchmarks" / "data" / "h200_instructions.csv"
KILOBYTES = (0, 16, 32, 64, 96, 128, 192, 256, 512)
BLOCKS, SAMPLES = 5, 20
SHAPE = ["backend", "resolved_backend", "batch_size", "s_kv", "s_qo", "q_dtype", "kv_dtype"]
AFTER = [*(f"{size} KB" for size in KILOBYTES), "small kernels"]


class After(Cupti):
    """CUPTI's time of replays that each follow something else."""

    def __init__(self, runner: Any, before: Callable[[], None]) -> None:
        self.before = before
        super().__init__(runner, 3, Caches("dirty"))

    def _before(self) -> None:
        self.before()
        super()._before()


def layers_kernels() -> Callable[[], None]:
    """A matrix product, a softmax, a sort and a prefix sum, each small and of all multiprocessors."""
    import torch

    x = torch.randn(2048, 1024, device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        x @ x.T
        torch.softmax(x, 1)
        x.sort(1)
        x.cumsum(0)

    return run


def measure(path: str, overrides: list[str]) -> None:
    """One line a point, as it is measured."""
    between = [(lambda size=size: other_code(0, size * 1024).run()) if size else lambda: None for size in KILOBYTES]
    between.append(layers_kernels())
    monitor, file = prepared.pacer().monitor, Path(path)
    with file.open("a", newline="") as lines:
        out = csv.writer(lines)
        if not file.stat().st_size:
            out.writerow([*SHAPE, *AFTER])
        for _, point, prepare in prepared.points(overrides):
            runner, p = prepare(), point.problem
            timers = [After(runner, before) for before in between]
            taken: list[list[float]] = [[] for _ in timers]
            for _ in range(BLOCKS):  # in turns
                for samples, timer in zip(taken, timers, strict=True):
                    samples.extend(timer.block(SAMPLES, monitor).us)
            shape = (point.backend, runner.resolved_backend, *(getattr(p, name) for name in SHAPE[2:]))
            out.writerow([*shape, *(f"{statistics.median(us):.1f}" for us in taken)])
            lines.flush()
            del timers, runner


def table(path: str | Path = DATA) -> Grid:
    """The lines of a file, without `auto`, which runs one of the others."""
    found = pd.read_csv(path).query("backend != 'auto'")
    cells = tuple(
        (
            *(str(row[name]) for name in SHAPE[1:3]),
            f"{row['s_kv']:,}",
            *(str(row[name]) for name in SHAPE[4:]),
            *map(str, row[AFTER]),
        )
        for _, row in found.iterrows()
    )
    return Grid("", ("kernel", "batch", "s_kv", "s_qo", "queries", "keys", *AFTER), cells)


if __name__ == "__main__":
    what, file, *rest = sys.argv[1:]
    if what == "measure":
        measure(file, rest)
    print(tables.markdown([table(file)]).partition("\n\n")[2])

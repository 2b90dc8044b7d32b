"""What the lines in the L2 cost the kernel that is timed: each point over every state, in turns, in one process.

    python benchmarks/l2_states.py measure FILE.parquet +sweep=specdec_long_ctx [key=value ...]
    python benchmarks/l2_states.py table FILE.parquet
    python benchmarks/l2_states.py flush

`measure` needs a CUDA device and compiled kernels. Each point is kept as it is measured, in FILE.parquet.lines, so that the command
goes on after an interruption. If dirty lines are what a written flush costs, a read after the write takes that cost away, and a
longer read changes nothing more. `flush` prints how long the flushes themselves take.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import agreement, prepared
from kernels.timing.caches import Caches, flush_of
from kernels.timing.interleaving import measure_interleaved
from kernels.timing.series import Series
from kernels.timing.timers import GraphReplay
from orchestrator import tables
from orchestrator.tables import Grid


@dataclass(frozen=True)
class WrittenThenRead(Caches):
    """The buffer is written, and then read."""

    def restore(self) -> None:
        import torch

        flush = flush_of(torch.cuda.current_device(), self.l2_flush_factor)
        flush.write()
        flush.read()


STATES: dict[str, Caches] = {
    "dirty_us": Caches("dirty"),
    "clean_us": Caches("clean"),
    "written_then_read_us": WrittenThenRead("clean"),
    "clean_4_us": Caches("clean", l2_flush_factor=4.0),
    "warm_us": Caches("warm"),
}
SAYS = {"dirty_us": "dirty", "clean_us": "clean", "written_then_read_us": "written, then read", "clean_4_us": "clean, factor 4"}
SAYS["warm_us"] = "warm"


def in_every_state(runner: Any, timing: Any, seed: int) -> dict[str, float]:
    """The median of graph replays in µs over each state of the L2, in turns, and whether any sample was throttled."""
    series = {name: Series(GraphReplay(runner, timing.warmup, caches), timing) for name, caches in STATES.items()}
    measure_interleaved(list(series.values()), prepared.pacer(), seed)
    results = {}
    for name, one in series.items():
        if one.error:
            raise one.error
        results[name] = one.result()
    medians = {name: statistics.median(us for block in result.blocks_us for us in block) for name, result in results.items()}
    return medians | {"throttled": any(result.throttled_us for result in results.values())}


def measure(out: str, overrides: list[str]) -> None:
    """Every point of the command line, into one Parquet file."""
    lines = f"{out}.lines"
    agreement.one_pass(lines, overrides, in_every_state)
    pd.read_json(lines, lines=True, dtype={"point_id": str}).to_parquet(out)


def table(path: str | Path) -> Grid:
    """Each point: its median over every state, and how far each is from the clean one."""
    rows = pd.read_parquet(path)
    cells = []
    for row in rows.to_dict("records"):
        shape = (row["resolved_backend"], str(row["batch_size"]), f"{row['s_kv']:,}", str(row["s_qo"]), row["kv_dtype"])
        cells.append((*shape, *(f"{row[name]:.1f}" for name in STATES), *(f"{row[name] - row['clean_us']:+.1f}" for name in OFF)))
    header = ("kernel", "batch", "s_kv", "s_qo", "keys", *(f"{SAYS[name]}, µs" for name in STATES))
    return Grid("", (*header, *(f"{SAYS[name]} − clean" for name in OFF)), tuple(cells))


OFF = ("dirty_us", "written_then_read_us", "clean_4_us")


def differences(path: str | Path) -> Grid:
    """How far each state is from the clean one over all points, in µs."""
    rows = pd.read_parquet(path)
    cells = []
    for name in (*OFF, "warm_us"):
        difference_us = rows[name] - rows["clean_us"]
        figures = (difference_us.mean(), difference_us.median(), difference_us.min(), difference_us.max())
        cells.append((SAYS[name], str(len(difference_us)), *(f"{figure:+.2f}" for figure in figures)))
    return Grid("", ("state", "points", "mean − clean, µs", "median", "least", "most"), tuple(cells))


def flushes() -> Grid:
    """How long a flush takes, and at which rate it moves its buffer."""
    import torch

    flush = flush_of(torch.cuda.current_device(), Caches().l2_flush_factor)
    size = flush.buffer.numel()
    cells = []
    for name, run in {"read": flush.read, "write": flush.write}.items():
        us = _median_us(run)
        cells.append((name, f"{size / 2**20:.0f} MiB", f"{us:.1f}", f"{size / us / 1e6:.2f}"))
    return Grid("", ("flush", "buffer", "µs", "TB/s"), tuple(cells))


def _median_us(run: Callable[[], None], samples: int = 50) -> float:
    import torch

    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(samples)]  # type: ignore[no-untyped-call]
    torch.cuda._sleep(10_000_000)  # type: ignore[no-untyped-call]  # the CPU issues the rest meanwhile
    for start, end in pairs:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) * 1e3 for start, end in pairs)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "measure":
        measure(rest[0], rest[1:])
    for made in [flushes()] if what == "flush" else [table(rest[0]), differences(rest[0])]:
        print(tables.markdown([made]).partition("\n\n")[2], end="\n\n")

"""Where the time of a capture goes: of the isolated call of each point, and of its step.

    python benchmarks/captures.py FILE.parquet +sweep=specdec_long_ctx timing.context=step [key=value ...]
    python benchmarks/captures.py table FILE.parquet

Each is captured `CAPTURES` times, and the CPU times the parts of a capture. Before each one a tensor of a quarter of a GiB is
allocated and freed, because a check too leaves memory in the allocator. It needs a CUDA device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import prepared
from orchestrator.tables import Grid, markdown

CAPTURES = 5
LEFT_BYTES = 2**28
PARTS = ("empty_cache", "record", "instantiate", "first_replay", "next_replay")


def measure(overrides: list[str]) -> pd.DataFrame:
    """A row for each point, what is captured, and capture: the milliseconds of each part."""
    layer, rows = prepared.settings_of(overrides).model.layer, []
    for timing, point, ready in prepared.points(overrides):
        shared, runner = prepared.shared_step(timing, layer, ready), ready()
        _, step = shared.prepare(ready.adapter, runner, ready.device)
        what = {key: getattr(point.problem, key) for key in ("batch_size", "s_kv", "s_qo", "kv_dtype")} | {"backend": point.backend}
        for captured, call, layers in (("call", runner, 0), ("step", step._run, len(shared.layers))):
            about = {**what, "captured": captured, "layers": layers}
            rows.extend({**about, "number": number, **_parts_ms(call)} for number in range(CAPTURES))
    return pd.DataFrame(rows)


def _parts_ms(call: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of each of `PARTS`."""
    import torch

    freed = torch.empty(LEFT_BYTES, dtype=torch.uint8, device="cuda")
    del freed
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record() -> None:
        with torch.cuda.stream(stream):
            graph.capture_begin()
            call()
            graph.capture_end()

    steps: tuple[Callable[[], Any], ...] = (torch.cuda.empty_cache, record, graph.instantiate, graph.replay, graph.replay)
    return {part: _ms(each) for part, each in zip(PARTS, steps, strict=True)}


def _ms(call: Callable[[], object]) -> float:
    import torch

    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) * 1e3


def table(path: str | Path) -> Grid:
    """Medians over points, and in brackets the longest, in milliseconds. `first` is the first capture of a point."""
    rows = pd.read_parquet(path)
    cells = []
    for (captured, layers, first), part in rows.groupby(["captured", "layers", rows["number"] == 0]):
        figures = (f"{part[name].median():.1f} ({part[name].max():.1f})" for name in PARTS)
        points = part.groupby(["backend", "batch_size", "s_kv", "s_qo", "kv_dtype"]).ngroups
        cells.append((str(captured), str(layers) if layers else "–", "first" if first else "later", str(points), *figures))
    return Grid("", ("captured", "layers", "capture", "points", *(name.replace("_", " ") for name in PARTS)), tuple(cells))


if __name__ == "__main__":
    if sys.argv[1] == "table":
        print(markdown([table(sys.argv[2])]))
    else:
        measure(sys.argv[2:]).to_parquet(sys.argv[1])
        print(markdown([table(sys.argv[1])]))

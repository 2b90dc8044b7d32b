"""Which kernels of a step become faster or slower if attention runs in it, from a profile of both graphs by CUPTI.

    python benchmarks/step_profile.py FILE.parquet +sweep=specdec_long_ctx timing.context=step [key=value ...]
    python benchmarks/step_profile.py table FILE.parquet

The step with attention and the step with the copy in its place are replayed in turns. Each kernel counts under its name and its
place in a layer. `gap` is the time in which no kernel runs, between the first one and the last. It needs a CUDA device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import prepared
from orchestrator.tables import Grid, markdown

REPLAYS = 20  # of either graph, after as many that are not counted
GAP = "(no kernel runs)"
NAME_LENGTH = 48


def profile(overrides: list[str]) -> pd.DataFrame:
    """A row for each point, graph, and name of a kernel: how many run in a layer, and their time in microseconds a layer."""
    layer, rows = prepared.settings_of(overrides).model.layer, []
    for timing, point, ready in prepared.points(overrides):
        shared = prepared.shared_step(timing, layer, ready)
        _, step = shared.prepare(ready.adapter, ready(), ready.device)
        keys = ("batch_size", "s_kv", "s_qo", "q_dtype", "kv_dtype")
        what = {key: getattr(point.problem, key) for key in keys} | {"backend": point.backend, "layers": len(shared.layers)}
        for graph, spans in zip(("attention", "stand-in"), spans_of([step, shared.stand_in]), strict=True):
            rows.extend({**what, "graph": graph, **one} for one in by_name(spans, len(shared.layers)))
    return pd.DataFrame(rows)


def spans_of(graphs: Sequence[Callable[[], None]]) -> list[list[list[tuple[str, float, float]]]]:
    """For each graph the kernels of each replay, in order: name, and start and end in microseconds."""
    import torch
    from torch.autograd import DeviceType  # type: ignore[attr-defined]
    from torch.profiler import ProfilerActivity

    for _ in range(REPLAYS):
        for replay in graphs:
            replay()
    found: list[list[list[tuple[str, float, float]]]] = [[] for _ in graphs]
    for _ in range(REPLAYS):
        for number, replay in enumerate(graphs):
            torch.cuda.synchronize()
            with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as seen:
                replay()
                torch.cuda.synchronize()
            events: list[Any] = [event for event in seen.events() if event.device_type == DeviceType.CUDA]
            found[number].append(sorted(((e.name, e.time_range.start, e.time_range.end) for e in events), key=lambda e: e[1]))
    return found


def by_name(replays: list[list[tuple[str, float, float]]], layers: int) -> list[dict[str, Any]]:
    """Medians over replays, a layer: count and microseconds of each kernel's name, and of the gaps."""
    tables = []
    for spans in replays:
        table = pd.DataFrame(spans, columns=["name", "start", "end"])
        total = table.assign(us=table["end"] - table["start"]).groupby("name")["us"].agg(["sum", "count"])
        busy_until, gap = table["start"].min(), 0.0
        for _, start, end in spans:
            gap += max(0.0, start - busy_until)
            busy_until = max(busy_until, end)
        total.loc[GAP] = [gap, 0]
        tables.append(total)
    every = pd.concat(tables).groupby(level=0).median() / layers
    return [{"name": name, "us": row["sum"], "count": row["count"]} for name, row in every.iterrows()]


def table(path: str | Path) -> Grid:
    """Each point's kernels whose time differs between both graphs by 0.2 µs a layer or more, and the sum of all."""
    cells = []
    rows = pd.read_parquet(path)
    keys = ["backend", "batch_size", "s_kv", "s_qo", "q_dtype", "kv_dtype"]
    for point, part in rows.groupby(keys, sort=False):
        both = part.pivot_table(index="name", columns="graph", values="us", aggfunc="sum", fill_value=0.0)
        both = both.assign(more=both["attention"] - both["stand-in"]).sort_values("more", ascending=False)
        shown = both[both["more"].abs() >= 0.2]
        backend, batch, s_kv, s_qo, q, kv = point
        head = (str(backend), f"{batch} x {s_kv:,}", str(s_qo), f"{q}, {kv}")
        for name, row in [*shown.iterrows(), ("all", both.sum())]:
            figures = (f"{row['attention']:.2f}", f"{row['stand-in']:.2f}", f"{row['more']:+.2f}")
            cells.append((*head, str(name)[:NAME_LENGTH], *figures))
    header = ("backend", "batch x s_kv", "s_qo", "queries, keys", "kernel", "with attention", "with a copy", "difference")
    return Grid("µs a layer", header, tuple(cells))


def neighbours(path: str | Path) -> Grid:
    """Each point: what attention's own kernels take, and the kernel of both graphs whose time differs most between them."""
    rows = pd.read_parquet(path)
    cells = []
    for (backend, batch, s_kv, s_qo, kv), part in rows.groupby(["backend", "batch_size", "s_kv", "s_qo", "kv_dtype"]):
        both = part.pivot_table(index="name", columns="graph", values="us", aggfunc="sum")
        counts = part.pivot_table(index="name", columns="graph", values="count", aggfunc="sum").fillna(0.0)
        own = counts["attention"] - counts["stand-in"] >= 0.5  # a kernel more in each layer
        shared = both[counts.min(axis=1) >= 0.5].dropna()
        more = shared["attention"] - shared["stand-in"]
        name = more.abs().idxmax()
        cells.append(
            (
                str(backend),
                f"{batch} x {s_kv:,}",
                str(s_qo),
                str(kv),
                f"{both.loc[own, 'attention'].sum():.1f}",
                f"`{str(name).split('(')[0].split('<')[0][:NAME_LENGTH]}`",
                *(f"{shared.loc[name, graph]:.1f}" for graph in ("attention", "stand-in")),
                f"{more[name]:+.1f}",
                f"{(more.sum() - more[name]):+.1f}",
            )
        )
    header = ("backend", "batch x s_kv", "s_qo", "cache", "attention", "neighbour", "with attention", "with a copy", "difference")
    return Grid("", (*header, "all other neighbours"), tuple(cells))


if __name__ == "__main__":
    if sys.argv[1] == "table":
        print(markdown([table(sys.argv[2])]))
    else:
        profile(sys.argv[2:]).to_parquet(sys.argv[1])
        print(markdown([table(sys.argv[1])]))

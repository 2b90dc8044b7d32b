"""Our medians beside those of FlashInfer's own `bench_gpu_time` (CUPTI): same points, same GPU, same session.

    python benchmarks/agreement.py measure rows.parquet +sweep=specdec_long_ctx [key=value ...]
    python benchmarks/agreement.py table benchmarks/data/h200_agreement.parquet

`measure` needs a CUDA device, compiled kernels and cupti-python. Two processes take their turns, since torch's profiler and
cupti-python cannot both have CUPTI. Type timing.l2=dirty too, since the peer's flush writes.
Both time graph replays between events too, which shows how far the device drifted between.
Each point is kept as it is measured, in `rows.parquet.ours` and `.peer`: what was interrupted goes on, what both have is joined.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.figures import settings_of
from kernels import registry
from kernels.inputs import generate
from kernels.timing.nvml import NvmlMonitor
from kernels.timing.pacing import Pacer
from kernels.timing.series import Series, measure_interleaved
from kernels.timing.timers import Cupti, DeviceEvents, GraphReplay
from orchestrator import machines, tables
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import chosen, expand
from orchestrator.tables import Grid

WITHIN = 0.02
THROTTLED = "held_down"  # the column of the committed file: whether any sample was throttled
TIMES = {"ours": ["cupti_us", "graph_us", THROTTLED], "peer": ["graph_us", "peer_us", THROTTLED]}
SHAPE = ["backend", "resolved_backend", "batch_size", "s_kv", "s_qo", "q_dtype", "kv_dtype"]
COLUMNS = {name: ["point_id", *SHAPE, *times] for name, times in TIMES.items()}


def measure(out: str, overrides: list[str]) -> None:
    """Both passes, each in a process of its own, joined into one Parquet file."""
    try:
        for name in TIMES:
            subprocess.run([sys.executable, __file__, name, f"{out}.{name}", *overrides], check=True)
    finally:
        passes = [pd.DataFrame(_lines(f"{out}.{name}"), columns=COLUMNS[name]) for name in TIMES]
        passes[0].merge(passes[1], on=["point_id", *SHAPE], suffixes=("", "_of_peer_pass")).to_parquet(out)


def _lines(path: str) -> list[dict[str, Any]]:
    """The points of a pass so far; a line that was cut off is no point, and is taken away."""
    if not Path(path).exists():
        return []
    *whole, _ = Path(path).read_text().split("\n")
    Path(path).write_text("".join(f"{line}\n" for line in whole))
    return [json.loads(line) for line in whole]


def one_pass(out: str, overrides: list[str], times_of: Callable[[Any, Any, int], dict[str, float]]) -> None:
    """Times of every supported point; one line a point."""
    done = {line["point_id"] for line in _lines(out)}
    with Path(out).open("a") as file:
        for timing, point, prepare in points(overrides, done):
            shape = {key: getattr(point.problem, key) for key in SHAPE[2:]}
            try:
                runner = prepare()
                times = times_of(runner, timing, point.problem.seed)
            except RuntimeError as error:  # one point, not the pass
                print(f"{point.backend} {shape}: {error}", file=sys.stderr)
                continue
            what = {"backend": point.backend, "resolved_backend": runner.resolved_backend}
            print(json.dumps({"point_id": point.point_id, **what, **shape, **times}), file=file, flush=True)
            del runner


def points(overrides: list[str], done: Collection[str]) -> Iterator[tuple[Any, Any, Callable[[], Any]]]:
    """Timing, point and what prepares its kernel, of each point of a command line that this GPU supports and is not done.

    Points of one problem share its inputs.
    """
    import torch

    torch.set_grad_enabled(False)
    settings, device = settings_of(overrides), machines.describe().devices[0]
    plan = make_plan(chosen(expand(settings), settings), [device], settings)
    todo = sorted((one.point for one in plan.decisions_of("run") if one.point.point_id not in done), key=lambda p: repr(p.problem))
    for problem, group in itertools.groupby(todo, key=lambda p: p.problem):
        inputs = generate.draw(problem, "cuda")
        for point in group:
            yield settings.timing, point, partial(registry.get(problem.routine, point.backend).prepare, inputs, device)


@cache
def pacer() -> Pacer:
    """The pacer of this process's GPU. Raises pynvml.NVMLError if NVML does not know it."""
    import torch

    return Pacer(NvmlMonitor(f"GPU-{torch.cuda.get_device_properties(0).uuid}"))


def ours(runner: Any, timing: Any, seed: int) -> dict[str, float]:
    """Medians of our CUPTI timer and of graph replays between events, in turns; throttled samples are set aside."""
    medians, throttled = _in_turns(runner, timing, seed, (Cupti, GraphReplay))
    return {"cupti_us": medians[0], "graph_us": medians[1], THROTTLED: throttled}


def peer(runner: Any, timing: Any, seed: int) -> dict[str, float]:
    """The peer's median of graph replays under CUPTI, and our graph replays in the same process."""
    from flashinfer.testing import bench_gpu_time

    medians, throttled = _in_turns(runner, timing, seed, (GraphReplay,))
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "error", message=".*Falling back to CUDA events"
        )  # without it, the peer takes events and says so in a warning
        spans_ms = bench_gpu_time(runner, enable_cupti=True, use_cuda_graph=True, cold_l2_cache=True)
    after = pacer().monitor.read()  # NVML tells of the last 50 to 100 ms, the burst's
    throttled |= any(telemetry.throttled_by for telemetry in after)
    return {"graph_us": medians[0], "peer_us": statistics.median(spans_ms) * 1e3, THROTTLED: throttled}


def _in_turns(runner: Any, timing: Any, seed: int, timers: Iterable[type[DeviceEvents]]) -> tuple[list[float], bool]:
    series = [Series(timer(runner, timing.warmup, timing.caches), timing) for timer in timers]
    measure_interleaved(series, pacer(), seed)
    for one in series:
        if one.error:
            raise one.error
    results = [one.result() for one in series]
    medians = [statistics.median(sample for block in result.blocks_us for sample in block) for result in results]
    return medians, any(result.throttled_us for result in results)


def agreement(path: str | Path) -> Grid:
    """How many points agree, by kernel. In µs how far CUPTI's median lies under that of graph replays in the same process: what
    is steady in the one and not in the other has moved."""
    rows = _with_differences(path)
    cells = []
    for (kernel, kv), part in [*rows.groupby(["resolved_backend", "kv_dtype"]), (("all", ""), rows)]:
        within = f"{int((part['rel_diff'].abs() <= WITHIN).sum())} of {len(part)}"
        widest = part.loc[part["rel_diff"].abs().idxmax(), "rel_diff"]
        under = (_spread(part["below_replays"]), _spread(part["below_replays_of_peer"]))
        cells.append((str(kernel), str(kv), within, f"{part['rel_diff'].median():+.2%}", f"{widest:+.2%}", *under))
    header = (
        "kernel",
        "keys",
        "within 2%",
        "ours / peer's − 1, median",
        "widest",
        "ours under replays, µs",
        "peer's under replays, µs",
    )
    return Grid("", header, tuple(cells))


def _with_differences(path: str | Path) -> pd.DataFrame:
    rows = pd.read_parquet(path)
    rows["rel_diff"] = rows["cupti_us"] / rows["peer_us"] - 1
    rows["below_replays"] = rows["graph_us"] - rows["cupti_us"]
    rows["below_replays_of_peer"] = rows["graph_us_of_peer_pass"] - rows["peer_us"]
    return rows


def _spread(column: pd.Series[float]) -> str:
    return f"{column.quantile(0.05):.1f} to {column.quantile(0.95):.1f}"


if __name__ == "__main__":
    what, file, *rest = sys.argv[1:]
    match what:
        case "measure":
            measure(file, rest)
        case "ours":
            one_pass(file, rest, ours)
        case "peer":
            one_pass(file, rest, peer)
        case "table":
            print(tables.markdown([agreement(file)]).partition("\n\n")[2])

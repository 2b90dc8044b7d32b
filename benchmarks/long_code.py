"""Kernels of long code under two ways to read CUPTI: with other code before each replay they agree, without they need not.

    python benchmarks/long_code.py measure FILE.parquet +sweep=specdec_long_ctx [key=value ...]
    python benchmarks/long_code.py table benchmarks/data/h200_long_code.parquet

`measure` needs a CUDA device, Triton, compiled kernels and cupti-python. One process takes our CUPTI timer, with and without the
clock's stamp between samples, the other FlashInfer's `bench_gpu_time` and a loop like its own (flush, synchronise, replay,
synchronise), which can have other code before the flush. The flush writes, as the peer's does.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import agreement, prepared
from kernels.timing.caches import Caches, ICacheState
from kernels.timing.sm_clock import Clock
from kernels.timing.timers import Cupti, GraphReplay
from orchestrator import tables
from orchestrator.tables import Grid

DATA = ROOT / "benchmarks" / "data" / "h200_long_code.parquet"
BURSTS, OURS, LIKE_THE_PEERS = 3, 100, 300  # bursts, of which the median counts, and replays of each
PASSES = ("ours", "peer")


def measure(out: str, overrides: list[str]) -> None:
    """Both passes, each in a process of its own, joined into one Parquet file."""
    for name in PASSES:
        subprocess.run([sys.executable, __file__, name, f"{out}.{name}", *overrides], check=True)
    ours, peer = (pd.read_json(f"{out}.{name}", lines=True) for name in PASSES)
    ours.merge(peer, on=["point_id", *agreement.SHAPE]).to_parquet(out)


class Unstamped(Cupti):
    """Our CUPTI timer with nothing but the flush between samples."""

    def _lead_in(self) -> Clock:
        super()._lead_in()
        return Clock()


def ours(runner: Any, timing: Any, seed: int) -> dict[str, float]:
    """Our CUPTI timer in both states, and without the clock's stamp."""
    monitor, states = prepared.pacer().monitor, dict[str, ICacheState](ours_warm_us="warm", ours_cold_us="cold")
    timers: dict[str, Cupti] = {name: Cupti(runner, 3, Caches("dirty", icache=state)) for name, state in states.items()}
    timers["ours_unstamped_us"] = Unstamped(runner, 3, Caches("dirty"))
    bursts = [{name: statistics.median(timer.block(OURS, monitor).us) for name, timer in timers.items()} for _ in range(BURSTS)]
    return {name: statistics.median(burst[name] for burst in bursts) for name in timers}


def peer(runner: Any, timing: Any, seed: int) -> dict[str, float]:
    """A loop like the peer's in both states, and the peer's own."""
    from flashinfer.testing import bench_gpu_time

    timers = {f"peer_{state}_us": GraphReplay(runner, 3, Caches("dirty", icache=state)) for state in ("warm", "cold")}
    bursts = [{name: statistics.median(like_the_peers(timer)) for name, timer in timers.items()} for _ in range(BURSTS)]
    spans_ms = bench_gpu_time(runner, enable_cupti=True, use_cuda_graph=True, cold_l2_cache=True)
    own = {"bench_gpu_time_us": statistics.median(spans_ms) * 1e3}
    return {name: statistics.median(burst[name] for burst in bursts) for name in timers} | own


def like_the_peers(timer: GraphReplay) -> list[float]:
    """Microseconds from the start of the first to the end of the last kernel of each replay."""
    import torch
    from cupti import cupti

    kind, seen = cupti.ActivityKind, []
    kinds = (kind.RUNTIME, kind.CONCURRENT_KERNEL, kind.DRIVER)

    def completed(activities: list[Any]) -> None:
        seen.extend((a.correlation_id, a.start, a.end, a.name) for a in activities if a.kind == kind.CONCURRENT_KERNEL)

    for each in kinds:
        cupti.activity_enable(each)
    cupti.activity_register_callbacks(lambda: (8 * 2**20, 0), completed)
    for _ in range(LIKE_THE_PEERS):
        timer.caches.restore()
        torch.cuda.synchronize()
        timer.graph.replay()
        torch.cuda.synchronize()
    cupti.activity_flush_all(0)
    for each in kinds:
        cupti.activity_disable(each)
    cupti.finalize()
    launches: dict[int, list[tuple[int, int]]] = {}
    for launch, start, end, name in seen:
        if "FillFunctor" not in name and name != "stretch":  # the flush, the other code
            launches.setdefault(launch, []).append((start, end))
    if len(launches) != LIKE_THE_PEERS:
        raise RuntimeError(f"CUPTI saw {len(launches)} of {LIKE_THE_PEERS} replays")
    return [(max(end for _, end in of) - min(start for start, _ in of)) / 1e3 for of in launches.values()]


def table(path: str | Path = DATA) -> Grid:
    """Each point: both ways without and with other code, and how far ours is from the other."""
    cells = []
    for row in pd.read_parquet(path).to_dict("records"):
        shape = (row["resolved_backend"], str(row["batch_size"]), f"{row['s_kv']:,}", str(row["s_qo"]), row["kv_dtype"])
        warm = (row[f"{name}_us"] for name in ("bench_gpu_time", "peer_warm", "ours_unstamped", "ours_warm"))
        cold = (row["peer_cold_us"], row["ours_cold_us"])
        rel_diffs = (row["ours_warm_us"] / row["bench_gpu_time_us"] - 1, row["ours_cold_us"] / row["peer_cold_us"] - 1)
        cells.append(
            (*shape, *(f"{us:.1f}" for us in warm), f"{rel_diffs[0]:+.1%}", *(f"{us:.1f}" for us in cold), f"{rel_diffs[1]:+.1%}")
        )
    shape_ = ("kernel", "batch", "s_kv", "s_qo", "keys")
    warm_ = ("`bench_gpu_time`, µs", "a loop like it", "ours without the stamp", "ours", "ours off")
    return Grid("", (*shape_, *warm_, "after other code: a loop like the peer's", "ours", "ours off"), tuple(cells))


if __name__ == "__main__":
    what, file, *rest = sys.argv[1:]
    match what:
        case "measure":
            measure(file, rest)
        case "ours":
            agreement.one_pass(file, rest, ours)
        case "peer":
            agreement.one_pass(file, rest, peer)
        case "table":
            print(tables.markdown([table(file)]).partition("\n\n")[2])

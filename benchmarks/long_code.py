"""Kernels of long code under two ways to read CUPTI: with other code before each replay they agree, without they need not.

    python benchmarks/long_code.py measure FILE.parquet +sweep=specdec_long_ctx [key=value ...]
    python benchmarks/long_code.py table benchmarks/data/h200_long_code.parquet

`measure` needs a CUDA device, Triton, compiled kernels and cupti-python. One process takes our CUPTI timer, the other FlashInfer's
`bench_gpu_time` and a loop like its own (flush, synchronise, replay, synchronise), which can have other code before the flush.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import agreement, prepared  # noqa: E402
from kernels.caches import Caches, ICacheState  # noqa: E402
from kernels.timers import Cupti, GraphReplay  # noqa: E402
from orchestrator import grid  # noqa: E402
from orchestrator.grid import Grid  # noqa: E402

DATA = ROOT / "benchmarks" / "data" / "h200_long_code.parquet"
BURSTS, OURS, LIKE_THE_PEERS = 3, 100, 300  # bursts, of which the median counts, and replays of each
PASSES = ("ours", "peer")


def measure(out: str, overrides: list[str]) -> None:
    """Both passes, each in a process of its own, joined into one Parquet file."""
    for name in PASSES:
        subprocess.run([sys.executable, __file__, name, f"{out}.{name}", *overrides], check=True)
    ours, peer = (pd.read_json(f"{out}.{name}", lines=True) for name in PASSES)
    ours.merge(peer, on=["point_id", *agreement.SHAPE]).to_parquet(out)


def ours(runner: Any, timing: Any, seed: int) -> dict[str, float]:
    """Our CUPTI timer in both states."""
    witness, states = prepared.pace().witness, dict[str, ICacheState](ours_warm_us="warm", ours_cold_us="cold")
    timers = {name: Cupti(runner, 3, Caches(icache=state)) for name, state in states.items()}
    bursts = [{name: statistics.median(timer.block(OURS, witness).us) for name, timer in timers.items()} for _ in range(BURSTS)]
    return {name: statistics.median(burst[name] for burst in bursts) for name in timers}


def peer(runner: Any, timing: Any, seed: int) -> dict[str, float]:
    """A loop like the peer's in both states, and the peer's own."""
    from flashinfer.testing import bench_gpu_time

    timers = {f"peer_{state}_us": GraphReplay(runner, 3, Caches(icache=state)) for state in ("warm", "cold")}
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
    return [(max(end for _, end in of) - min(start for start, _ in of)) / 1e3 for of in launches.values()]


def table(path: str | Path = DATA) -> Grid:
    """Each point: both ways without and with other code, and how far ours is from the other."""
    cells = []
    for row in pd.read_parquet(path).to_dict("records"):
        shape = (row["resolved_backend"], str(row["batch_size"]), f"{row['s_kv']:,}", str(row["s_qo"]), row["kv_dtype"])
        times = [f"{row[name]:.1f}" for name in ("ours_warm_us", "bench_gpu_time_us", "peer_warm_us")]
        off = [
            f"{row[f'ours_{state}_us'] / row[name] - 1:+.1%}"
            for state, name in (("warm", "bench_gpu_time_us"), ("cold", "peer_cold_us"))
        ]
        cells.append((*shape, *times, off[0], f"{row['ours_cold_us']:.1f}", f"{row['peer_cold_us']:.1f}", off[1]))
    shape_ = ("kernel", "batch", "s_kv", "s_qo", "keys")
    warm = ("ours, µs", "`bench_gpu_time`", "a loop like it", "off")
    return Grid("", (*shape_, *warm, "other code: ours", "... a loop like the peer's", "off"), tuple(cells))


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
            print(grid.markdown([table(file)]).partition("\n\n")[2])

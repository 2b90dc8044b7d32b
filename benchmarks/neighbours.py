"""What attention costs in a step whose other kernels are changed, and why a product of the MLP takes two different times.

    python benchmarks/neighbours.py FILE.parquet [--seconds=100] [key=value ...]
    python benchmarks/neighbours.py table FILE.parquet

Without `key=value` it measures `POINTS`: those where the step misleads (docs/timing.md), with every variant of
benchmarks/step_variants.py, and ordinary ones with those that change neighbours. With `key=value` it measures all points of that
command line with every variant. It needs a CUDA device. A variant is measured as soon as it is captured: by events, the two graphs
in turns, and then by CUPTI. What is in FILE already is not measured again, so a run that was cut short can be continued.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pandas as pd

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import prepared, replays, step_profile
from benchmarks.neighbours_table import GRAPHS, KEYS, grids
from benchmarks.step_variants import CAUSES, EVERY, NEIGHBOURS, PRODUCT, Bench, Pair
from orchestrator.tables import markdown

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarks.prepared import Ready
    from kernels.adapter import Adapter, Runner
    from kernels.device import Device
    from kernels.step.shapes import LayerShape
    from kernels.timing.config import Timing
    from orchestrator.point import Point
    from orchestrator.worker.shared_step import SharedStep

SECONDS = 100.0
ROUNDS, PROFILED = 15, 5  # replays of either graph, by events and by CUPTI
TODAY = "as today"
POINTS = {  # backend, batch_size, s_kv, s_qo, keys: whether the step misleads there
    ("flash_attn_3", 1, 8192, 2, "fp8_e4m3"): True,
    ("trtllm-native", 1, 8192, 8, "bf16"): True,
    ("fa2_tc", 1, 8192, 4, "bf16"): False,
    ("trtllm-native", 1, 8192, 4, "bf16"): False,
    ("cudnn", 1, 32768, 4, "bf16"): True,
    ("cudnn", 1, 8192, 1, "bf16"): False,
    ("flash_attn_3", 8, 8192, 1, "bf16"): False,
    ("trtllm-native", 1, 32768, 8, "bf16"): True,
}
OVERRIDES = [
    "+sweep=specdec_long_ctx",
    "timing.context=step",
    "sweep.backend=[fa2_tc,cudnn,trtllm-native,flash_attn_3]",
    "sweep.batch_size=[1,8]",
    "sweep.s_kv=[8192,32768]",
]


class Addresses:
    """Where the product of `PRODUCT` reads its activations and writes, in the last graph of each kind that was captured."""

    def __init__(self) -> None:
        self.of: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def watch(self, graph: str, weights: int) -> Iterator[None]:
        """Notes the products with so many weights. A layer that was warmed up has its last ones in the capture."""
        import torch

        found = self.of[graph] = []

        def noting(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
            def called(x: Tensor, other: Tensor, **out: Tensor) -> Tensor:
                result = product(x, other, **out)
                if other.numel() == weights:
                    found.append((x.data_ptr(), result.data_ptr()))
                return result

            return called

        with patch.object(torch, "matmul", noting(torch.matmul)), patch.object(torch, "mm", noting(torch.mm)):
            yield

    def row(self, layers: int) -> dict[str, Any]:
        """A row's columns: the addresses in the first layer of the graph, and how many different ones its layers have."""
        columns: dict[str, Any] = {}
        for graph in GRAPHS:
            captured = self.of.get(graph, [])[-layers:]
            for number, what in enumerate(("input", "output")):
                places = [one[number] for one in captured]
                columns |= {f"{graph} {what}": hex(places[0]) if places else "", f"{graph} {what}s": len(set(places))}
        return columns


def misleads(point: Point) -> bool | None:
    """What `POINTS` says of a point, None if it is not there. Of an FP8 cache the one with FP8 queries is meant."""
    p = point.problem
    same_dtype = p.q_dtype == p.kv_dtype
    return POINTS.get((point.backend, p.batch_size, p.s_kv, p.s_qo, p.kv_dtype)) if same_dtype else None


def rank(point: Point) -> int | None:
    """The place of a point in `POINTS`."""
    p = point.problem
    key = (point.backend, p.batch_size, p.s_kv, p.s_qo, p.kv_dtype)
    return None if misleads(point) is None else list(POINTS).index(key)


def run(path: Path, seconds: float, overrides: list[str]) -> None:
    """Measures until the time is over, and writes after each point."""
    until = time.monotonic() + seconds
    rows = pd.read_parquet(path).to_dict("records") if path.exists() else []
    layer = prepared.settings_of(overrides or OVERRIDES).model.layer
    for timing, point, ready in prepared.points(overrides or OVERRIDES, rank=(lambda _: 0) if overrides else rank):
        what: dict[Any, Any] = {key: getattr(point.problem, key) for key in KEYS[1:]} | {"backend": point.backend}
        done = {row["variant"] for row in rows if all(row[key] == what[key] for key in KEYS)}
        every = EVERY if overrides or misleads(point) else NEIGHBOURS
        names = [name for name in (TODAY, *every) if name not in done]
        if not names or time.monotonic() > until:
            print(f"{what}: {'no time left, run it again' if names else 'measured already'}", flush=True)
            continue
        print(what, flush=True)
        rows += [{**what, "device": ready.device.name, **row} for row in of_point(timing, layer, ready, names, until)]
        pd.DataFrame(rows).to_parquet(path)


def of_point(timing: Timing, layer: LayerShape | None, ready: Ready, names: list[str], until: float) -> list[dict[str, Any]]:
    """The rows of a point; a backend that cannot be prepared leaves one that says why."""
    seen = Addresses()
    try:
        shared = prepared.shared_step(timing, layer, ready)
        bench = bench_of(shared, ready.adapter, ready(), ready.device, seen)
    except (RuntimeError, ImportError, ValueError) as error:
        return [{"variant": "(none)", "reason": f"cannot be prepared: {error}".partition("\n")[0]}]
    return list(variants(bench, seen, names, until))


def bench_of(shared: SharedStep, adapter: Adapter, first: Runner, device: Device, seen: Addresses) -> Bench:
    """The parts of all variants: a runner for each layer, and on a GPU what fills its L2."""
    from kernels.timing.caches import flush_of

    runners, _ = shared.prepare(adapter, first, device)
    on_gpu = shared.layers[0].inputs.q.is_cuda
    read = flush_of(0, 2.0).read if on_gpu else lambda: None
    weights = shared.layers[0].weights.get(PRODUCT)
    count = -1 if weights is None else weights.numel()
    return Bench(shared, [(r, r.out) for r in runners], adapter, device, read, lambda graph: seen.watch(graph, count))


def variants(bench: Bench, seen: Addresses, names: list[str], until: float) -> Iterator[dict[str, Any]]:
    """A row of each variant; one that cannot be built says why. Ends when the time is over."""
    for name in names:
        begun = time.monotonic()
        if begun > until:
            return
        build: Callable[[Bench], Pair] = Bench.pair if name == TODAY else EVERY[name]
        try:
            row = {**measured(build(bench), len(bench.layers)), **seen.row(len(bench.layers)), "reason": ""}
        except (RuntimeError, ValueError) as error:  # torch.OutOfMemoryError is a RuntimeError
            row = {"reason": str(error).partition("\n")[0]}
        print(f"{name}: {row.get('cost_us', float('nan')):.1f} µs {row['reason']} ({time.monotonic() - begun:.1f} s)", flush=True)
        yield {"variant": name, "kind": "causes" if name in CAUSES else "neighbours", **row}


def measured(pair: Pair, layers: int) -> dict[str, Any]:
    """The cost of attention in µs with its 95% interval, the clocks, and the kernels of both graphs."""
    from kernels.timing.stats import interval_of_median

    on_gpu = pair.step.residual.is_cuda
    graphs = (pair.stand_in, pair.step)  # in the order of a worker's samples
    times = replays.timed(graphs, ROUNDS, on_gpu)
    costs = sorted((step - stand_in) / layers for stand_in, step in zip(*times.us, strict=True))
    low, high = interval_of_median(costs)
    row = {"layers": layers, "cost_us": statistics.median(costs), "low_us": low, "high_us": high}
    for graph, us, mhz in zip(("stand-in", "attention"), times.us, times.mhz, strict=True):
        row |= {f"{graph} step": statistics.median(us), f"{graph} MHz": statistics.median(mhz) if mhz else float("nan")}
    if not on_gpu:
        return row
    try:
        stand_in, attention = replays.profiled(graphs, PROFILED)
        row |= kernels_of(stand_in, attention, layers)
    except (RuntimeError, ValueError) as error:
        if pair.reads:
            raise  # its cost is not known without the time of the read
        return row | {"note": f"no profile: {error}".partition("\n")[0]}  # the cost is known without it
    read_us = row["read"] if pair.reads else 0.0
    row |= {name: row[name] + read_us for name in ("cost_us", "low_us", "high_us")}
    return row


def kernels_of(stand_in: list[Any], attention: list[Any], layers: int) -> dict[str, Any]:
    """From the replays of both graphs, in µs a layer: the kernels that one of them has alone, and those that both have.

    The product is the longest kernel of both. All others that both have are `others`, the difference of their sums.
    """
    tables = [pd.DataFrame(step_profile.by_name(spans, layers)).set_index("name") for spans in (attention, stand_in)]
    us, counts = (pd.concat([table[of] for table in tables], axis=1, keys=GRAPHS).fillna(0.0) for of in ("us", "count"))
    more_us, more = us["attention"] - us["stand-in"], counts["attention"] - counts["stand-in"]
    shared = us[(more.abs() < 0.5) & (counts.min(axis=1) >= 0.5)]
    name = str(shared.max(axis=1).idxmax())
    fewer = more <= -0.5
    return {
        "attention own": more_us[more >= 0.5].sum(),
        "stand-in own": -more_us[fewer].sum(),
        "read": -more_us[fewer & us.index.str.contains("reduce")].sum(),
        "product": name,
        "others": more_us[shared.index.drop(name)].sum(),
        "gaps": more_us[step_profile.GAP],
        **{f"{graph} product": shared.loc[name, graph] for graph in GRAPHS},
        **{f"{graph} by layer": in_order(spans, name) for graph, spans in zip(GRAPHS, (attention, stand_in), strict=True)},
    }


def in_order(spans: list[list[tuple[str, float, float]]], name: str) -> list[float]:
    """Medians over the replays of the first, second, ... kernel of a name, in microseconds."""
    each = [[end - start for kernel, start, end in replay if kernel == name] for replay in spans]
    return [statistics.median(times) for times in zip(*each, strict=False)]


def main(*args: str) -> str:
    if args[0] == "table":
        return markdown(list(grids(pd.read_parquet(args[1]))))
    import gc

    gc.freeze()  # every capture collects garbage, and would look at all of torch
    seconds = [float(arg.partition("=")[2]) for arg in args if arg.startswith("--seconds=")]
    run(Path(args[0]), [*seconds, SECONDS][0], [arg for arg in args[1:] if not arg.startswith("--")])
    return markdown(list(grids(pd.read_parquet(args[0]))))


if __name__ == "__main__":
    print(main(*sys.argv[1:]))

"""What attention takes in bursts after a rest, as it is measured alone, and back to back, as in a step: time, clock and power.

    python benchmarks/sustained.py FILE.parquet +sweep=specdec_long_ctx timing.context=step [key=value ...]
    python benchmarks/sustained.py table FILE.parquet [FILE.parquet ...]

It measures all points of the command line in four loads: attention of one layer, of all layers of the step in a row, the step, and
the step with the stand-in. Each is replayed in bursts of `BURST_S` or two replays, if these last longer, after `REST_S` without
work, and then back to back for `SUSTAINED_S` or `MOST` replays. Unlike a worker it sets no sample aside and waits for no clock. It
needs a CUDA device.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import prepared, replays
from benchmarks.neighbours_table import KEYS
from orchestrator.analysis.names import shown
from orchestrator.errors import UserError
from orchestrator.tables import Grid, markdown

if TYPE_CHECKING:
    from benchmarks.step_variants import Bench
    from kernels.timing.nvml import DeviceMonitor

Replay = Callable[[], object]
REST_S, BURST_S, BURSTS = 0.05, 0.006, 12  # a worker's blocks of samples last about as long
SUSTAINED_S, MOST = 1.0, 1000  # replays of one load at most: the clock keeps so many stamps
ONE, ALL, STEP, COPY = "one layer", "all layers", "a step", "a step with the copy"
IN_BURSTS, BACK_TO_BACK = "in bursts", "back to back"
THROTTLED = "throttled_by"  # a column that the oldest file lacks


def loads(bench: Bench) -> dict[str, tuple[Replay, int]]:
    """What is replayed, and how many layers that is."""
    calls = [call for call, _ in bench.attention]
    pair, layers = bench.pair(), len(calls)
    return {ONE: (_graph(calls[:1]), 1), ALL: (_graph(calls), layers), STEP: (pair.step, layers), COPY: (pair.stand_in, layers)}


def _graph(calls: list[Replay]) -> Replay:
    """The calls in a row, as one graph on a GPU."""
    import torch

    from kernels.timing.graphs import capture

    def run() -> None:
        for call in calls:
            call()

    run()
    return capture(run).replay if torch.cuda.is_available() else run


def in_bursts(replay: Replay, on_gpu: bool = True) -> replays.Times:
    """Some replays at a time, each time after a rest. Before each time one replay does not count."""
    us, mhz = [], []
    count = _count(replay, BURST_S, on_gpu)
    for _ in range(BURSTS):
        time.sleep(REST_S)
        found = replays.timed([replay], count, on_gpu)
        us += found.us[0]
        mhz += found.mhz[0]
    return replays.Times([us], [mhz])


def back_to_back(replay: Replay, on_gpu: bool = True) -> replays.Times:
    """The second half of `SUSTAINED_S` of replays without a gap. The clock may fall further after that."""
    found = replays.timed([replay], _count(replay, SUSTAINED_S, on_gpu), on_gpu)
    return replays.Times(*([values[len(values) // 2 :] for values in kinds] for kinds in (found.us, found.mhz)))


def _count(replay: Replay, seconds: float, on_gpu: bool) -> int:
    """How many replays last so long: 2 at least."""
    us = statistics.median(replays.timed([replay], 3, on_gpu).us[0])
    return min(max(2, int(seconds * 1e6 / us)), MOST)


def rows_of(bench: Bench, on_gpu: bool = True) -> list[dict[str, Any]]:
    """A row of each load and pace: µs a layer, MHz, what throttled the clock at its end, and watts if the driver counts energy.

    The watts are of all replays back to back, with those that come before the ones that count.
    """
    rows, monitor = [], _monitor(on_gpu)
    for load, (replay, layers) in loads(bench).items():
        for pace, measure in ((IN_BURSTS, in_bursts), (BACK_TO_BACK, back_to_back)):
            begun, energy = time.perf_counter(), monitor.energy_mj()
            found = measure(replay, on_gpu)
            throttled_by, after, seconds = monitor.throttled_by(), monitor.energy_mj(), time.perf_counter() - begun
            watts = float("nan") if energy is None or after is None else (after - energy) / seconds / 1e3
            mhz = statistics.median(found.mhz[0]) if found.mhz[0] else float("nan")
            rows.append(
                {
                    "load": load,
                    "pace": pace,
                    "layers": layers,
                    "us": statistics.median(found.us[0]) / layers,
                    "mhz": mhz,
                    "watts": watts if pace == BACK_TO_BACK else float("nan"),
                    THROTTLED: ", ".join(sorted(throttled_by)),
                    "samples": len(found.us[0]),
                }
            )
    return rows


def _monitor(on_gpu: bool) -> DeviceMonitor:
    """What NVML says of this process's device; on a CPU nothing."""
    from kernels.timing.nvml import DeviceMonitor, NvmlMonitor

    return NvmlMonitor(_uuid()) if on_gpu else DeviceMonitor()


def _uuid() -> str:
    """Of this process's CUDA device, as NVML writes it."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def table(path: Path) -> Grid:
    """A line for each point: µs a layer and MHz of attention, by load and pace. The cost in a step is the step minus the copy's.

    A last column says what held the clock down at the end of each load, if the file has it.
    """
    cells, rows = [], pd.read_parquet(path)
    for shape, part in rows.groupby(KEYS, sort=False):
        us, mhz, watts = (part.set_index(["load", "pace"])[column] for column in ("us", "mhz", "watts"))
        backend, batch, s_kv, s_qo, q, kv = shape
        power = f"{watts[ALL, BACK_TO_BACK]:.0f}"
        cells.append((shown(backend), f"{batch} x {s_kv:,}", str(s_qo), f"{q}, {kv}", *_figures(us, mhz), power, *_throttled(part)))
    paces = (f"{load}, {pace}" for load in (ONE, ALL) for pace in (IN_BURSTS, BACK_TO_BACK))
    step = (f"cost in a step, {pace}" for pace in (IN_BURSTS, BACK_TO_BACK))
    last = ("throttled by, in how many of the loads",) if THROTTLED in rows else ()
    header = ("backend", "batch x s_kv", "s_qo", "queries, keys", *paces, *step, "watts, all layers back to back", *last)
    return Grid(path.name, header, tuple(cells))


def _figures(us: pd.Series, mhz: pd.Series) -> list[str]:
    alone = [f"{us[load, pace]:,.1f} ({mhz[load, pace]:,.0f} MHz)" for load in (ONE, ALL) for pace in (IN_BURSTS, BACK_TO_BACK)]
    cost = [f"{us[STEP, pace] - us[COPY, pace]:,.1f} ({mhz[STEP, pace]:,.0f} MHz)" for pace in (IN_BURSTS, BACK_TO_BACK)]
    return alone + cost


def _throttled(part: pd.DataFrame) -> tuple[str, ...]:
    """`SwPowerCap: 2 of 4 in bursts, 4 of 4 back to back`; a dash if nothing did, and nothing if the file does not say."""
    if THROTTLED not in part:
        return ()
    held = {pace: part.loc[part["pace"] == pace, THROTTLED] for pace in (IN_BURSTS, BACK_TO_BACK)}
    words = []
    for reason in sorted(set(part[THROTTLED]) - {""}):
        of_pace = (f"{(reasons == reason).sum()} of {len(reasons)} {pace}" for pace, reasons in held.items())
        words.append(f"{reason}: {', '.join(of_pace)}")
    return ("; ".join(words) or "–",)


def run(path: Path, overrides: list[str]) -> None:
    """Measures the points that the file does not have, and writes after each."""
    from benchmarks.neighbours import Addresses, bench_of

    rows = pd.read_parquet(path).to_dict("records") if path.exists() else []
    refuse_other_cards(path, rows)
    layer = prepared.settings_of(overrides).model.layer
    for timing, point, ready in prepared.points(overrides):
        what: dict[Any, Any] = {key: getattr(point.problem, key) for key in KEYS[1:]} | {"backend": point.backend}
        if any(all(row[key] == what[key] for key in KEYS) for row in rows):
            continue
        shared = prepared.shared_step(timing, layer, ready)
        bench = bench_of(shared, ready.adapter, ready(), ready.device, Addresses())
        of_card = {"device": ready.device.name, "device_uuid": _uuid(), "started_at": pd.Timestamp.now(tz="UTC")}
        rows += [{**what, **of_card, **row} for row in rows_of(bench)]
        pd.DataFrame(rows).to_parquet(path)
        print(what, flush=True)


def refuse_other_cards(path: Path, rows: list[dict[Any, Any]]) -> None:
    """Raises UserError if a file has rows of another card than this process's, because loads are compared with one another."""
    others = {str(row.get("device_uuid")) for row in rows} - {_uuid()} if rows else set()
    if others:
        raise UserError(f"{path} has loads of {', '.join(sorted(others))}, and this process has {_uuid()}; name another file")


def main(*args: str) -> str:
    if args[0] == "table":
        return markdown([table(Path(path)) for path in args[1:]])
    run(Path(args[0]), list(args[1:]))
    return markdown([table(Path(args[0]))])


if __name__ == "__main__":
    print(main(*sys.argv[1:]))

"""What attention takes in bursts and back to back, from the committed files of two H200s; the finding on sustained load reads them.

    python benchmarks/sustained.py table FILE.parquet [FILE.parquet ...]

The benchmark that measured them is in commit 23f5918.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from orchestrator.analysis.names import shown
from orchestrator.tables import Grid, markdown

KEYS = ["backend", "batch_size", "s_kv", "s_qo", "q_dtype", "kv_dtype"]
ONE, ALL, STEP, COPY = "one layer", "all layers", "a step", "a step with the copy"
IN_BURSTS, BACK_TO_BACK = "in bursts", "back to back"
THROTTLED = "throttled_by"  # a column that the oldest file lacks


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


if __name__ == "__main__":
    print(markdown([table(Path(path)) for path in sys.argv[2:]]))

"""The main sweep twice: with instruction caches as its own replays leave them, and after other code (`timing.icache=cold`)."""

from __future__ import annotations

import pandas as pd

from orchestrator import ROOT
from orchestrator.storage import parquet
from orchestrator.tables import Grid

RESULTS = ROOT / "results"
MAIN, COLD_CODE = "h200_specdec_dirty", "h200_specdec_cold_code"  # both over dirty lines
PROBLEM = ["batch_size", "s_kv", "s_qo", "q_dtype", "kv_dtype"]
SHORT_US = 100
AHEAD = 1.02  # by how much the new best must be faster than the old one then


def both() -> pd.DataFrame:
    """The main sweep's points with the medians of both runs, `warm_us` and `cold_us`."""
    key = [*PROBLEM, "backend", "resolved_backend"]
    warm, cold = (
        parquet.read(RESULTS / name).to_pandas().query("status == 'ok'").set_index(key)["median_us"] for name in (MAIN, COLD_CODE)
    )
    return pd.concat({"warm_us": warm, "cold_us": cold}, axis=1, join="inner").reset_index()


def costs() -> Grid:
    """What `timing.icache=cold` costs each kernel over the main sweep."""
    times = both()
    kinds = times.groupby(["resolved_backend", "kv_dtype", times["s_qo"].gt(1).map({False: "1", True: "2 to 8"})])
    cells = []
    for (kernel, keys, s_qo), part in kinds:
        ratio, short = part["cold_us"] / part["warm_us"] - 1, part[part["warm_us"] < SHORT_US]
        short_ratio = f"{(short['cold_us'] / short['warm_us'] - 1).median():+.1%} of {len(short)}" if len(short) else "–"
        more = f"{(part['cold_us'] - part['warm_us']).median():+.1f}"
        cells.append(
            (str(kernel), str(keys), str(s_qo), str(len(part)), f"{ratio.median():+.1%}", short_ratio, f"{ratio.max():+.1%}", more)
        )
    header = ("kernel", "keys", "s_qo", "points", "median", f"median under {SHORT_US} µs", "most", "median, µs")
    return Grid("", header, tuple(cells))


def overtaken() -> Grid:
    """Problems of the main sweep whose best kernel is another one, by more than 2%, once other code runs in between."""
    cells = []
    for problem, part in both().groupby(PROBLEM):
        was, now = (part.loc[part[column].idxmin()] for column in ("warm_us", "cold_us"))
        if was["cold_us"] > AHEAD * now["cold_us"] and was["resolved_backend"] != now["resolved_backend"]:
            batch, s_kv, s_qo, _, keys = problem
            times = (f"{was['warm_us']:.1f}", f"{was['cold_us']:.1f}", f"{now['warm_us']:.1f}", f"{now['cold_us']:.1f}")
            cells.append(
                (str(batch), f"{s_kv:,}", str(s_qo), keys, was["resolved_backend"], *times[:2], now["resolved_backend"], *times[2:])
            )
    cells_header = ("batch", "s_kv", "s_qo", "keys", "best", "µs", "with other code, µs", "best then", "it was, µs", "µs")
    return Grid("the best kernel without and with other code in between", cells_header, tuple(cells))

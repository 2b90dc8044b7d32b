"""What the check can find, as tables of docs/evidence/correctness.md: drawn faults that were caught, and what right rows say."""

from __future__ import annotations

import pandas as pd

from orchestrator import ROOT
from orchestrator.analysis.names import of_references
from orchestrator.reporting import power_curve
from orchestrator.storage import parquet
from orchestrator.tables import Grid

RESULTS = ROOT / "results"
DRAWN, RIGHT = "drawn_check_power", "h100_specdec_long_ctx"
SMALL = 8  # requests: with more of them more rows see a fault
IN_SOME_ROWS = " in some rows"  # kinds that end so are few: one line for all
SIZES = {"1": 1, "2 to 16": 16, "17 to 64": 64, "65 to 1,024": 1024, "more": 10**9}  # keys


def drawn(card: str = "h200") -> Grid:
    """How many drawn faults were caught at the tolerance of each kernel, by kind and size."""
    current = parquet.read(RESULTS / f"{card}_{DRAWN}").to_pandas()
    (title,) = (grid.title for grid in power_curve.curve_grids(current))
    faults = power_curve.drawn_faults(current)
    faults["kind"] = faults["kind"].where(~faults["kind"].str.endswith(IN_SOME_ROWS), f"any,{IN_SOME_ROWS}")
    of_size = pd.cut(faults["size"], [0, *SIZES.values()], labels=list(SIZES))
    cells = []
    for names, rows in faults.groupby(["judged_as", "kind"], sort=True):
        parts = (rows[of_size[rows.index] == size]["caught"] for size in SIZES)
        cells.append((*map(str, names), *(f"{part.sum()} of {len(part)}" if len(part) else "–" for part in parts)))
    return Grid(title, ("tolerance of", "fault", *(f"{size} keys" if size != "1" else "1 key" for size in SIZES)), tuple(cells))


def reach() -> Grid:
    """Right outputs: how far their clearest estimate is from being called a fault, and what the check would have found."""
    table = parquet.read(RESULTS / RIGHT).to_pandas().query("status == 'ok' and backend != 'auto'")
    right = table[(table["batch_size"] <= SMALL) & ~table["backend"].str.contains(of_references())]
    cells = []
    for (kernel, q, kv), rows in right.groupby(["resolved_backend", "q_dtype", "kv_dtype"], sort=True):
        reached = rows["check_min_tokens"]
        found = (f"{rows['weight_over_limit'].max():.2f}", f"{(reached <= 64).sum()}", f"{reached.max():,.0f}")
        covered, launches = f"{rows['check_pairs_covered'].min():.0%}", f"{rows['launches_checked'].median():.0f}"
        cells.append((str(kernel), f"{q}, {kv}", str(len(rows)), *found, covered, launches))
    header = ("kernel", "queries, cache", "points", "largest `weight_over_limit`", "points with N up to 64", "largest N")
    return Grid("", (*header, "mask pairs covered", "launches compared, median"), tuple(cells))

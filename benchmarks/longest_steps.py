"""The longest steps of the main sweep: how alone differs from in step, by how sampling ended.

A table of docs/evidence/timing.md.
"""

from __future__ import annotations

import pandas as pd

from benchmarks.rows import frame_of
from orchestrator import ROOT
from orchestrator.tables import Grid

TOKENS, REQUESTS = 131072, 32  # so many requests or more
CARDS = {"H200": "h200_study_all_in_step", "H100": "h100_study_all_in_step"}
KEYS = ["backend", "batch_size", "s_qo", "q_dtype", "kv_dtype"]
ENDED = {"ci95": "the interval was narrow enough", "throttled": "the clock was below its fastest", "max_seconds": "the time was up"}


def errors() -> pd.DataFrame:
    """By card and point, if both cards measured it: layers, how sampling ended, and alone (without the launch) over in step - 1."""
    found = {card: _of(dataset) for card, dataset in CARDS.items()}
    both = found["H200"].index.intersection(found["H100"].index)
    return pd.concat({card: rows.loc[both] for card, rows in found.items()}, names=["card"])


def table() -> Grid:
    """A line for each card and reason why sampling ended."""
    cells = []
    for card in CARDS:
        of_card = errors().xs(card)
        for reason, words in ENDED.items():
            part = of_card[of_card["step_stop_reason"] == reason]
            if len(part):
                low, high = part["error"].min(), part["error"].max()
                layers = f"{part['step_layers'].min():.0f} to {part['step_layers'].max():.0f}"
                cells.append((card, words, str(len(part)), layers, f"{part['error'].median():+.1%}", f"{low:+.1%} to {high:+.1%}"))
    header = ("GPU", "sampling in the step ended because", "points", "layers", "alone beside in step: median", "from, to")
    return Grid("", header, tuple(cells))


def _of(dataset: str) -> pd.DataFrame:
    rows = frame_of(ROOT / "results" / dataset).query("status == 'ok' and s_kv == @TOKENS and batch_size >= @REQUESTS")
    alone = rows["median_us"] - rows["launch_us"]
    return rows.assign(error=alone / rows["in_step_us"] - 1).set_index(KEYS, verify_integrity=True).sort_index()

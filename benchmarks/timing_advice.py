"""What clean lines changed in the choice of a backend: python benchmarks/measurement.py writes the table into docs/timing.md."""

from __future__ import annotations

import pandas as pd

from benchmarks.timing_study import AHEAD, PROBLEM, ok_rows, own_us
from orchestrator.analysis.names import shown
from orchestrator.tables import Grid

DIRTY = {"h200": "h200_study_all_dirty", "h100": "h100_study_all_dirty"}
CLEAN = {"h200": "h200_specdec_long_ctx", "h100": "h100_study_all_in_step"}

BACKENDS = ("fa2", "fa2_tc", "cudnn", "trtllm-native", "flash_attn_3")  # those of the study


def both(card: str) -> pd.DataFrame:
    """By point: `dirty` and `clean`, µs without the launch, of `BACKENDS` measured over both, in problems of two or more."""
    us = pd.concat({"dirty": own_us(ok_rows(DIRTY[card])), "clean": own_us(ok_rows(CLEAN[card]))}, axis=1).dropna().reset_index()
    us = us[us["backend"].isin(BACKENDS)]
    return us[us.groupby(PROBLEM)["clean"].transform("size") > 1]


def changes(card: str) -> pd.DataFrame:
    """By problem: the first over `dirty` and over `clean` lines, and `cost`, what keeping the first costs over clean lines."""
    us = both(card)
    by_problem = us.groupby(PROBLEM)
    dirty, clean = (us.loc[by_problem[state].idxmin()].set_index(PROBLEM) for state in ("dirty", "clean"))
    kept = dirty["clean"] / clean["clean"] - 1
    return pd.DataFrame({"dirty": dirty["backend"], "clean": clean["backend"], "cost": kept, "us": clean["clean"]})


def grid() -> Grid:
    """The shapes of both cards at which the choice over dirty lines costs over 2% more over clean ones, dearest first."""
    every = pd.concat([changes(card).assign(card=card.upper()) for card in DIRTY])
    dear = every[every["cost"] > AHEAD].reset_index().sort_values("cost", ascending=False)
    cells = [
        (
            row["card"],
            f"{row['batch_size']} x {row['s_kv']:,}",
            str(row["s_qo"]),
            f"{row['q_dtype']}, {row['kv_dtype']}",
            shown(row["dirty"]),
            shown(row["clean"]),
            f"{row['us']:.1f}",
            f"{row['cost']:.1%}",
        )
        for row in dear.to_dict("records")
    ]
    counts = ", ".join(f"{card}: {int((of['dirty'] != of['clean']).sum())} of {len(of)}" for card, of in every.groupby("card"))
    title = f"Shapes with another first backend over clean lines, {counts}; those where the old one costs over {AHEAD:.0%} more"
    header = ("card", "batch x s_kv", "s_qo", "queries, keys", "first, dirty", "first, clean", "clean, µs", "old one costs")
    return Grid(title, header, tuple(cells))

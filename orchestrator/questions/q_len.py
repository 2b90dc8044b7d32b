"""Question 2 on a terminal: where a draft of q tokens costs more than its tokens."""

from __future__ import annotations

from orchestrator.dataset import Dataset
from orchestrator.grid import Grid
from orchestrator.questions import SAME
from orchestrator.questions.tables import NAMES, fetch, named, split

DOWN = ("num_qo_heads", "s_kv", "s_qo")


TITLES = {
    "gain": "a draft as one call: how many times faster than taken apart into single tokens",
    "cost": "what a draft costs in steps of one token at its batch; above s_qo, more than its tokens",
}


def grids(data: Dataset) -> list[Grid]:
    """One call over a draft of q tokens against q requests of one token, and against q steps of one token, each at its best."""
    return [grid for measure in TITLES for grid in grids_of(data, measure)]


def grids_of(data: Dataset, measure: str) -> list[Grid]:
    """By `gain` or by `cost`. A draft of q tokens at batch b, taken apart, is one token a request at batch b * q."""
    found = []
    records = fetch(data, "q_len", (*NAMES, *DOWN), where=f"{measure} IS NOT NULL")
    for name, part in named(records, (*DOWN, "batch_size")):
        batches = sorted({r["batch_size"] for r in part})
        cells = []
        for at, row in split(part, DOWN).items():
            by_batch = {r["batch_size"]: f"{r[measure]:.2f}" for r in row}
            cells.append((*map(str, at), *(by_batch.get(b, "–") for b in batches)))
        found.append(Grid(f"{TITLES[measure]} · {name}", ("heads", "s_kv", "s_qo", *(f"batch {b}" for b in batches)), tuple(cells)))
    return found


def short(data: Dataset) -> str | None:
    """Where a draft costs more than its tokens, by either measure."""
    steps, dearer, apart, slower = data.one(f"""
        SELECT count(cost), count_if(cost > s_qo * (1 + {SAME})), count(gain), count_if(gain < 1 / (1 + {SAME})) FROM q_len""")
    said = []
    if steps:
        said.append(f"more than its tokens one after another at {dearer:,} of {steps:,} shapes")
    if apart:
        said.append(f"more than its tokens as requests of one at {slower:,} of {apart:,}")
    return "a draft costs " + ", ".join(said) if said else None

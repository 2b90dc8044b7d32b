"""The tables of question=q_len: for which problems a draft of q tokens costs more than its tokens one by one."""

from __future__ import annotations

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.noise import SAME
from orchestrator.analysis.questions.tables import TITLE_KEYS, fetch, group_by, split_by_title
from orchestrator.analysis.rough import legend, mark
from orchestrator.analysis.sql import query
from orchestrator.tables import Grid

NEEDS = "paged_decode, mla or gated_delta with s_qo 1 beside more, such as sweep.s_qo=[1,4]"
EACH = "problems"

LINE_KEYS = ("num_qo_heads", "s_kv", "s_qo")  # each combination is a line of a table

TITLES = {
    "gain": "a draft as one call: how many times faster than taken apart into single tokens",
    "cost": "what a draft costs in steps of one token at its batch; above s_qo, more than its tokens",
}


def grids(data: Dataset) -> list[Grid]:
    """One call over a draft of q tokens against q requests of one token, and against q steps of one token, each at its best."""
    return [grid for measure in TITLES for grid in measure_grids(data, measure)]


def measure_grids(data: Dataset, measure: str) -> list[Grid]:
    """The tables of one measure, `gain` or `cost`. For `gain`, q tokens at batch b are compared with one token at batch b * q."""
    found = []
    records = fetch(data, "q_len", (*TITLE_KEYS, *LINE_KEYS), where=f"{measure} IS NOT NULL")
    for name, part in split_by_title(records, (*LINE_KEYS, "batch_size"), (*TITLE_KEYS, "is_state")):
        batches = sorted({r["batch_size"] for r in part})
        cells = []
        for values, row in group_by(part, LINE_KEYS).items():
            by_batch = {r["batch_size"]: f"{mark(r['rough'])}{r[measure]:.2f}" for r in row}
            cells.append((*map(str, values), *(by_batch.get(b, "–") for b in batches)))
        kind = "gated delta nets · " * part[0]["is_state"]
        title = f"{TITLES[measure]}{legend(*(r['rough'] for r in part))} · {kind}{name}"
        found.append(Grid(title, ("heads", "s_kv", "s_qo", *(f"batch {b}" for b in batches)), tuple(cells)))
    return found


def summary(data: Dataset) -> str | None:
    """The number of problems where a draft costs more than its tokens, by either measure."""
    steps, dearer, as_singles, slower = data.single_row(query("draft_costs_more", same=SAME))
    sentences = []
    if steps:
        sentences.append(f"more than its tokens one after another at {dearer:,} of {steps:,} problems")
    if as_singles:
        sentences.append(f"more than its tokens as requests of one at {slower:,} of {as_singles:,}")
    return "a draft costs " + ", ".join(sentences) if sentences else None

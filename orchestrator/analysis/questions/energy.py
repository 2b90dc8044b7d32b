"""The tables of question=energy: the backend that takes the least for each problem, and what the fastest one takes."""

from __future__ import annotations

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.draft import describe_acceptance
from orchestrator.analysis.questions.tables import across_contexts, fetch, percent, split_by_title
from orchestrator.analysis.sql import query
from orchestrator.config.draft_cost import Draft
from orchestrator.tables import Grid

NEEDS = "points that were measured with timing.energy=true on a GPU whose NVML counts energy"
EACH = "problems"

FASTEST = "the fastest, if it is another backend"


def grids(data: Dataset) -> list[Grid]:
    """The least energy of each problem; one table for each combination of the other axes."""
    return [
        across_contexts(f"{_title(part, data.draft)} · {name}", part, _cell)
        for name, part in split_by_title(fetch(data, "energy"), ("s_qo", "batch_size", "s_kv"))
    ]


def _title(part: list[Record], draft: Draft) -> str:
    """What a cell shows; with a draft also the acceptance that it assumes."""
    generated = f", mJ a generated token of a draft at {describe_acceptance(draft)}" * any(map(_is_draft, part))
    return f"least energy of a call, mJ ± its 95% interval (mJ a query token{generated}; median µs); {FASTEST}"


def _is_draft(record: Record) -> bool:
    """Whether a call yields another number of tokens than it has queries, and which is known."""
    return record["energy_generated_j"] is not None and record["s_qo"] > 1


def _cell(record: Record) -> str:
    joules, token = record["energy_j"] * 1e3, f"{record['energy_token_j'] * 1e3:,.3g}"
    if _is_draft(record):
        token += f", {record['energy_generated_j'] * 1e3:,.3g}"
    least = f"{record['backend']} {joules:,.4g} ±{percent(record['energy_rel'])} ({token}; {record['median_us']:,.1f})"
    if record["fastest"] == record["backend"]:
        return f"{least}{'; no other has one' * (record['backends'] == 1)}"
    of_fastest = "not known" if record["fastest_j"] is None else f"{record['fastest_j'] * 1e3:,.4g}"
    return f"{least}; {record['fastest']} {of_fastest} ({record['fastest_us']:,.1f})"


def summary(data: Dataset) -> str | None:
    """How often the fastest backend is the one that takes the least energy, and what it takes at worst."""
    count, same, worst = data.single_row(query("energy_of_fastest"))
    if not count:
        return None
    words = f"the fastest backend takes the least energy at {same:,} of {count:,} problems"
    return f"{words}; at most it takes {worst:.2f} times the least, before uncertainties"

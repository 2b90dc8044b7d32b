"""The tables of question=padding: for each backend, its time in a padded graph over that of the batch alone."""

from __future__ import annotations

from statistics import median

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.noise import SAME
from orchestrator.analysis.questions.tables import describe_point, fetch, group_by, split_by_title
from orchestrator.analysis.rough import legend, mark
from orchestrator.tables import Grid

NEEDS = "a batch in a padded graph beside the same batch alone, such as those of +sweep=padded_graphs"
EACH = "problems"

LINE_KEYS = ("s_qo", "graph_fill", "backend")  # each combination is a line of a table
WORKLOAD = ("batch_size", "graph_batch", "s_kv")  # and each of these a column


def grids(data: Dataset) -> list[Grid]:
    """Time of the padded call over that of the batch alone, and the latter in µs."""
    found = []
    for name, part in split_by_title(fetch(data, "padding", axes=(*WORKLOAD, *LINE_KEYS)), (*WORKLOAD, *LINE_KEYS)):
        workloads = sorted({tuple(r[key] for key in WORKLOAD) for r in part})
        contexts = len({s_kv for _, _, s_kv in workloads})
        header = (f"batch {batch} in {graph}" + (f", s_kv {s_kv:,}" if contexts > 1 else "") for batch, graph, s_kv in workloads)
        cells = []
        for values, records in group_by(part, LINE_KEYS).items():
            by_workload = {
                tuple(r[key] for key in WORKLOAD): f"{mark(r['rough'])}{r['ratio']:.2f} ({r['alone_us']:,.1f})" for r in records
            }
            cells.append((*map(str, values), *(by_workload.get(workload, "–") for workload in workloads)))
        title = f"a padded graph over the batch alone (median µs alone){legend(*(r['rough'] for r in part))} · {name}"
        found.append(Grid(title, (*LINE_KEYS, *header), tuple(cells)))
    return found


def summary(data: Dataset) -> str | None:
    """At how many workloads padding costs more than `same`, its median by backend, and the worst workload."""
    records = data.records("FROM padding ORDER BY ratio DESC, backend, batch_size")
    if not records:
        return None
    dearer, by_backend = sum(r["ratio"] > 1 + SAME for r in records), group_by(records, ("backend",))
    medians = ", ".join(f"{backend} {median(r['ratio'] for r in rows):.2f}" for (backend,), rows in by_backend.items())
    worst = records[0]
    where = f"{worst['backend']} at {describe_point(worst)} in {worst['graph_batch']}"
    return (
        f"padding costs more than {SAME:.0%} at {dearer:,} of {len(records):,} padded points (median by backend: {medians}); "
        f"at most {worst['ratio']:.2f} times the batch alone, {where}"
    )

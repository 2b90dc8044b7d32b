"""The tables of question=roofline: how close the kernels come to the measured ceilings of the device."""

from __future__ import annotations

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.cache_size import left_out
from orchestrator.analysis.questions.exactness import named
from orchestrator.analysis.questions.tables import formatted, group_by, l2_words
from orchestrator.analysis.sql import query
from orchestrator.tables import Grid

NEEDS = "points measured after mode=calibrate, which every run on a GPU does first"
COLUMNS = {  # with their headings and forms
    "routine": "routine", "kernel": "kernel", "q_dtype": "q", "kv_dtype": "kv", "points": "points", "tflops": "peak TFLOP/s|,.0f",
    "most": "most|.0%", "middle": "median|.0%", "least": "least|.0%", "reads": "KV reads possible|.2f", "most_reads": "at most|.2f",
}  # fmt: skip


def grids(data: Dataset) -> list[Grid]:
    """Fractions of the measured ceiling and KV read amplification, by kernel and dtypes; a table per device, model and bound."""
    records = data.records(query("fractions_of_ceilings"))
    found = []
    for (device, model, l2, bound), part in group_by(records, ("device_name", "model", "l2", "bound")).items():
        ceiling = f"{max(r['tb'] for r in part):.2f} TB/s" if bound == "memory" else "of its dtype"
        title = f"bound by {bound}: fraction of its measured ceiling ({ceiling})"
        where = " · ".join(filter(None, (model, l2_words(l2), device)))
        cells = ([named(r["backend"], r[key]) if key == "kernel" else r[key] for key in COLUMNS] for r in part)
        found.append(formatted(f"{title} · {where}", tuple(COLUMNS.values()), cells))
    too_big = tuple((words,) for words in left_out(data, so="cannot be served").values())
    return [*found, Grid("larger than the GPU", ("what",), too_big)] if too_big else found


def summary(data: Dataset) -> str | None:
    """The median and the largest fraction, or that no ceiling was measured."""
    figures = "count(*), count(frac_of_peak), median(frac_of_peak), max(frac_of_peak)"
    points, known, middle, most = data.single_row(f"SELECT {figures} FROM roofline")
    if not points:
        return None
    if not known:
        return "no ceiling was measured with these rows: frac_of_peak is empty"
    return f"{middle:.0%} of the measured ceiling at the median of {known:,} points, {most:.0%} at best"

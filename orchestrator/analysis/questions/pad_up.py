"""Finds drafts that are cheaper with more query tokens, for the questions `best`, `draft` and `odd`, with advice and its price."""

from __future__ import annotations

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.exactness import COARSE, error, named, share
from orchestrator.analysis.questions.tables import describe_point, fetch, lead, times
from orchestrator.analysis.rough import legend, mark
from orchestrator.tables import Grid

BESIDE = ("best", "draft", "odd")  # the questions whose answers list it too
TITLE = "more query tokens cost less: pad the draft to this many, with as many unused KV slots behind it"
HEADER = ("draft", "at", "now, µs", "pad to", "µs", "now takes longer by", "price in exactness")


def grids(data: Dataset) -> list[Grid]:
    """The problems that gain most from padding; no table if there are none."""
    found = sorted(fetch(data, "pad_up"), key=lambda r: -r["longer_by"])
    cells = []
    for r in found:
        at = [(named(r[f"{of}backend"], r[f"{of}kernel"]), f"{mark(r[f'{of}rough'])}{r[f'{of}us']:,.1f}") for of in ("", "pad_")]
        now, pad = map(" ".join, at)
        longer = lead(r["longer_by"], "", r["rough"], r["pad_rough"])
        cells.append((f"s_qo {r['s_qo']}", describe_point(r), now, f"s_qo {r['pad_to']}", pad, longer, _price(r)))
    of_rough = legend(*(r[which] for r in found for which in ("rough", "pad_rough")))
    return [Grid(TITLE + of_rough, HEADER, tuple(cells))] if cells else []


def _price(record: Record) -> str:
    before, after, ratio = record["rel_err"], record["pad_rel_err"], record["pad_err_ratio"]
    if before is None or after is None or ratio is None:
        return error(after)
    if ratio < COARSE:
        return f"none: err {share(before)} and {share(after)}"
    return f"err {share(before)} becomes {share(after)} ({ratio:.0f}×)"


def summary(data: Dataset) -> str | None:
    """How many problems are cheaper with more query tokens, by how much, and what that costs in exactness."""
    count, drafts, most, worst = data.single_row(
        "SELECT count(*), list(DISTINCT s_qo ORDER BY s_qo), max(longer_by), max(pad_err_ratio) FROM pad_up"
    )
    if not count:
        return None
    price = f", at up to {worst:.0f} times the error" if worst is not None and worst >= COARSE else ""
    lengths = ", ".join(map(str, drafts))
    longer = times(1 + most, than="padded ones")
    return f"more query tokens cost less at {count:,} problems of s_qo {lengths}: they take up to {longer}{price}"

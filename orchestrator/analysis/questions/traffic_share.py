"""With `traffic=FILE`, below the tables of question=best: the share of the traffic that each backend is fastest for."""

from __future__ import annotations

from collections import defaultdict

from orchestrator.analysis.dataset import Dataset, Record
from orchestrator.analysis.names import shown
from orchestrator.analysis.questions.tables import fetch, group_by, percent, split_by_title
from orchestrator.analysis.traffic import Mix, weights
from orchestrator.tables import Grid


def grids(data: Dataset, mix: Mix) -> list[Grid]:
    """A line for each table of question 1 and each s_qo: the backends by their share, and how much of the traffic is far off.

    Decode steps weigh the shapes of a table, prompts those that have as many query tokens as KV tokens.
    """
    cells = []
    for name, part in split_by_title(fetch(data, "best"), ("s_qo", "batch_size", "s_kv")):
        drafts = group_by([r for r in part if r["s_qo"] < r["s_kv"]], ("s_qo",))
        cells += [(name, str(s_qo), *_shares(of_length, mix, prompts=False)) for (s_qo,), of_length in drafts.items()]
        if mix.prompts and (whole := [r for r in part if r["s_qo"] == r["s_kv"]]):
            cells.append((name, "prompts", *_shares(whole, mix, prompts=True)))
    header = ("shapes", "s_qo", "fastest for this share of the traffic", "traffic beyond half or twice the nearest s_kv")
    return [Grid("; ".join(["your traffic", *mix.notes]), header, tuple(cells))]


def _shares(part: list[Record], mix: Mix, *, prompts: bool) -> tuple[str, str]:
    winners = {(r["batch_size"], r["s_kv"]): shown(r["backend"]) for r in reversed(part)}
    found = weights(mix, winners, prompts=prompts)
    by_backend: dict[str, float] = defaultdict(float)
    for shape, weight in found.by_shape.items():
        by_backend[winners[shape]] += weight
    ordered = sorted(by_backend.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{backend} {percent(weight)}" for backend, weight in ordered if weight > 0), percent(found.far)

"""With `traffic=FILE`, below the tables of question=best: the share of the traffic that each backend is fastest for."""

from __future__ import annotations

from collections import defaultdict

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.names import shown
from orchestrator.analysis.questions.tables import fetch, group_by, percent, split_by_title
from orchestrator.analysis.questions.traffic_weights import FAR_HEADER, far_line, warnings
from orchestrator.analysis.traffic import Mix, ShapeWeights, axes_to_measure, weights
from orchestrator.tables import Grid


def grids(data: Dataset, mix: Mix) -> list[Grid]:
    """A line for each table of question 1 and each s_qo: the backends by their share, and how much of the traffic is far off.

    Decode steps weigh the workloads of a table, prompts those that have as many query tokens as KV tokens.
    Each line is of all traffic.
    """
    cells, far = [], []
    for name, part in split_by_title(fetch(data, "best"), ("s_qo", "batch_size", "s_kv")):
        drafts = group_by([r for r in part if r["s_qo"] < r["s_kv"]], ("s_qo",))
        lengths = [(str(s_qo), of_length) for (s_qo,), of_length in drafts.items()]
        if mix.prompts and (whole := [r for r in part if r["s_qo"] == r["s_kv"]]):
            lengths.append(("prompts", whole))
        for length, workloads in lengths:
            winners = {(r["batch_size"], r["s_kv"]): shown(r["backend"]) for r in reversed(workloads)}
            found = weights(mix, winners, prompts=length == "prompts")
            cells.append((name, length, _shares(winners, found), percent(found.far_batch), percent(found.far_s_kv)))
            far += [(name, *line) for line in far_line(length, found.far_share, axes_to_measure(found.far))]
    title = "; ".join(["your traffic, all of it in each line", *mix.notes])
    header = ("workloads", "s_qo", "fastest for this share of the traffic", *FAR_HEADER)
    return [Grid(title, header, tuple(cells)), *warnings("workloads", far)]


def _shares(winners: dict[tuple[int, int], str], found: ShapeWeights) -> str:
    by_backend: dict[str, float] = defaultdict(float)
    for workload, weight in found.by_shape.items():
        by_backend[winners[workload]] += weight
    ordered = sorted(by_backend.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{backend} {percent(weight)}" for backend, weight in ordered if weight > 0)

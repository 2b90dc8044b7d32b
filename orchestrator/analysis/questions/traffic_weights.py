"""`traffic=FILE` as weights of the question `one_backend`: how much of the traffic each measured workload stands for.

A deployment is what `deployments.PLACE` tells apart: it gets an answer of its own, and all of the traffic. Traffic says how many
decode steps there are at each batch size and context, and not how long drafts are: each draft length gets the traffic once.
Workloads that differ in another key, such as `page_size`, are another way to serve it, and the ways get equal parts. Prompts weigh
workloads with as many query tokens as KV tokens. Chunks, and batches whose requests differ in length, have no weight.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.names import shown
from orchestrator.analysis.questions.best import by_title
from orchestrator.analysis.questions.deployments import PLACE, deployment_titles
from orchestrator.analysis.questions.tables import group_by, percent, varying_keys
from orchestrator.analysis.sql import query
from orchestrator.analysis.traffic import NEAR, Mix, WorkloadWeights, axes_to_measure, weights
from orchestrator.grouped import grouped
from orchestrator.notes import note_once
from orchestrator.tables import Grid

MAX_LISTED = 8  # workloads of a line, those with the most traffic
WARN_FROM = 0.005  # the share of the traffic from which a warning tells of it
HEADER = ("deployment", "phase", "s_qo", "batch × s_kv: share of the traffic")
WORKLOAD_KEYS = ("phase", "s_qo", "batch_size", "s_kv", "graph_batch", "graph_fill")  # that a line shows


def create(data: Dataset, mix: Mix | None, longest_draft: int) -> None:
    """The table `traffic_weights(workload, weight, far, measure)`, from the view `all_workloads`.

    The weights of the workloads of a deployment and draft length add up to 1. `far` is the share of that traffic about which they
    say little, `measure` has the axes that would. Without traffic it is empty. Workloads that nothing has served take no traffic.
    """
    found = [] if mix is None else _found(data, mix, longest_draft)
    columns = "workload UBIGINT, weight DOUBLE, far DOUBLE, measure VARCHAR"
    data.create_table(f"traffic_weights({columns})", found)


def _found(data: Dataset, mix: Mix, longest_draft: int) -> Iterator[list[Any]]:
    served = data.records(query("served", place=", ".join(PLACE), longest=longest_draft))
    groups = grouped(((*(r[key] for key in PLACE), None if r["is_prompt"] else r["s_qo"]), r) for r in served)
    for (*_, s_qo), workloads in groups.items():
        if s_qo is None and not mix.prompts:
            continue
        yield from _weighted(mix, workloads, prompts=s_qo is None)


def _weighted(mix: Mix, workloads: list[Record], *, prompts: bool) -> Iterator[list[Any]]:
    """The lines of the table for the workloads of one deployment and draft length."""
    ways = group_by(workloads, ("way",)).values()
    for way in ways:
        found = weights(mix, ((r["batch_size"], r["s_kv"]) for r in way), prompts=prompts)
        alike = Counter((r["batch_size"], r["s_kv"]) for r in way)  # a batch alone and in padded graphs
        told = [found.far_share, axes_to_measure(found)]
        for r in way:
            size = r["batch_size"], r["s_kv"]
            yield [r["workload"], found.by_workload[size] / alike[size] / len(ways), *told]


def grids(data: Dataset, mix: Mix) -> list[Grid]:
    """The weights that the answer took, and what of the traffic has no measured workload near it."""
    titles = deployment_titles(data)
    records = data.records(query("by_traffic", place=", ".join(PLACE)))
    by_deployment = {place: part for place, part in group_by(records, PLACE).items() if place in titles}
    lines = {titles[place]: [*_lines(part)] for place, part in by_deployment.items()}
    far = {
        titles[place]: [*dict.fromkeys(line for r in part for line in far_line(_length(r), r["far"], r["measure"]))]
        for place, part in by_deployment.items()
    }
    title = "; ".join(["your traffic: how much of it each measured batch × s_kv stands for", *mix.notes])
    return [Grid(title, HEADER, _of_deployments(lines)), *warnings("deployment", _of_deployments(far))]


def tell_of_far(data: Dataset) -> None:
    """The warning as a note, for an answer that has no place for it."""
    for far, measure in data.execute("SELECT max(far) AS share, measure FROM traffic_weights GROUP BY measure ORDER BY share DESC"):
        if far >= WARN_FROM:
            note_once(
                f"traffic: {percent(far)} of it has no measured workload near it (1/{NEAR} to {NEAR} times its batch and s_kv); "
                f"measure these axes: {measure}"
            )


def warnings(what: str, cells: Iterable[tuple[str, ...]]) -> list[Grid]:
    """The warning of traffic that the answer says little about, with what to measure; lengths with the same have one line."""
    title = f"warning: no measured workload is near this part of your traffic; near is 1/{NEAR} to {NEAR} times its batch and s_kv"
    alike = grouped(((first, *far), length) for first, length, *far in cells)
    kept = tuple((first, ", ".join(dict.fromkeys(lengths)), *far) for (first, *far), lengths in alike.items())
    header = (what, "s_qo", "share", "measure with +sweep=NAME traffic=FILE, or with these axes")
    return [Grid(title, header, kept)] if kept else []


def _of_deployments(lines: dict[str, list[tuple[str, ...]]]) -> tuple[tuple[str, ...], ...]:
    """Each line behind the title of its deployment, or behind `each` if all have the same lines."""
    if len(lines) > 1 and len({tuple(of_deployment) for of_deployment in lines.values()}) == 1:
        lines = {"each": next(iter(lines.values()))}
    return tuple((deployment, *line) for deployment, of_deployment in lines.items() for line in of_deployment)


def _lines(of_deployment: list[Record]) -> Iterator[tuple[str, ...]]:
    """A line for each phase of a deployment and each way to serve it; draft lengths with other shares have lines of their own."""
    others, alike = varying_keys(of_deployment, WORKLOAD_KEYS), list[tuple[tuple[str, str], str]]()
    for part in group_by(of_deployment, ("length", "phase", *others)).values():
        way = [f"{key} {part[0][key]}" for key in others if part[0][key] is not None]
        alike.append(((", ".join([part[0]["phase"], *way]), _listed(part)), _length(part[0])))
    yield from ((phase, ", ".join(lengths), listed) for (phase, listed), lengths in grouped(alike).items())


def far_line(length: str, far: float, measure: str) -> list[tuple[str, ...]]:
    """The cells of a warning behind its first, for a draft length; none if next to nothing is far."""
    return [(length, percent(far), measure)] if far >= WARN_FROM else []


def _length(record: Record) -> str:
    return "prompts" if record["length"] is None else str(record["length"])


def _listed(part: list[Record]) -> str:
    """`8 × 8,192: 75%`, for each workload with traffic; all together are the part that these workloads have of it."""
    told = [_share(r) for r in part if r["weight"] > 0]
    more = f", and {len(told) - MAX_LISTED} more" if len(told) > MAX_LISTED else ""
    return ", ".join(told[:MAX_LISTED]) + more


def _share(r: Record) -> str:
    graph = "" if r["graph_batch"] is None else f" in a graph of {r['graph_batch']} with fill {r['graph_fill']}"
    return f"{r['batch_size']}{graph} × {r['s_kv']:,}: {percent(r['weight'])}{' (does not fit)' if r['too_big'] else ''}"


def shares(data: Dataset, mix: Mix) -> list[Grid]:
    """A line for each table of question=best and s_qo (prompts have s_qo = s_kv): the backends' shares, and what is far."""
    cells, far = [], []
    for name, part in by_title(data):
        drafts = group_by([r for r in part if r["s_qo"] < r["s_kv"]], ("s_qo",))
        lengths = [(str(s_qo), of_length) for (s_qo,), of_length in drafts.items()]
        if mix.prompts and (whole := [r for r in part if r["s_qo"] == r["s_kv"]]):
            lengths.append(("prompts", whole))
        for length, workloads in lengths:
            winners = {(r["batch_size"], r["s_kv"]): shown(r["backend"]) for r in reversed(workloads)}
            found = weights(mix, winners, prompts=length == "prompts")
            cells.append((name, length, _shares(winners, found)))
            far += [(name, *line) for line in far_line(length, found.far_share, axes_to_measure(found))]
    title = "; ".join(["your traffic, all of it in each line", *mix.notes])
    header = ("workloads", "s_qo", "fastest for this share of the traffic")
    return [Grid(title, header, tuple(cells)), *warnings("workloads", far)]


def _shares(winners: dict[tuple[int, int], str], found: WorkloadWeights) -> str:
    by_backend: dict[str, float] = defaultdict(float)
    for workload, weight in found.by_workload.items():
        by_backend[winners[workload]] += weight
    ordered = sorted(by_backend.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{backend} {percent(weight)}" for backend, weight in ordered if weight > 0)

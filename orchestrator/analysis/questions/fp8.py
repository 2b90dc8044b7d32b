"""The tables of question=fp8: for which workloads an FP8 cache or FP8 queries are faster, and for which slower."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.noise import SAME
from orchestrator.analysis.questions import deployments
from orchestrator.analysis.questions.exactness import error, named, share
from orchestrator.analysis.questions.tables import KINDS, across_contexts, fetch, group_by, span, split_by_title, times
from orchestrator.analysis.rough import legend, mark
from orchestrator.analysis.sql import query
from orchestrator.config.model import FULL, WINDOWED
from orchestrator.grouped import grouped
from orchestrator.tables import Grid, common_once

NEEDS = "the same workloads over 16-bit and over FP8 caches: sweep.dtype=[{q: bf16, kv: bf16}, {q: bf16, kv: fp8_e4m3}]"
EACH = "workloads"

TITLE = (
    "is an FP8 cache worth it? By time, with {}; errors are of the kernel: what storing K and V in FP8 loses is not measured here"
)
DEPLOYMENT = ("device_name", "model", "tp", "l2")
GAIN = "time over 16 bits / over FP8 (FP8's name, µs for the other's without the launch, err of its worst row)"
QUERIES = {"fp8_kv": "16-bit queries", "fp8_q": "FP8 queries"}
ALL_QUERIES = {**QUERIES, **{f"fp8_{kind}": f"FP8 queries in {kind} layers alone" for kind in (FULL, WINDOWED)}}


def grids(data: Dataset) -> list[Grid]:
    """Yes or no for each batch; then the speed-up over a 16-bit cache with each dtype of queries; below 1 FP8 is slower."""
    found = [*_answers(data), *_left_out(data)]
    for name, part in _by_deployment(data):
        sides = [side for record in part for side in _sides(record)]
        title = f"{GAIN}{legend(*(side['rough'] for side in sides))} · {name}"
        found.append(across_contexts(title, sides, _cell, ("s_qo", "batch_size", "queries")))
    return found


def _answers(data: Dataset) -> list[Grid]:
    models = [(f"all layers · {name}", part) for name, part in _by_deployment(data, view="fp8_of_models")]
    parts = [*models, *_by_deployment(data, "NOT too_big")]
    any_queries = data.scalar("SELECT getvariable('engine') IS NULL")  # a flag decides of which dtype they are
    cells = [(name, words) for name, part in parts for words in sentences(part, any_queries=any_queries)]
    rough = legend(*(side["rough"] for _, part in parts for record in part for side in _sides(record)))
    return [Grid(TITLE.format(data.scalar(query("fastest_by"))) + rough, ("workloads", "answer"), tuple(cells))] if cells else []


def _left_out(data: Dataset) -> list[Grid]:
    """Workloads whose 16-bit cache is larger than the GPU, wrong answers, and where the asked engine's default has no time."""
    asked, found = data.scalar("SELECT getvariable('engine')"), data.scalar("SELECT count(*) FROM fp8")
    parts = [one for one in deployments.parts(data) if one.who == asked and one.answer.choice is None] if asked else []
    places = ((one.choices[0].record, f"{one.what}: {one.answer.words}") for one in parts)
    caches = grouped((f"{deployments.server_name(of)} · {of['device_name']}", f"{of['kv_dtype']}, {why}") for of, why in places)
    so = "nothing is compared; leave engine out to compare kernels"
    no_default = ((name, f"over {why}; {so}") for name, of in caches.items() for why in sorted({*of}))
    cells = [*(data.execute(query("left_out_of_fp8")) if found else ()), *no_default]
    return [Grid("warning: what the answer leaves out", ("deployment", "note"), tuple(cells))] if cells else []


def _by_deployment(data: Dataset, where: str = "true", view: str = "fp8") -> list[tuple[str, list[Record]]]:
    """The rows of each table by its title, those of layers with a window or with queries of drawn lengths last."""
    records = fetch(data, view, ("device_name", "model", "tp", "dtype", "l2"), where=where)
    parts = split_by_title(records, ("s_qo", "batch_size", "s_kv", "dtype"), DEPLOYMENT)
    return sorted(parts, key=lambda part: [part[1][0][key] is not None for key in KINDS])


def _sides(record: Record) -> list[Record]:
    """A row of the view for each dtype of queries that has a right answer over the FP8 cache, or only `wrong` ones."""
    shared = {key: record[key] for key in ("s_qo", "batch_size", "s_kv", "half_rel_err", "half_own_us")}
    told = ("gain", "rel_err", "rough", "backend", "kernel", "wrong")
    sides = ((words, {key: record.get(f"{kind}_{key}") for key in told}) for kind, words in ALL_QUERIES.items())
    return [{**shared, "queries": words, **side} for words, side in sides if side["gain"] or side["wrong"]]


def _cell(side: Record) -> str:
    if side["gain"] is None:
        return f"{named(side['backend'], side['kernel'])} was wrong: {side['wrong']}"
    half, rel_err = side["half_rel_err"], side["rel_err"]
    words = error(rel_err, None if not half else (rel_err or 0) / half, "that of the 16-bit cache")
    us = f"{side['half_own_us'] / side['gain']:,.1f} for {side['half_own_us']:,.1f} µs"
    return f"{mark(side['rough'])}{side['gain']:.2f} {named(side['backend'], side['kernel'])}, {us}, {words}"


def summary(data: Dataset) -> str | None:
    """The answers without their figures; of several kinds of workloads each behind its name, without what all have in common."""
    found = grouped((name, words.partition(":")[0]) for grid in _answers(data) for name, words in grid.cells)
    if len(found) < 2:
        return "; ".join(*found.values()) if found else None
    return "; ".join(f"{name}: {', '.join(words)}" for name, words in zip(common_once(found)[1], found.values(), strict=True))


AXES = ("s_kv", "s_qo")
MOST = 0.75  # of the workloads of a batch: what so many say is its verdict


class Fp8Workload(NamedTuple):
    """One workload with the dtype of the queries that is faster over an FP8 cache there, among those with a right answer."""

    s_kv: int
    s_qo: int
    queries: str
    gain: float  # the time over a 16-bit cache, divided by the time over an FP8 cache
    rel_err: float | None
    half_rel_err: float | None
    half_own_us: float  # over a 16-bit cache
    rough: bool
    wrong: bool  # the other queries have no right answer

    @property
    def faster(self) -> bool:
        return self.gain > 1 + SAME


def sentences(records: Sequence[Record], *, any_queries: bool = True) -> list[str]:
    """The answers of one deployment, from rows of the view `fp8`. Neighbouring batches that are told the same share one.

    `any_queries`: their dtype may be chosen, so one without a time is named.
    """
    right, lost = ([r for r in records if any(side["gain"] for side in _sides(r)) is wanted] for wanted in (True, False))
    batches = [(batch, _workloads(part)) for (batch,), part in group_by(right, ("batch_size",)).items()]
    missing = [words for words in QUERIES.values() if all(words != side["queries"] for r in records for side in _sides(r))]
    found, unknown = [], f"; there is no time with {missing[0]}, which may be faster" if missing and any_queries else ""
    for answer, same in groupby(batches, key=lambda batch: _answer(batch[1])):
        told, parts = zip(*same, strict=True)
        count = sum(record["batch_size"] in told for record in lost)
        wrong = f"; over FP8 WRONG at {count} more of these workloads" * (count > 0)
        found.append(_sentence(*answer, told, [workload for part in parts for workload in part]) + wrong + unknown)
    return found


def _workloads(records: Sequence[Record]) -> list[Fp8Workload]:
    """The workloads of one batch, each with the queries that are faster there."""
    sides = (sorted(_sides(record), key=lambda side: (side["gain"] or 0, side["queries"])) for record in records)
    best = ({**of[-1], "wrong": bool(of[0]["wrong"])} for of in sides)
    return [Fp8Workload(**{key: side[key] for key in Fp8Workload._fields}) for side in best]


def _answer(workloads: Sequence[Fp8Workload]) -> tuple[str, str]:
    """`yes`, `no` (`mostly` if `MOST` agree) or `it depends on ...` of a batch, and where the verdict does not hold."""
    faster, others = ([one for one in workloads if one.faster is wanted] for wanted in (True, False))
    if not faster or not others:
        return "no" if others else "yes", ""
    if max(len(faster), len(others)) >= MOST * len(workloads):
        verdict, fewer = ("mostly yes", others) if len(faster) > len(others) else ("mostly no", faster)
        return verdict, _place(fewer, workloads)[1]
    axes, place = _place(others, workloads)
    return f"it depends on {' and '.join(axes)}", place


def _place(some: Sequence[Fp8Workload], workloads: Sequence[Fp8Workload]) -> tuple[list[str], str]:
    """On what it depends whether a workload is one of `some`, and where these are; their number, if no axes tell them apart."""
    values = {axis: sorted({getattr(workload, axis) for workload in some}) for axis in AXES}
    inside = [workload for workload in workloads if all(getattr(workload, axis) in values[axis] for axis in AXES)]
    if len(inside) != len(some):
        return list(AXES), f"{len(some)} of {len(workloads)} workloads (full=true lists them)"
    measured = {axis: sorted({getattr(workload, axis) for workload in workloads}) for axis in AXES}
    axes = [axis for axis in AXES if values[axis] != measured[axis]]
    return axes, " with ".join(f"{axis} {_listed(values[axis], measured[axis])}" for axis in axes)


def _queries(workloads: Sequence[Fp8Workload]) -> str:
    """`FP8 queries`, or which dtype where, and whether the others were wrong there."""
    of = {words: [one for one in workloads if one.queries == words] for words in ALL_QUERIES.values()}
    few, *most = sorted((words for words, some in of.items() if some), key=lambda words: len(of[words]))
    why = f" (where {' and '.join(most)} were wrong)" * all(one.wrong for one in of[few])
    return ", else ".join((f"{few} at {_place(of[few], workloads)[1]}{why}", *most)) if most else few


def _sentence(verdict: str, but_at: str, batches: Sequence[int], workloads: Sequence[Fp8Workload]) -> str:
    main, rest = ([one for one in workloads if one.faster is wanted] for wanted in (True, False))
    if not main or verdict == "mostly no":
        main, rest = rest, main
    but = f"but at {but_at} {'' if (by := _by(rest)).startswith('takes') else 'is '}{by}, " if rest else ""
    words = f"{verdict} at batch {_listed(batches, batches)}: {_by(main)}, {but}with {_queries(workloads)}"
    return f"{words}, {_errors(main)}"


def _by(workloads: Sequence[Fp8Workload]) -> str:
    """Of workloads that are all faster, or all not: `22% to 97% faster`, `takes 4% to 9% more time`, `as fast within 2%`."""
    gains, rough = [workload.gain for workload in workloads], mark(*(workload.rough for workload in workloads))
    low, high = min(gains), max(gains)
    us = f"({span([abs(one.half_own_us * (1 - 1 / one.gain)) for one in workloads], '{:,.1f}'.format)} µs a call)"
    if low > 1 + SAME:
        return f"{rough}{span([low - 1, high - 1])} faster {us}"
    if high < 1 / (1 + SAME):
        return f"takes {rough}{times(1 / high, 1 / low, form='.0%')} {us}"
    return f"as fast within {SAME:.0%}" if low >= 1 / (1 + SAME) else f"takes up to {rough}{times(1 / low, form='.0%')}"


def _errors(workloads: Sequence[Fp8Workload]) -> str:
    fp8 = [workload.rel_err for workload in workloads if workload.rel_err is not None]
    half = [workload.half_rel_err for workload in workloads if workload.half_rel_err is not None]
    if len(fp8) < len(workloads):
        return "and answers were not checked" if not fp8 else f"at an error of {span(fp8, share)} where answers were checked"
    return f"at an error of {span(fp8, share)}{f' (over 16 bits {span(half, share)})' if half else ''}"


def _listed(values: Sequence[int], measured: Sequence[int]) -> str:
    """`8`, `8 and 32`, or `8 to 64` if no other measured value lies between."""
    runs = [f"{run[0]:,}" if len(run) == 1 else f"{run[0]:,} to {run[-1]:,}" for run in _runs(values, measured)]
    return " and ".join(filter(None, (", ".join(runs[:-1]), runs[-1])))


def _runs(values: Sequence[int], measured: Sequence[int]) -> Iterator[list[int]]:
    """The values in pieces, each without a gap on the axis."""
    for is_there, run in groupby(measured, key=lambda value: value in values):
        if is_there:
            yield list(run)

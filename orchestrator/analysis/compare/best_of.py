"""Best against best: the fastest backend of each problem on either side of a comparison, whichever it is.

A point is compared with itself elsewhere; here the best of one side stands against the best of the other, as two deployments
would. No side is better than the other in the words of the tables.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from orchestrator.analysis.compare.pairs import LIST_COLUMNS, PLACE_COLUMNS, tree_texts
from orchestrator.analysis.compare.selection import Selection
from orchestrator.analysis.connection import Record
from orchestrator.analysis.keys import GRID_AXES, ORIGINS, PROBLEM_KEYS, TIMING_KEYS
from orchestrator.analysis.names import shown
from orchestrator.analysis.noise import SAME, first_of_aa_pairs
from orchestrator.analysis.questions import cache_size, contenders_by, place_of, ranked_by, ranking_of
from orchestrator.analysis.questions.exactness import error, named
from orchestrator.analysis.questions.tables import l2_words, percent, varying_keys
from orchestrator.analysis.questions.traffic_weights import far_line, warnings
from orchestrator.analysis.sql import query, quoted
from orchestrator.analysis.traffic import Mix, axes_to_measure, weights
from orchestrator.config.engine import MAX_DRAFT
from orchestrator.config.weights import WEIGHT, WeightRules
from orchestrator.tables import DOT, Grid

ALIKE = 0.05  # neighbouring batches whose ratios differ by less are one range
OF_LINE = ("model", "q_dtype", "kv_dtype", "window", "l2")  # each combination is a line of the answer
# Drafts may go through either of two wrappers, which are one routine here.
CALLS = "(SELECT * REPLACE (if(routine = 'paged_prefill', 'paged_decode', routine) AS routine), routine AS wrapper FROM problems)"
FEW = 16  # workloads that are all listed
TOO_BIG = "cache larger than the GPU"  # no deployment has such a problem


@dataclass(frozen=True)
class BestOfSides:
    """`names` of baseline and candidate; `problems`: a row for each problem that both sides have a time for, and where each has
    a row of the other's best: a kernel that was not measured says nothing of how fast a side is. `lacking` are the others, with
    the backend that the baseline (`lacks_a`) or the candidate (`lacks_b`) has no row of, or null.

    Its columns are the keys of a problem, `_a` and `_b` of `backend`, `kernel`, `us`, `own_us` and `rel_err`, and
    speed_up   the time of the baseline's best over that of the candidate's best, both without the launch of the graph
    keeping    on the candidate, the time of the baseline's best kernel over that of the best; null if it has no time there
    too_big    its KV cache, of all layers, is larger than the candidate's memory
    """

    names: tuple[str, str]
    of_devices: bool
    problems: pd.DataFrame
    lacking: pd.DataFrame
    far: tuple[tuple[str, ...], ...] = ()  # lines of the warning of traffic that the problems say little about


def weighed(found: BestOfSides, rules: WeightRules, mix: Mix | None) -> BestOfSides:
    """The same with a column `weight` of `problems`: of `rules`, and of the traffic, which each length of queries gets once."""
    if (not rules and mix is None) or found.problems.empty:
        return found
    weight = pd.Series(0.0 if rules else 1.0, found.problems.index)
    for entry in rules:
        same = [found.problems[key].astype(str).str.lower() == str(value).lower() for key, value in entry.items() if key != WEIGHT]
        weight += float(entry[WEIGHT]) * pd.concat([pd.Series(True, weight.index), *same], axis=1).all(axis=1)
    far: list[tuple[str, ...]] = []
    if mix is not None:
        for (*line, s_qo), part in found.problems.groupby([*OF_LINE, "s_qo"]):
            sizes, prompts = [*zip(part["batch_size"], part["s_kv"], strict=True)], bool((part["s_qo"] == part["s_kv"]).all())
            length, shares = "prompts" if prompts else str(s_qo), weights(mix, sizes, prompts=prompts)
            weight[part.index] *= [shares.by_workload[size] / sizes.count(size) for size in sizes]
            title = _title(dict(zip(OF_LINE, line, strict=True)), found.problems, whole=True)
            far += [(title, *cells) for cells in far_line(length, shares.far_share, axes_to_measure(shares))]
    return replace(found, problems=found.problems.assign(weight=weight), far=tuple(far))


def best_of(baseline: Selection, candidate: Selection, max_rel_err: float | None = None) -> BestOfSides:
    """Both sides' best backends by the ranking. If both have several devices, each is compared with itself."""
    sides = baseline.rows, candidate.rows
    places = [place for place in PLACE_COLUMNS if min(rows[place].nunique() for rows in sides) > 1]
    devices = [rows["device_name"].dropna().unique().tolist() for rows in sides]
    of_devices = len(devices[0]) == len(devices[1]) == 1 and devices[0] != devices[1]
    places = [place for place in places if not of_devices or place != "env"]  # a workload counts once, whatever measured it
    keys = [key for key in PROBLEM_KEYS if key not in PLACE_COLUMNS or key in places]
    (first, _, tried_a), (second, ran, tried_b) = (_ranked(rows, keys, max_rel_err) for rows in sides)
    problems = first.drop(columns="too_big").merge(second.drop(columns=keys), on="place", suffixes=("_a", "_b"))
    imported = all(rows["orchestrator_version"].isin(ORIGINS).all() for rows in sides)  # these have one kernel at each problem
    for side, of, tried in (("a", "b", tried_a), ("b", "a", tried_b)):
        best = zip(*(problems[f"{name}_{of}"] for name in ("workload", "backend", "kernel")), strict=True)
        is_there = [bool({(at, name.partition("(")[0]), (at, kernel)} & tried) for at, name, kernel in best]
        problems[f"lacks_{side}"] = problems[f"backend_{of}"].mask(np.array(is_there, dtype=bool) | imported, None)
    problems = problems.merge(ran, left_on=["place", "kernel_a"], right_on=["place", "kernel"], how="left")
    problems[["speed_up", "keeping"]] = problems[["own_us_a", "kept_us"]].div(problems["own_us_b"], axis=0)
    names = (str(devices[0][0]), str(devices[1][0])) if of_devices else (baseline.name, candidate.name)
    measured = problems[["lacks_a", "lacks_b"]].isna().all(axis=1)
    return BestOfSides(names, of_devices, problems[measured].reset_index(drop=True), problems[~measured])


def _ranked(rows: pd.DataFrame, keys: list[str], max_rel_err: float | None) -> tuple[pd.DataFrame, pd.DataFrame, set[Any]]:
    """The best of each problem (no reference), the time of each kernel there, and what has a row at a `workload`, right or not.

    `place` is equal for equal keys, and `workload` for those but of how it was timed, and one wrapper.
    """
    once = first_of_aa_pairs(rows)
    masks = [mask if tree is None else f"{mask} {tree}" for mask, tree in zip(once["mask"], tree_texts(once), strict=True)]
    data = ranking_of(once.drop(columns=[*LIST_COLUMNS, "tree"], errors="ignore").assign(mask=masks), max_rel_err)
    cache_size.create(data, None)
    columns = ", ".join(
        quoted(key) if key in GRID_AXES else f"coalesce({quoted(key)}::VARCHAR, '–') AS {quoted(key)}" for key in keys
    )
    workload = place_of(["wrapper", *(key for key in keys if key not in TIMING_KEYS)])
    best = query("best_of_side", shown=columns, ranked=ranked_by(keys, CALLS), workload=workload, problems=CALLS)
    tried = f"SELECT {workload}, unnest([backend, kernel]) FROM points JOIN {CALLS} USING (problem)"
    ran = f"SELECT place, kernel, min(own_us) AS kept_us FROM ({contenders_by(keys, CALLS)}) WHERE NOT reference GROUP BY ALL"
    return data.con.sql(best).df(), data.con.sql(ran).df(), set(data.con.sql(tried).fetchall())


def too_small(*sides: Selection) -> list[str]:
    """That the weights of a model leave no room for a cache on a GPU of these rows, in a sentence each."""
    servers = pd.concat([side.rows[["device_name", "model", "tp"]] for side in sides]).dropna().drop_duplicates()
    found = (cache_size.no_room(None, str(gpu), str(model), int(tp)) for gpu, model, tp in servers.itertuples(index=False))
    return [words for words in found if words]


def not_counted(found: BestOfSides) -> list[str]:
    """In a sentence, if there are any, at how many problems each side lacks the best of the other: these are in no ratio."""
    told = f"{len(found.lacking):,} of {len(found.problems) + len(found.lacking):,} workloads"
    for name, column in zip(found.names, ("lacks_a", "lacks_b"), strict=True):
        counts = ", ".join(f"{shown(backend)} at {count:,}" for backend, count in found.lacking[column].value_counts().items())
        told += f"; {name} lacks {counts}" * bool(counts)
    return [f"not counted, since a side has no row of the other's best: {told}"] * bool(len(found.lacking))


class BatchRange(NamedTuple):
    """Neighbouring batch sizes with about the same ratio, whose geometric mean is `mean`."""

    first: int
    last: int
    mean: float


def by_batch(part: pd.DataFrame) -> list[BatchRange]:
    """The ratios of a line in as few ranges of batch sizes as tell them."""
    found: list[tuple[list[int], list[float]]] = []
    for batch, rows in part.groupby("batch_size"):
        ratios = rows["speed_up"].tolist()
        if not found or abs(geometric_mean(found[-1][1]) / geometric_mean(ratios) - 1) >= ALIKE:
            found.append(([], []))
        found[-1][0].append(int(batch))
        found[-1][1].extend(ratios)
    return [BatchRange(batches[0], batches[-1], geometric_mean(ratios)) for batches, ratios in found]


def grids(found: BestOfSides, same: float = SAME, *, full: bool = False) -> list[Grid]:
    """The ratio by dtypes, and by workload: all if `full` or they are few, else where keeping a kernel costs. Empty without any."""
    return [] if found.problems.empty else [_lines(found), *warnings("workloads", found.far), *_by_workload(found, same, full)]


def headline(found: BestOfSides) -> str:
    baseline, candidate = found.names
    parts = [f"{_title(key, found.problems)} {''.join(own) or _words(ranges, few=True)}" for key, _, ranges, own in _parts(found)]
    of = " by your weights" if "weight" in found.problems else ""
    return f"{candidate} over {baseline}, best against best{of}{_drafts(found)}: {'; '.join(parts)}"


def _drafts(found: BestOfSides) -> str:
    """Which lengths of queries all workloads have, if none has one token."""
    lengths = sorted({*found.problems["s_qo"].dropna().astype(int)}) or [1]
    drafts = f" (common points have {', '.join(str(s_qo - 1) for s_qo in lengths)} drafts only)"
    return "" if lengths[0] == 1 else drafts if lengths[-1] <= MAX_DRAFT else f", s_qo {lengths[0]:,} and up"


def _yours(part: pd.DataFrame) -> tuple[str, ...]:
    """The geometric mean of a line by the weights, if there are any."""
    if "weight" not in part:
        return ()
    whole, logs = float(part["weight"].sum()), float((np.log(part["speed_up"]) * part["weight"]).sum())
    return (f"{math.exp(logs / whole):.2f}" if whole else "–",)


def _parts(found: BestOfSides) -> list[tuple[Record, pd.DataFrame, list[BatchRange], tuple[str, ...]]]:
    groups = sorted(found.problems.groupby(list(OF_LINE)), key=lambda of: [str(key).strip("–") for key in of[0]])
    return [(dict(zip(OF_LINE, values, strict=True)), part, by_batch(part), _yours(part)) for values, part in groups]


def _lines(found: BestOfSides) -> Grid:
    baseline, candidate = found.names
    cells = []
    for key, part, ranges, own in _parts(found):
        ends = f"{part['speed_up'].min():.2f} to {part['speed_up'].max():.2f}"
        cells.append((_title(key, found.problems, whole=True), _words(ranges), ends, f"{len(part):,}", *own))
    drafts = _drafts(found) * (not found.of_devices)  # whose headline tells
    title = f"{candidate} over {baseline}, the best backend of each{drafts}: how many times as fast, geometric mean"
    header = ("what", "times as fast", "least to most", "workloads", *(("by your weights",) if "weight" in found.problems else ()))
    return Grid(title, header, tuple(cells), whole=found.of_devices and len(cells) <= FEW // 2)  # the whole answer


def _title(key: dict[str, Any], problems: pd.DataFrame, *, whole: bool = False) -> str:
    """The keys of a line that vary, or all of them."""
    dtypes = f"q {key['q_dtype']}, kv {key['kv_dtype']}"
    model = key["model"] if whole or problems["model"].nunique() > 1 else None
    l2 = l2_words(key["l2"]) if whole or problems["l2"].nunique() > 1 else None
    layers = f"sliding layers ({of})" if (of := key["window"]) != "–" else "full layers"
    return DOT.join(part for part in (model, dtypes, layers * (problems["window"].nunique() > 1), l2) if part)


def _words(ranges: list[BatchRange], *, few: bool = False) -> str:
    """`1.10 at batch 1, 1.43 at batch 8 and up`; with `few` from the least to the most of more than three ranges."""
    if len(ranges) == 1:
        return f"{ranges[0].mean:.2f}"
    if few and len(ranges) > 3:
        means = [one.mean for one in ranges]
        return f"{min(means):.2f} to {max(means):.2f} by batch"
    ends = ["" if one.first == one.last else " and up" if one is ranges[-1] else f" to {one.last}" for one in ranges]
    return ", ".join(f"{one.mean:.2f} at batch {one.first}{end}" for one, end in zip(ranges, ends, strict=True))


def _by_workload(found: BestOfSides, same: float, full: bool) -> list[Grid]:
    """Both bests of each workload, or of those with another kernel: what fits, and costs most to keep on the candidate, first."""
    every, (baseline, candidate) = found.problems.to_dict("records"), found.names
    changed = [r for r in every if r["kernel_a"] != r["kernel_b"]]
    costs = Counter(bool(r["too_big"]) for r in changed if r["keeping"] > 1 + same)
    each, cells = full or len(every) <= FEW, []
    keys = varying_keys(every if each else changed, (*OF_LINE, *GRID_AXES))
    axes, told = (GRID_AXES, keys) if each else ((), [*keys, *GRID_AXES])  # beside long names a screen has no room for more columns
    every.sort(key=lambda r: [r[key] for key in (*OF_LINE, *keys, *GRID_AXES)])
    changed.sort(key=lambda r: (r["too_big"], r["keeping"] > 0, -r["keeping"], -r["speed_up"]))  # first what has no time
    for r in every if each else changed:
        what = (_title(r, found.problems), *(f"{key} {str(r[key]).partition(' ')[0]}" for key in told))  # without a tree
        names = (named(r[f"backend_{side}"], r[f"kernel_{side}"]).replace("(", " (").replace("  ", " ") for side in "ab")  # to wrap
        ran = (f"{name} {r[f'own_us_{side}']:,.1f} {error(r[f'rel_err_{side}'])}" for name, side in zip(names, "ab", strict=True))
        kept = [percent(r["keeping"] - 1) if r["keeping"] > 0 else "it has no time"] * (r["kernel_a"] != r["kernel_b"])
        lengths = (f"{r[axis]:,}" for axis in axes)
        cells.append((DOT.join(what), *lengths, f"{r['speed_up']:.2f}", *ran, ", ".join([*kept, *[TOO_BIG] * r["too_big"]])))
    title = f"{'the best backend of each workload; ' * each}another kernel is best at {len(changed):,} of {len(every):,} workloads"
    keeping = f"; keeping the baseline's costs more than {same:.0%} at {costs[False]:,}" * bool(changed)
    with_too_big = f", and at {costs[True]:,} with a {TOO_BIG}" * bool(costs[True])
    header = ("workload", *axes, "times as fast", f"{baseline}, own_us", f"{candidate}, own_us", "keeping the baseline's")
    return [Grid(f"{title}{keeping}{with_too_big}", header, tuple(cells))] * bool(cells)

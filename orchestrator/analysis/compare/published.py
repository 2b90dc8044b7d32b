"""Published times, such as aiconfigurator's tables: imported rows beside rows of this project, or two imported sides.

They were taken in another way, so no verdict is given, and what differs is named (docs/compare.md). On two kinds of GPU there is no
ratio with rows of this project either: it would hold the difference between two timers and two states of the caches as well.
Of two imported sides the noise is not known: two times count as apart beyond twice what the same points of this project differed by
in two runs, with the GPU throttled and the clocks of a side unknown: 5%, and 0.6 µs of short kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.compare import best_of
from orchestrator.analysis.compare.pairs import LIST_COLUMNS, TIMING_SETTINGS
from orchestrator.analysis.compare.selection import Selection, select
from orchestrator.analysis.compare.tables import differences
from orchestrator.analysis.keys import ORIGINS
from orchestrator.analysis.names import shown
from orchestrator.analysis.noise import BETWEEN_RUNS, THROTTLED_CLOCK, NoiseFloor
from orchestrator.analysis.questions import place_of, ranked_by, ranking_of
from orchestrator.analysis.sql import query
from orchestrator.config.settings import CompareSettings
from orchestrator.errors import UserError
from orchestrator.notes import note_once
from orchestrator.tables import Grid

WORKLOAD = (  # what a published table says of one
    *("routine", "batch_size", "s_qo", "s_kv", "num_qo_heads", "num_kv_heads", "head_dim_qk", "head_dim_vo", "head_dim_ckv"),
    *("head_dim_kpe", "q_dtype", "kv_dtype", "mask", "window", "sinks", "seq_lens", "batch_spec", "min_s_qo", "shared_prefix"),
)
NAMED_IF_UNLIKE = (*TIMING_SETTINGS, "page_size", "page_order", "device_name")
OF_ROW = tuple(dict.fromkeys((*WORKLOAD, *NAMED_IF_UNLIKE, "cluster", "resolved_backend", "backend")))
NO_RATIO = "none: other GPU"
HERE = ("the same backend here", "the fastest here")
FAR_OFF = 100  # a ratio of times that no two kernels have: another unit
MAX_WORKLOADS = 60  # lines of the second table
BETWEEN_TABLES = NoiseFloor(BETWEEN_RUNS.us, THROTTLED_CLOCK)
WIDE = 2  # standard deviations
APART = WIDE * THROTTLED_CLOCK  # a ratio of times that are not short
DIFFERING = ("device_name", "cluster", "libraries", "timer", "l2", "pace", "page_size", "page_order")
RULE = (
    f"no noise floor of published times is known, so this is no test; times within {APART:.0%} (more below 20 µs) count as equal: "
    f"twice the difference of the same points in two runs of this project with throttled, unknown clocks"
)


def published_grids(settings: CompareSettings) -> list[Grid]:
    """The tables if a side holds imported rows alone; else none. Raises UserError if no workload is in both."""
    sides = [select(side, getattr(settings, side), settings.results.path, settings.where) for side in ("baseline", "candidate")]
    imported = [bool(side.rows["orchestrator_version"].isin(ORIGINS).all()) for side in sides]
    if not any(imported):
        return []
    if all(imported):
        return _of_both(sides[0], sides[1], settings.best.max_rel_err)
    published, measured = sides if imported[0] else reversed(sides)
    joined = _joined(published.rows, measured.rows)
    if joined.empty:
        raise UserError(
            f"baseline={sides[0].name} and candidate={sides[1].name}: no workload is in both; a workload is the routine, lengths, "
            f"heads, dtypes and mask. type others"
        )
    off = float((joined["own_us_a"] / joined["own_us_b"]).median())
    if not 1 / FAR_OFF < off < FAR_OFF:
        note_once(f"published and measured times differ by a factor of {max(off, 1 / off):,.0f}: is median_time in ms?")
    return [_summary(joined), _workloads(joined)]


def _joined(published: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Each published row (`_a`) beside the fastest measured one of its workload (`_b`); `same_us` is its own backend's time."""
    # All are `own_us`: a profiler's time has no launch of a graph, and ours would be longer by it.
    place, columns = place_of(WORKLOAD), ", ".join(f"current.{name}" for name in OF_ROW)
    there, here = (ranking_of(rows.drop(columns=list(LIST_COLUMNS))) for rows in (published, measured))
    a = there.con.sql(f"SELECT {place} AS place, {columns}, own_us FROM current WHERE status = 'ok' ORDER BY row").df()
    a["resolved_backend"] = a["resolved_backend"].fillna(a["backend"])  # a file of one's own may name no more
    best = f"({ranked_by(WORKLOAD)}) AS best JOIN current USING (row)"
    b = here.con.sql(f"SELECT place, {columns}, best.own_us FROM {best} WHERE NOT reference").df()
    same = here.con.sql(query("own_backend", place=place)).df()
    if 0 < len(alone := a[~a["place"].isin(b["place"])]) < len(a):
        example = ", ".join(f"{name} {alone[name].iloc[0]:,}" for name in ("batch_size", "s_qo", "s_kv"))
        note_once(f"published times without a measured one of their workload: {len(alone):,} of {len(a):,}, such as {example}")
    return a.merge(b, on="place", suffixes=("_a", "_b")).merge(same, on=["place", "backend_a"], how="left")


def _summary(joined: pd.DataFrame) -> Grid:
    keys = ["cluster_a", "device_name_a", "device_name_b", "resolved_backend_a", "routine_a", "q_dtype_a", "kv_dtype_a"]
    cells = []
    for values, part in joined.groupby(keys, dropna=False, sort=True):
        own, best = (np.log(part[name] / part["own_us_a"]) for name in ("same_us", "own_us_b"))
        of_own = f"{np.exp(own.mean()):.2f} at {own.count()}" if own.count() else "–"
        one_device = values[1] == values[2]
        of_both = (of_own, f"{np.exp(best.mean()):.2f}") if one_device else (NO_RATIO, NO_RATIO)
        sides, kernel = map(str, values[:3]), map(str, values[3:])
        cells.append((*kernel, str(len(part)), *of_both, *sides))
    header = ("its kernel", "routine", "q", "kv", "workloads", *HERE, "published", "on", "measured on")
    others = joined[joined["device_name_a"] != joined["device_name_b"]]
    told = "measured time over the published one (geometric mean)", "published times beside measured ones"
    both = [joined[[f"{name}_{side}" for name in NAMED_IF_UNLIKE]].set_axis(NAMED_IF_UNLIKE, axis=1) for side in "ab"]
    differing = (f"{name} {there} there, {here} here" for name, there, here in differences((), NAMED_IF_UNLIKE, both).cells)
    unlike = "; ".join(differing).replace("–", "not stated") or "imported rows have no samples"
    there, here = (" and ".join(sorted(set(others[f"device_name_{side}"]))) for side in "ab")
    no_ratio = (
        f". No ratio of {there} and {here}: it would mix the GPUs with how each was timed. The next table has the times. "
        f"For a ratio import a table of {here} from the same source and compare the two, or measure {there} with the same sweep"
    )
    title = f"{told[len(others) == len(joined)]}; not judged: {unlike}{no_ratio * (not others.empty)}"
    return Grid(title, header, tuple(cells))


def _workloads(joined: pd.DataFrame) -> Grid:
    order = ["kv_dtype_a", "q_dtype_a", "batch_size_a", "s_kv_a", "s_qo_a"]
    lines: list[dict[str, Any]] = joined.sort_values(order, kind="stable").to_dict("records")
    cells = tuple(
        (
            *(f"{r[f'{key}_a']:,}" for key in ("batch_size", "s_qo", "s_kv")),
            f"{shown(r['backend_a'])} {r['own_us_a']:,.1f}",
            "–" if r["same_us"] != r["same_us"] else f"{r['same_us']:,.1f}",
            f"{shown(r['backend_b'])} {r['own_us_b']:,.1f}",
            *(str(r[f"{key}_a"]) for key in ("kv_dtype", "q_dtype", "routine")),
        )
        for r in lines
    )
    header = ("batch", "s_qo", "s_kv", "published µs", *HERE, "kv", "q", "routine")
    return Grid("by workload, without the launch of the graph (own_us)", header, cells).first(MAX_WORKLOADS)


def _of_both(baseline: Selection, candidate: Selection, max_rel_err: float | None = None) -> list[Grid]:
    """The tables, the answer first. Raises UserError if both select the same rows, or if no problem is in both."""
    words = f"baseline={baseline.name} and candidate={candidate.name}"
    if baseline.path == candidate.path and baseline.rows.index.equals(candidate.rows.index):
        raise UserError(f"{words}: both select the same rows; type candidate=DIR with another import")
    if max_rel_err is not None:
        raise UserError(f"best.max_rel_err={max_rel_err:g}: the answers of imported rows were not checked; leave it out")
    found = best_of.best_of(baseline, candidate)
    if found.problems.empty:
        raise UserError(
            f"{words}: no problem is in both; a problem is the routine, lengths, heads, page size, dtypes and mask, timed in one "
            f"way. type tables of one framework, such as two of vllm"
        )
    header = ("column", baseline.name, candidate.name)  # such as the version of the framework
    return [_counts(found), *best_of.grids(found, APART), differences(header, DIFFERING, [baseline.rows, candidate.rows])]


def _counts(found: best_of.BestOfSides) -> Grid:
    """At how many problems each side is ahead by more than the rule asks for."""
    baseline, candidate = found.names
    log_ratio = np.log(found.problems["speed_up"].to_numpy(dtype=float))
    fastest_us = found.problems[["us_a", "us_b"]].min(axis=1).to_numpy(dtype=float)
    ahead = np.sign(log_ratio) * (np.abs(log_ratio) > WIDE * np.sqrt(BETWEEN_TABLES.variance(fastest_us)))
    words = {1: f"{candidate} takes less time", -1: f"{baseline} takes less time", 0: "cannot be told apart"}
    cells = tuple((told, f"{(ahead == of).sum():,}") for of, told in words.items() if (ahead == of).any())
    return Grid(f"published times of both; {RULE}", ("the best of each at a workload", "workloads"), cells)

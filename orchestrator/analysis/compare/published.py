"""Published times beside measured ones: imported rows beside rows of this project, at the same shapes.

They were timed in another way, so no verdict is given. Page size, page order and layout may differ too, since published tables
often do not say them. What differs is named. On two kinds of devices there is no ratio either: it would be read as that of the
devices, and holds the difference between two timers and two states of the caches as well.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.compare import both_published
from orchestrator.analysis.compare.pairs import TIMING_SETTINGS
from orchestrator.analysis.compare.selection import Selection, select
from orchestrator.analysis.names import of_references, shown
from orchestrator.analysis.value_text import text_of
from orchestrator.config.settings import CompareSettings
from orchestrator.errors import UserError
from orchestrator.tables import Grid

if TYPE_CHECKING:
    import pandas as pd

ORIGINS = ("aiconfigurator", "flashinfer_benchmark")  # `orchestrator_version` of imported rows
SHAPE = (
    *("routine", "batch_size", "s_qo", "s_kv", "num_qo_heads", "num_kv_heads", "head_dim_qk", "head_dim_vo", "head_dim_ckv"),
    *("head_dim_kpe", "q_dtype", "kv_dtype", "mask", "window", "sinks", "seq_lens", "batch_spec", "min_s_qo", "shared_prefix"),
)
NAMED_IF_UNLIKE = (*TIMING_SETTINGS, "page_size", "page_order", "device_name")
NO_RATIO = "none: other GPU"
MAX_SHAPES = 60  # lines of the second table


def published_grids(settings: CompareSettings) -> list[Grid]:
    """The tables, if one of the two sides of a comparison holds imported rows alone, or both do; else none.

    Raises UserError if no shape is in both.
    """
    if not settings.baseline or not settings.candidate:
        return []
    sides = [
        select(name, given, settings.results.path, settings.where)
        for name, given in (("baseline", settings.baseline), ("candidate", settings.candidate))
    ]
    imported = [_is_imported(side) for side in sides]
    if not any(imported):
        return []
    if all(imported):
        return both_published.grids(sides[0], sides[1], settings.best.max_rel_err)
    published, measured = sides if imported[0] else reversed(sides)
    joined = _joined(published.rows, measured.rows)
    if joined.empty:
        raise UserError(
            f"baseline={sides[0].name} and candidate={sides[1].name}: no shape is in both; a shape is the routine, lengths, heads, "
            f"dtypes and mask. type others"
        )
    return [_summary(joined), _shapes(joined)]


def _is_imported(side: Selection) -> bool:
    return bool(side.rows["orchestrator_version"].isin(ORIGINS).all())


def _joined(published: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Each published row (`_a`) beside the fastest measured one of its shape (`_b`); `same_us` is the time of its own backend."""
    ok = measured[(measured["status"] == "ok") & ~measured["backend"].str.contains(re.compile(of_references()))]
    a, b = _keyed(published[published["status"] == "ok"]), _keyed(ok)
    if a.empty or b.empty:
        return a.head(0)
    best = b.sort_values("median_us", kind="stable").drop_duplicates("shape")
    same = b.groupby(["shape", "backend"])["median_us"].min().rename("same_us")
    joined = a.merge(best, on="shape", suffixes=("_a", "_b"))
    return joined.merge(same, how="left", left_on=["shape", "backend_a"], right_index=True)


def _keyed(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with their shape as one text."""
    texts = rows[list(SHAPE)].map(text_of)
    return rows.assign(shape=texts.agg("|".join, axis=1) if len(rows) else "")


def _summary(joined: pd.DataFrame) -> Grid:
    import numpy as np

    keys = ["cluster_a", "device_name_a", "device_name_b", "resolved_backend_a", "routine_a", "q_dtype_a", "kv_dtype_a"]
    cells = []
    for values, part in joined.groupby(keys, dropna=False, sort=True):
        own, best = (np.log(part[name] / part["median_us_a"]) for name in ("same_us", "median_us_b"))
        of_own = f"{np.exp(own.mean()):.2f} at {own.count()}" if own.count() else "–"
        one_device = values[1] == values[2]
        of_both = (of_own, f"{np.exp(best.mean()):.2f}") if one_device else (NO_RATIO, NO_RATIO)
        cells.append((*map(str, values), str(len(part)), *of_both))
    header = (
        "published",
        "on",
        "measured on",
        "its kernel",
        "routine",
        "q",
        "kv",
        "shapes",
        "the same backend here",
        "the fastest here",
    )
    others = joined[joined["device_name_a"] != joined["device_name_b"]]
    ratios = "published times beside measured ones"
    if len(others) < len(joined):
        ratios = "measured time over the published one (geometric mean)"
    return Grid(f"{ratios}; not judged: {_unlike(joined)}{_why_no_ratio(others)}", header, tuple(cells))


def _why_no_ratio(others: pd.DataFrame) -> str:
    """Why times of two kinds of devices have no ratio, and what has one; nothing if there are none."""
    if others.empty:
        return ""
    there, here = (" and ".join(sorted(set(others[f"device_name_{side}"]))) for side in "ab")
    return (
        f". No ratio of {there} and {here}: it would hold how each was timed as well as the GPUs. The next table has the times. "
        f"For a ratio import a table of {here} from the same source and compare the two, or measure {there} with the same sweep"
    )


def _unlike(joined: pd.DataFrame) -> str:
    """The settings that differ, each with both sides' values."""
    differing = []
    for name in NAMED_IF_UNLIKE:
        sides = [" and ".join(sorted({str(value) for value in joined[f"{name}_{side}"]})) for side in "ab"]
        if sides[0] != sides[1]:
            differing.append(f"{name} {sides[0]} there, {sides[1]} here")
    return "; ".join(differing) or "imported rows have no samples"


def _shapes(joined: pd.DataFrame) -> Grid:
    order = ["kv_dtype_a", "q_dtype_a", "batch_size_a", "s_kv_a", "s_qo_a"]
    lines: list[dict[str, Any]] = joined.sort_values(order, kind="stable").to_dict("records")
    cells = tuple(
        (
            *(str(r[f"{key}_a"]) for key in ("routine", "q_dtype", "kv_dtype")),
            *(f"{r[f'{key}_a']:,}" for key in ("batch_size", "s_qo", "s_kv")),
            f"{shown(r['backend_a'])} {r['median_us_a']:,.1f}",
            "–" if r["same_us"] != r["same_us"] else f"{r['same_us']:,.1f}",
            f"{shown(r['backend_b'])} {r['median_us_b']:,.1f}",
        )
        for r in lines[:MAX_SHAPES]
    )
    more = f"; the first {MAX_SHAPES} of {len(lines)}" if len(lines) > MAX_SHAPES else ""
    header = ("routine", "q", "kv", "batch", "s_qo", "s_kv", "published µs", "the same backend here", "the fastest here")
    return Grid(f"by shape{more}", header, cells)

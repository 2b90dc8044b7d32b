"""Best against best on a terminal: one line a dtype, and which winners changed. No side is better than the other in these words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.compare.best_of import OF_LINE, BatchRange, BestOfSides, by_batch
from orchestrator.analysis.keys import PROBLEM_KEYS
from orchestrator.analysis.noise import SAME
from orchestrator.analysis.questions.exactness import error, named
from orchestrator.analysis.questions.tables import describe_point, l2_words, percent
from orchestrator.tables import Grid

if TYPE_CHECKING:
    import pandas as pd

MAX_CHANGED = 20  # shapes in the list


def grids(found: BestOfSides, same: float = SAME) -> list[Grid]:
    """The ratio by dtypes, and the shapes whose best kernel is another one; nothing if the sides share no shape.

    Keeping a kernel costs something if it takes longer by more than `same`.
    """
    if found.shapes.empty:
        return []
    return [_lines(found), *_changed(found, same)]


def headline(found: BestOfSides) -> str:
    """The answer in a line."""
    baseline, candidate = found.names
    parts = [f"{_title(key, found.shapes)} {_words(ranges, few=True)}" for key, ranges in _parts(found)]
    return f"{candidate} over {baseline}, best against best: {'; '.join(parts)}"


def _parts(found: BestOfSides) -> list[tuple[dict[str, Any], list[BatchRange]]]:
    groups = found.shapes.groupby(list(OF_LINE), sort=True)
    return [(dict(zip(OF_LINE, values, strict=True)), by_batch(part)) for values, part in groups]


def _lines(found: BestOfSides) -> Grid:
    baseline, candidate = found.names
    counts = found.shapes.groupby(list(OF_LINE), sort=True).agg(
        shapes=("speed_up", "size"), least=("speed_up", "min"), most=("speed_up", "max")
    )
    cells = tuple(
        (
            _title(key, found.shapes, whole=True),
            _words(ranges),
            f"{one['least']:.2f} to {one['most']:.2f}",
            f"{one['shapes']:,.0f}",
        )
        for (key, ranges), one in zip(_parts(found), counts.to_dict("records"), strict=True)
    )
    title = f"{candidate} over {baseline}, the best backend of each: how many times as fast, geometric mean"
    return Grid(title, ("what", "times as fast", "least to most", "shapes"), cells)


def _title(key: dict[str, Any], shapes: pd.DataFrame, *, whole: bool = False) -> str:
    """The keys of a line that vary, or all of them."""
    dtypes = f"q {key['q_dtype']}, kv {key['kv_dtype']}"
    model = key["model"] if whole or shapes["model"].nunique() > 1 else None
    l2 = l2_words(key["l2"]) if whole or shapes["l2"].nunique() > 1 else None
    return " · ".join(part for part in (model, dtypes, l2) if part)


def _words(ranges: list[BatchRange], *, few: bool = False) -> str:
    """`1.10 at batch 1, 1.43 at batch 8 and up`; with `few` from the least to the most of more than three ranges."""
    if len(ranges) == 1:
        return f"{ranges[0].mean:.2f}"
    if few and len(ranges) > 3:
        means = [one.mean for one in ranges]
        return f"{min(means):.2f} to {max(means):.2f} by batch"
    return ", ".join(f"{one.mean:.2f} at batch {_range(one, ranges[-1])}" for one in ranges)


def _range(one: BatchRange, last: BatchRange) -> str:
    if one.first == one.last:
        return f"{one.first}"
    return f"{one.first} and up" if one is last else f"{one.first} to {one.last}"


def _changed(found: BestOfSides, same: float) -> list[Grid]:
    """Where another kernel is best, and what it costs to keep the baseline's choice on the candidate."""
    changed, (baseline, candidate) = found.changed, found.names
    if changed.empty:
        return []
    extra = [key for key in PROBLEM_KEYS if key in changed and key not in _IN_DESCRIPTION and changed[key].nunique() > 1]
    matter = int((changed["keeping"] > 1 + same).sum())
    cells = tuple(
        (
            ", ".join((describe_point(r), *(f"{key} {r[key]}" for key in extra))),
            *(
                f"{named(r[f'backend_{side}'], r[f'kernel_{side}'])} {r[f'us_{side}']:,.1f} {error(_known(r[f'rel_err_{side}']))}"
                for side in "ab"
            ),
            f"{r['speed_up']:.2f}",
            "no time there" if r["keeping"] != r["keeping"] else percent(r["keeping"] - 1),
        )
        for r in changed.head(MAX_CHANGED).to_dict("records")
    )
    more = f", {MAX_CHANGED} of them here" if len(changed) > MAX_CHANGED else ""
    title = (
        f"another kernel is best at {len(changed):,} of {len(found.shapes):,} shapes{more}; "
        f"keeping the first costs more than {same:.0%} at {matter:,}"
    )
    header = ("shape", f"{baseline}, µs", f"{candidate}, µs", "times as fast", f"keeping the first on {candidate} costs")
    return [Grid(title, header, cells)]


def _known(rel_err: float) -> float | None:
    """None for an answer that was not checked, which a frame holds as NaN."""
    return None if math.isnan(rel_err) else rel_err


_IN_DESCRIPTION = ("routine", "q_dtype", "kv_dtype", "out_dtype", "batch_size", "s_kv", "s_qo")  # by a point's description

"""How far measurements and checks can be trusted: the noise between A/A pairs, and the mutants that the check caught."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING

from orchestrator.analysis.names import shown
from orchestrator.analysis.noise import RANGES_US, aa_pairs
from orchestrator.reporting.power_curve import alarm_grids, curve_grids, size_grids
from orchestrator.tables import Grid

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.analysis.dataset import Dataset

MAX_WORST_PAIRS = 8
MUTANT = "mutant of "  # how `resolved_backend` of a mutant begins


def grids(current: pd.DataFrame) -> list[Grid]:
    """The tables of noise and of mutants, from the newest row of each point; none of either if there are no such rows."""
    return [*noise_grids(current), *power_grids(current)]


def is_about_quality(data: Dataset) -> bool:
    """Whether a dataset has A/A pairs or mutants, which are no candidates for the fastest backend."""
    return bool(data.scalar(f"SELECT bool_or(twin > 0 OR starts_with(resolved_backend, '{MUTANT}')) FROM rows"))


def is_caught(table: pd.DataFrame) -> pd.Series:
    """For each row, whether it is a mutant that the check caught."""
    return _is_mutant(table) & (table["status"] == "mismatch")


def _is_mutant(table: pd.DataFrame) -> pd.Series:
    """For each row, whether it is a mutant: by `resolved_backend`, or by name if it failed before that was known."""
    from kernels.mutants import ADAPTERS

    ran = ~table["status"].isin(["unsupported", "skipped"])
    named = table["backend"].isin({mutant.name for mutant in ADAPTERS})
    return table["resolved_backend"].fillna("").str.startswith(MUTANT) | (ran & named)


def noise_grids(current: pd.DataFrame) -> list[Grid]:
    """Quantiles of the noise by the kernels' median time, and the points with the most noise."""
    import pandas as pd

    found = []
    for device, pairs in aa_pairs(current).groupby("device_name_a", sort=True):
        ranges = pd.cut(pairs["median_us_a"], list(RANGES_US))
        cells = [
            _noise_row(f"{part.left:g} to {part.right:g} µs", rows["rel_diff"])
            for part, rows in pairs.groupby(ranges, observed=True)
        ]
        cells.append(_noise_row("all", pairs["rel_diff"]))
        header = ("median time", "points", "median", "95th percentile", "99th percentile", "worst")
        found.append(Grid(f"noise: |A'/A - 1| of the same points measured twice, interleaved · {device}", header, tuple(cells)))
        worst = pairs.sort_values("rel_diff", ascending=False, kind="stable").head(MAX_WORST_PAIRS)
        found.append(Grid(f"where it is worst · {device}", _WORST_HEADER, tuple(map(_worst_row, worst.to_dict("records")))))
    return found


_WORST_HEADER = ("difference", "backend", "batch", "s_kv", "s_qo", "kv", "A µs", "A' µs", "throttled by", "point_id")


def _worst_row(pair: dict[Hashable, object]) -> tuple[str, ...]:
    times = (f"{pair[f'median_us_{side}']:.2f}" for side in "ab")
    shape = (shown(str(pair[f"{key}_a"])) for key in ("backend", "batch_size", "s_kv", "s_qo", "kv_dtype"))
    throttled_by = f"{pair['throttle_reasons_a']} / {pair['throttle_reasons_b']}"
    return (f"{pair['rel_diff']:.2%}", *shape, *times, throttled_by, str(pair["point_id_a"]))


def _noise_row(name: str, rel_diff: pd.Series) -> tuple[str, ...]:
    quantiles = (f"{rel_diff.quantile(q):.2%}" for q in (0.5, 0.95, 0.99, 1.0))
    return (name, str(len(rel_diff)), *quantiles)


def power_grids(current: pd.DataFrame) -> list[Grid]:
    """For each mutant, context and cache dtype: the smallest error in tolerances, and how many points missed it."""
    from kernels.mutants import ADAPTERS

    listed = {mutant.name for mutant in ADAPTERS}
    ran = current[_is_mutant(current) & (current["backend"].str.partition("@")[0].isin(listed))]
    found = [*curve_grids(current), *size_grids(current), *alarm_grids(current)]
    for (device, model), part in ran.groupby(["device_name", "model"], sort=True):
        columns = [(kv, s_kv) for kv, s_kv in sorted(set(zip(part["kv_dtype"], part["s_kv"], strict=True)))]
        cells = []
        for mutant, rows in part.groupby("backend", sort=False):
            by_column = dict(list(rows.groupby(["kv_dtype", "s_kv"])))
            cells.append((str(mutant), *(_caught(by_column.get(column)) for column in columns)))
        header = ("mutant", *(f"{kv} {s_kv:,}" for kv, s_kv in columns))
        caught, count = int((part["status"] == "mismatch").sum()), len(part)
        title = f"{caught} of {count} wrong kernels caught; the least error in tolerances · {model} · {device}"
        found.append(Grid(title, header, tuple(cells)))
    return found


def _caught(rows: pd.DataFrame | None) -> str:
    if rows is None:
        return "–"
    missed = int((rows["status"] != "mismatch").sum())
    # A mutant may be wrong in its log-sum-exp alone: the further one off of its two outputs counts.
    of_lse = rows["lse_err"] / rows["lse_tolerance"]
    over = rows[["err_over_tolerance"]].assign(of_lse=of_lse.astype(float)).max(axis=1).min()
    least = "no answer" if math.isnan(over) else "no number" if math.isinf(over) else f"{over:.3g}×"
    return f"{least} ({missed} of {len(rows)} missed)" if missed else least

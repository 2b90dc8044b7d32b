"""How far a dataset's figures can be trusted: the noise between twins, and what the check caught of kernels made wrong."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from orchestrator.dataset import RANGES_US
from orchestrator.grid import Grid

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.dataset import Dataset

TWINS = ["cluster", "device_name", "group_id", "backend"]
WORST = 8
MUTANT = "mutant of "  # how a wrong kernel names what it wraps, in `resolved_backend`


def grids(current: pd.DataFrame) -> list[Grid]:
    """Both, each where a dataset of mode=noise or mode=check_power holds its rows, of which these are the newest."""
    return [*noise_grids(current), *power_grids(current)]


def is_about_trust(data: Dataset) -> bool:
    """Whether a dataset holds twins or mutants, of which none is the fastest backend of anything."""
    return bool(data.one(f"SELECT bool_or(twin > 0 OR starts_with(resolved_backend, '{MUTANT}')) FROM rows"))


def is_caught(table: pd.DataFrame) -> pd.Series:
    """Rows of wrong kernels that the check found to be wrong."""
    return _is_mutant(table) & (table["status"] == "mismatch")


def _is_mutant(table: pd.DataFrame) -> pd.Series:
    """By what it wraps, or by its name where it did not get so far as to say."""
    from kernels.mutants import ADAPTERS

    ran = ~table["status"].isin(["unsupported", "skipped"])
    named = table["backend"].isin({mutant.name for mutant in ADAPTERS})
    return table["resolved_backend"].fillna("").str.startswith(MUTANT) | (ran & named)


def twins(current: pd.DataFrame) -> pd.DataFrame:
    """Points that were measured twice, `a` and `b`, with `off` = |b / a - 1| of their medians."""
    ok = current[current["status"] == "ok"]
    first, second = (ok[ok["twin"] == twin].set_index(TWINS) for twin in (0, 1))
    pairs = first.join(second[["median_us", "throttle_reasons"]], how="inner", rsuffix="_b")
    return pairs.assign(off=(pairs["median_us_b"] / pairs["median_us"] - 1).abs()).reset_index()


def noise_grids(current: pd.DataFrame) -> list[Grid]:
    """Quantiles of the noise by how long the kernels take, and the points where it is worst."""
    import pandas as pd

    pairs = twins(current)
    found = []
    for device, of_device in pairs.groupby("device_name", sort=True):
        ranges = pd.cut(of_device["median_us"], list(RANGES_US))
        cells = [
            _noise_row(f"{part.left:g} to {part.right:g} µs", rows["off"])
            for part, rows in of_device.groupby(ranges, observed=True)
        ]
        cells.append(_noise_row("all", of_device["off"]))
        header = ("median time", "points", "median", "95th percentile", "99th percentile", "worst")
        found.append(Grid(f"noise: |A'/A - 1| of the same points measured twice, in turns · {device}", header, tuple(cells)))
        worst = of_device.sort_values("off", ascending=False).head(WORST)
        found.append(Grid(f"where it is worst · {device}", _WORST_HEADER, tuple(map(_worst_row, worst.to_dict("records")))))
    return found


_WORST_HEADER = ("off", "backend", "batch", "s_kv", "s_qo", "kv", "A µs", "A' µs", "clock held down by", "point_id")


def _worst_row(row: dict[str, object]) -> tuple[str, ...]:
    times = (f"{row['median_us']:.2f}", f"{row['median_us_b']:.2f}")
    shape = (str(row[key]) for key in ("backend", "batch_size", "s_kv", "s_qo", "kv_dtype"))
    return (f"{row['off']:.2%}", *shape, *times, f"{row['throttle_reasons']} / {row['throttle_reasons_b']}", str(row["point_id"]))


def _noise_row(name: str, off: pd.Series) -> tuple[str, ...]:
    quantiles = (f"{off.quantile(q):.2%}" for q in (0.5, 0.95, 0.99, 1.0))
    return (name, str(len(off)), *quantiles)


def power_grids(current: pd.DataFrame) -> list[Grid]:
    """Mutant by context and cache dtype: how many were caught, and by how many tolerances the narrowest."""
    ran = current[_is_mutant(current)]
    found = []
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
    over = rows["err_over_tolerance"].min()
    least = "no answer" if math.isnan(over) else "no number" if math.isinf(over) else f"{over:.3g}×"
    return f"{least} ({missed} of {len(rows)} missed)" if missed else least

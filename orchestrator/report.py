"""Tables for a person, from the Parquet dataset alone: the best backend by shape, statuses with reasons, a plan in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from kernels.problem import Problem
from orchestrator.grid import Grid
from orchestrator.plan import Plan, headline
from orchestrator.row import STATUSES

if TYPE_CHECKING:
    import pandas as pd

# What must be equal for two times to be compared: the whole problem, so that a new axis joins by itself. A tree is told by its
# mask's name (`latest` sees to it).
SHAPE = ("cluster", "device_name", *(field for field in Problem.model_fields if field != "tree"))
COLUMN_KEY = "s_kv"
TABLE = ("device_name", "model", "q_dtype", "kv_dtype")  # one table each, and for whatever else varies
TOP_REASONS = 12


def latest(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each point, cluster and device: the newest, where several versions lie in one dataset.

    Where two trees go by one name, `mask` ends in the tree itself.
    """
    ordered = table.sort_values("finished_at", kind="stable")
    newest = ordered.drop_duplicates(["point_id", "cluster", "device_name"], keep="last")
    trees = newest.loc[newest["tree"].notna(), "tree"].map(lambda tree: " ".join(map(str, tree)))
    named = newest.loc[trees.index]
    if named.empty or trees.groupby([named["mask"], named["s_qo"]]).nunique().max() == 1:
        return newest
    return newest.assign(mask=(named["mask"] + " " + trees).reindex(newest.index).fillna(newest["mask"]))


def varying(rows: pd.DataFrame, shown: Sequence[str]) -> list[str]:
    """Keys of a problem that differ among the rows and are not told by the keys shown already, as `out_dtype` is by `q_dtype`."""
    found = [key for key in SHAPE if key in rows and key not in shown and rows[key].nunique(dropna=False) > 1]
    for key in reversed(found):
        others = [*shown, *(k for k in found if k != key)]
        if rows.groupby(others, dropna=False)[key].nunique(dropna=False).max() == 1:
            found.remove(key)
    return found


def label(keys: Sequence[str], values: Sequence[object]) -> str:
    """What else is true of a table, ` · key value` for each; nothing for a key that has no value there."""
    import pandas as pd

    return "".join(f" · {key} {value}" for key, value in zip(keys, values, strict=True) if not pd.isna(value))


def kernels_once(ok: pd.DataFrame) -> pd.DataFrame:
    """A kernel competes once, spoken for by the backend of its own name: `auto` next to its choice would win and lose by noise."""
    if ok["resolved_backend"].isna().any():
        return ok
    named_first = ok.assign(own=ok["backend"] == ok["resolved_backend"]).sort_values("own", ascending=False, kind="stable")
    return named_first.drop_duplicates([*SHAPE, "resolved_backend"])


def best(table: pd.DataFrame) -> pd.DataFrame:
    """The fastest `ok` row of each shape, with `runner_up` and `margin`: its time over the winner's, less one."""
    ok = kernels_once(table[table["status"] == "ok"])
    ok = ok.sort_values("median_us", kind="stable")
    grouped = ok.groupby(list(SHAPE), sort=True, dropna=False)
    first, second = grouped.nth(0).set_index(list(SHAPE)), grouped.nth(1).set_index(list(SHAPE))
    ahead = second["median_us"].reindex(first.index) / first["median_us"] - 1
    return first.assign(runner_up=second["backend"].reindex(first.index), margin=ahead).sort_index()


def best_grids(table: pd.DataFrame) -> list[Grid]:
    """Draft length and batch down, context across, winner in the cell; a table for every other combination of axes there is."""
    winners = best(latest(table)).reset_index()
    down = ("s_qo", "batch_size")
    extra = varying(winners, (*TABLE, *down, COLUMN_KEY)) if len(winners) else []
    grids = []
    for (device, model, q, kv, *others), part in winners.groupby([*TABLE, *extra], sort=True, dropna=False):
        contexts = sorted(part[COLUMN_KEY].unique())
        cells = [
            (str(s_qo), str(batch), *(_cell(rows, context) for context in contexts))
            for (s_qo, batch), rows in part.groupby(list(down), sort=True)
        ]
        title = f"fastest backend, median µs (ahead of the next by) · {model} · q {q}, kv {kv}{label(extra, others)} · {device}"
        grids.append(Grid(title, ("s_qo", "batch", *(f"s_kv {c:,}" for c in contexts)), tuple(cells)))
    return grids


def _cell(rows: pd.DataFrame, context: int) -> str:
    found = rows[rows[COLUMN_KEY] == context]
    if found.empty:
        return "–"
    row = found.iloc[0]
    winner, margin = f"{row['backend']} {row['median_us']:,.1f}", row["margin"]
    if math.isnan(margin):
        return winner
    return f"{winner} (+{margin:.1%})" if margin < 0.1 else f"{winner} (+{margin:.0%})"


def status_grid(table: pd.DataFrame) -> Grid:
    """How many points have which status, and why."""
    current = latest(table)
    cells = []
    for status in STATUSES:
        of = current[current["status"] == status]
        if of.empty:
            continue
        counts = of["reason"].fillna("").map(partial(headline, status)).value_counts()
        for reason, count in counts.head(TOP_REASONS).items():
            cells.append((status, str(count), reason))
        if (rest := int(counts.iloc[TOP_REASONS:].sum())) > 0:
            cells.append((status, str(rest), f"{len(counts) - TOP_REASONS} other reasons"))
    return Grid("points by status", ("status", "points", "reason"), tuple(cells))


def plan_grids(plan: Plan, workers: int) -> list[Grid]:
    """A plan in numbers: points, reasons, modules, memory, time."""
    verdicts = [(verdict, plan.of(verdict)) for verdict in ("run", "unsupported", "skipped")]
    counts = [(verdict, str(len(decisions))) for verdict, decisions in verdicts]
    reasons = [
        (verdict, str(count), reason)
        for verdict in ("unsupported", "skipped")
        for reason, count in plan.reasons(verdict).most_common()
    ]
    modules = [(arch, str(module), str(len(points))) for (arch, module), points in plan.modules.items()]
    cost = [
        ("groups that share inputs", str(len(plan.groups))),
        ("largest point", f"{plan.peak_memory_bytes / 1e9:.3g} GB of device memory"),
        ("workers", str(workers)),
        ("estimated time, without compilation", _duration(plan.eta_s(workers))),
    ]
    return [
        Grid(f"plan: {len(plan.decisions)} points", ("verdict", "points"), tuple(counts)),
        Grid("why not", ("verdict", "points", "reason"), tuple(reasons)),
        Grid(f"kernel modules to compile: {len(modules)}", ("arch", "module", "points"), tuple(modules)),
        Grid("cost", ("what", "value"), tuple(cost)),
    ]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"

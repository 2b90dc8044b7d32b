"""A comparison as tables for a person: the verdicts in numbers, what differs, groups, and the points that call for a look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.compare.comparison import Comparison
from orchestrator.compare.noise_floor import BETWEEN_RUNS, IN_TURNS
from orchestrator.compare.selection import KINDS
from orchestrator.compare.verdicts import DECIDED
from orchestrator.grid import Grid

if TYPE_CHECKING:
    import pandas as pd

LISTED = 20  # points that a table names; regressions are named up to REGRESSIONS_LISTED
REGRESSIONS_LISTED = 200
MEANING = {
    "slower": "slower in the candidate, beyond noise",
    "failing": "ok in the baseline; wrong, failed, timed out or out of memory in the candidate",
    "lost": "ok in the baseline; unsupported in the candidate on the same kind of device",
    "faster": "faster in the candidate, beyond noise",
    "same": "within ±{same:.3g}%, noise included",
    "undecided": "the data cannot tell",
    "missing": "ok in the baseline; no time and no failure in the candidate",
    "mended": "not ok in the baseline, ok in the candidate",
    "new": "in the candidate alone",
}
# What names a point, in this order, where it varies; the last three name every point.
AXES = (
    "device_name",
    "routine",
    "model",
    "q_dtype",
    "kv_dtype",
    "mask",
    "page_size",
    "kv_layout",
    "seq_lens",
    "page_order",
    "num_qo_heads",
)
SHAPE = ("batch_size", "s_qo", "s_kv")
DIFFERENCES = (*KINDS.values(), "timer", "l2", "icache", "sweep")


def grids(found: Comparison) -> list[Grid]:
    """All tables of a comparison, the most pressing first."""
    points = found.points
    slower = points[points["verdict"] == "slower"].sort_values("change", ascending=False)
    faster = points[points["verdict"] == "faster"].sort_values("change")
    undecided = points[points["verdict"] == "undecided"].sort_values("change", ascending=False, key=abs, na_position="last")
    return [
        _summary(found),
        _differences(found),
        _timed("slower", slower, REGRESSIONS_LISTED),
        _untimed("no time any more", points[points["verdict"].isin(["failing", "lost"])], REGRESSIONS_LISTED),
        _groups(found),
        _timed("faster", faster, LISTED),
        _timed("undecided, the largest change first", undecided, LISTED),
        _untimed("without a row to compare", points[points["verdict"] == "missing"], LISTED),
    ]


def headline(found: Comparison) -> str:
    """The answer in a line."""
    counts = found.points["verdict"].value_counts()
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in MEANING if verdict in counts)
    slower = found.groups.loc[found.groups["verdict"] == "slower"] if len(found.groups) else found.groups
    named = [f"{by} {value}".strip() for by, value in zip(slower["by"], slower["value"], strict=True)] if len(slower) else []
    groups = f"; slower as a group: {', '.join(named)}" if named else ""
    return f"{'regression' if found.regressed else 'no regression'}: {told}{groups}"


def notes(found: Comparison) -> list[str]:
    """How the verdicts were reached, a sentence each."""
    points, devices = found.points[found.points["told"]], found.floors.by_device
    floors = [f"{floor} on {device} (twins of {found.floors.source})" for device, floor in devices.items()]
    turns = int(points["in_turns"].sum())
    said = [
        f"noise floor between measurements in turns: {', '.join(floors) or f'{IN_TURNS} (default: no dataset of mode=noise)'}",
        f"{turns} of {len(points)} pairs were measured in turns; to the others the floor between runs is added, {BETWEEN_RUNS}",
    ]
    if held := int((points["held_a"] | points["held_b"]).sum()):
        said.append(
            f"{held} pairs ran with the clock held down on a side; between runs, what their clocks may explain counts as noise. "
            f"To decide them: cool or uncap the device, or fix its clock, and type the sweep again with rerun=all"
        )
    return said


def _summary(found: Comparison) -> Grid:
    counts = found.points["verdict"].value_counts()
    cells = [
        (verdict, str(counts[verdict]), meaning.format(same=100 * found.same))
        for verdict, meaning in MEANING.items()
        if verdict in counts
    ]
    return Grid(f"what changed: {found.baseline.name} → {found.candidate.name}", ("verdict", "points", "meaning"), tuple(cells))


def _differences(found: Comparison) -> Grid:
    """What else is not the same on both sides."""
    sides = [side.rows[side.rows["status"] == "ok"] for side in (found.baseline, found.candidate)]
    cells = []
    for column in DIFFERENCES:
        a, b = (", ".join(sorted(rows[column].dropna().astype(str).unique())) or "–" for rows in sides)
        if a != b:
            cells.append((column, a, b))
    return Grid("what differs between the sides", ("what", "baseline", "candidate"), tuple(cells))


def _groups(found: Comparison) -> Grid:
    header = ("group", "points", "change", "95% interval", "verdict", *DECIDED)
    cells = [
        (
            f"{row['by']} {row['value']}".strip(),
            str(row["points"]),
            *_change(row),
            str(row["verdict"]),
            *(str(row[verdict]) for verdict in DECIDED),
        )
        for row in found.groups.to_dict("records")
    ]
    return Grid("groups: the mean change, and how many of their points are what", header, tuple(cells))


def _timed(what: str, rows: pd.DataFrame, limit: int) -> Grid:
    names = _names(rows)
    header = ("backend", *names, "baseline µs", "candidate µs", "change", "95% interval", "remark")
    cells = [(*_point(row, names), *_times(row), *_change(row), str(row["why"])) for row in rows.head(limit).to_dict("records")]
    return Grid(_title(what, rows, limit), header, tuple(cells))


def _untimed(what: str, rows: pd.DataFrame, limit: int) -> Grid:
    names = _names(rows)
    cells = [(str(row["verdict"]), *_point(row, names), str(row["why"])) for row in rows.head(limit).to_dict("records")]
    return Grid(_title(what, rows, limit), ("verdict", "backend", *names, "became"), tuple(cells))


def _title(what: str, rows: pd.DataFrame, limit: int) -> str:
    return f"{what}: {len(rows)} points" if len(rows) <= limit else f"{what}: {limit} of {len(rows)} points"


def _names(rows: pd.DataFrame) -> list[str]:
    return [*(axis for axis in AXES if axis in rows and rows[axis].nunique(dropna=False) > 1), *SHAPE]


def _point(row: dict[str, Any], names: Sequence[str]) -> list[str]:
    return [str(row["backend"]), *(str(row[name]) for name in names)]


def _times(row: dict[str, Any]) -> list[str]:
    return [f"{math.exp(row[f'log_us_{side}']):,.2f}" for side in "ab"]


def _change(row: dict[str, Any]) -> list[str]:
    return [f"{row['change']:+.2%}", f"{row['low']:+.2%} to {row['high']:+.2%}"]

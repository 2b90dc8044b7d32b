"""A comparison as tables for a person: the number of each verdict, what differs between the sides, groups, and notable points."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pandas as pd
import yaml

from orchestrator.analysis.compare.comparison import GROUP_COLUMNS, Comparison
from orchestrator.analysis.compare.gate import BROKEN, MAX_RED, is_absent, is_other_card, known_difference
from orchestrator.analysis.compare.selection import CONDITION_COLUMNS
from orchestrator.analysis.compare.verdicts import DECIDED
from orchestrator.analysis.keys import GRAPH_REPLAY, GRID_AXES, TIMING_KEYS
from orchestrator.analysis.names import libraries_of, shown
from orchestrator.analysis.noise import BETWEEN_RUNS, INTERLEAVED
from orchestrator.analysis.sources import few
from orchestrator.config.engine import Workload, calls_of, releases
from orchestrator.tables import Grid

MAX_SHOWN = 100  # points in a table
MEANING: dict[str, str] = yaml.safe_load(files(__package__).joinpath("meaning.yaml").read_text(encoding="utf-8"))
# Columns that identify a point in a table, in this order, if they vary; those of `ALWAYS_SHOWN` do in every table.
SHOWN_IF_VARYING = (
    *("device_name", "routine", "model", "q_dtype", "kv_dtype", "mask", "page_size", "kv_layout", "seq_lens", "page_order"),
    *("kv_memory", "num_qo_heads", "window"),
)
ALWAYS_SHOWN = GRID_AXES
PRINTED = {*SHOWN_IF_VARYING, *ALWAYS_SHOWN, "backend", "verdict", "note", "red", "comparable"}  # of 200 columns
SIDE_COLUMNS = (*CONDITION_COLUMNS.values(), *TIMING_KEYS, "sweep", "backend")
GROUPS = "groups: the mean change, and the number of points with each verdict; the verdict asks whether it is beyond ±{same:.3g}%"
OF_GATE = ", and the gate whether the median, less what GPUs and runs explain, is more than unchanged runs show"
NO_GATE = "These are two kinds of GPU, so there is no gate: a slower point does not change the exit code."


def grids(found: Comparison) -> list[Grid]:
    """All tables of a comparison, the most urgent first."""
    return [_summary(found), _differences(found), *of_points(found)]


def of_points(found: Comparison) -> list[Grid]:
    """The tables of its points and groups, the first lines of each."""
    largest, others = _changes(found)
    return [grid.first(MAX_SHOWN) for grid in (*largest, _groups(found), *others)]


def of_screen(found: Comparison) -> tuple[list[Grid], list[Grid]]:
    """The tables of the largest changes, and those for the room that is left: groups, the largest first, what differs, the rest."""
    groups, (largest, others) = found.groups, _changes(found)
    if len(groups):
        groups = groups.sort_values(["red", "change"], ascending=False, key=abs, kind="stable")
    return largest, [_groups(replace(found, groups=groups)), _differences(found), *others]


def _changes(found: Comparison) -> tuple[list[Grid], list[Grid]]:
    """The tables of points that are slower, without a time or faster, and those of the others."""
    names = [name for name in found.points if name in PRINTED or name.startswith(("change", "log_us", "resolved_backend"))]
    points = found.points[names]
    is_slower = (points["verdict"] == "slower") | (points["red"] & points["comparable"])
    slower = points[is_slower].sort_values("change", ascending=False, kind="stable")
    faster = points[points["verdict"] == "faster"].sort_values("change", kind="stable")
    undecided = points[points["verdict"] == "undecided"].sort_values("change", ascending=False, key=abs, kind="stable")
    suspects = "suspects: slower, but an unchanged run may have such points" if found.has_gate else "slower, on another kind of GPU"
    largest = [
        _timed("slower, red", slower[slower["red"]]),
        _untimed("no time any more, red", points[points["red"] & ~points["comparable"]]),
        _timed(suspects, slower[~slower["red"]]),
        _timed("faster", faster),
    ]
    return largest, [
        _timed("undecided, the largest change first", undecided),
        _untimed("fixed or new", points[points["verdict"].isin(["fixed", "new"])]),
        _untimed("without a row to compare", points[points["verdict"].isin(["missing", "not measured"]) & ~points["red"]]),
    ]


def headline(found: Comparison) -> str:
    outside = found.points[["status_a", "status_b"]].isna().any(axis=1) & ~found.points["red"]
    unlike = (found.points["verdict"] == "undecided") & ~found.points["comparable"]  # of other settings, or throttled
    counts = found.points["verdict"][~outside & ~unlike].value_counts()
    counted = ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in MEANING if verdict in counts)
    others = {"not alike: other settings, or throttled": unlike.sum(), "on one side only": outside.sum()}
    told = "".join(f", {count:,} {words}" for words, count in others.items() if count)
    compared = f" ({found.points['comparable'].sum():,} compared{told})" * bool(told)
    slower = ", ".join(f"{name} ({change:+.2%})" for name, change in found.red_groups.items())
    more = _worst(found.points) + f"; slower as a group, which is known better than a point: {slower}" * bool(slower)
    more += f"; {suspects} suspects" if (suspects := int((~found.suspects["red"]).sum())) else ""
    only_missing = not found.red_groups and (found.points.loc[found.points["red"], "verdict"] == "missing").all()
    answer = "no regression" if not found.regressed else "incomplete" if only_missing else "regression"
    counted += compared + ", by median_us (best against best: own_us)" * (not found.has_gate)
    return f"{_of_defaults(found)}{answer if found.has_gate else 'two kinds of GPU, no gate'}: {counted}{more}"


def _worst(points: pd.DataFrame) -> str:
    """The red point that is slowest beside its baseline, if more than one is red."""
    red = points[points["red"] & points["comparable"]]
    if len(red) < 2:
        return ""
    worst, names = red.loc[red["change"].idxmax()].to_dict(), _names(points)
    backend, *told = _point(worst, names)
    at = ", ".join(f"{name} {value}" for name, value in zip(names, told, strict=True) if value != "–")
    return f"; the worst of {len(red)} red points: {backend}, {at} ({worst['change']:+.1%})"


def notes(found: Comparison) -> list[str]:
    """How the verdicts were reached, a sentence each."""
    points, devices = found.points[found.points["comparable"]], found.floors.by_device
    floors = [f"{floor} on {device} (A/A pairs of {found.floors.source})" for device, floor in devices.items()]
    interleaved = int(points["interleaved"].sum())
    sentences = [
        f"noise floor of interleaved measurements: {', '.join(floors) or f'{INTERLEAVED} (default: no dataset of mode=noise)'}",
        f"{interleaved} of {len(points)} pairs were interleaved; the others get the floor between runs as well, {BETWEEN_RUNS}",
    ]
    if shared := int((~points["counted"]).sum()):
        once = "group tests and the gate" if found.has_gate else "group tests"
        sentences.append(f"pairs that are aliases of another backend's call, whose samples {once} count once: {shared}")
    if (points["timer_a"] == GRAPH_REPLAY).any():
        sentences.append("changes are of median_us, with the launch of the graph, best against best of own_us (docs/timing.md)")
    sentences += [*of_gate(found), *_of_cards(found)]
    if throttled := int((points["throttled_a"] | points["throttled_b"]).sum()):
        sentences.append(
            f"{throttled} pairs were throttled on a side; between runs, what their clocks may explain counts as noise. "
            f"To decide them: cool or uncap the device, or fix its clock, and type the sweep again with rerun=all"
        )
    return sentences


def of_gate(found: Comparison) -> list[str]:
    """What decides the exit code, a sentence each."""
    red = found.points["red"] & found.points["comparable"]
    words = [
        f"{'red, exit code 1' if red.any() or found.red_groups else 'not red'}: {int(red.sum())} points alone and "
        f"{len(found.red_groups)} groups are red, by a test that calls at most {MAX_RED:.0%} of "
        "unchanged runs red (docs/timing.md)"
    ]
    words = words if found.has_gate else [NO_GATE]
    if not found.has_gate and (broken := int(found.points["verdict"].isin(BROKEN).sum())):
        words.append(f"points of the baseline that failed in the candidate: {broken}, which is exit code 1")
    if not found.missing_allowed and (absent := int(is_absent(found.points).sum())):
        words.append(f"{absent} points of the baseline have no time in the candidate and no reason why: red without missing=allow")
    return words


def lacking(found: Comparison, most: int) -> list[str]:
    """Which values the candidate has no row of, up to `most`, those of most points that lack there first; a sentence if any."""
    points, has = found.points[found.points["verdict"].isin(["missing", "not measured"])], found.candidate.rows
    lacks = [points.loc[~points[key].isin(has[key]), key].dropna().map(f"no {key} {{}}".format) for key in (*GROUP_COLUMNS, "tp")]
    words = [f"{what} ({count:,})" for what, count in Counter(pd.concat(lacks)).most_common()]
    return [*_of_flags(found), *[f"points without a time in the candidate, which has {few(words, most)}"] * bool(words)]


def _of_flags(found: Comparison) -> list[str]:
    """Which flags of an engine, whose library both sides have, are right on both and on one alone; of two GPUs if they differ."""
    sides = found.baseline.rows, found.candidate.rows
    has = [{name.split(" ")[0] for name in libraries_of(rows["libraries"].unique())} for rows in sides]
    flags = [flag for one in releases().values() if all(one.engine in names for names in has) for flag in one.flags]
    calls = [(flag.name, call) for flag in flags for *_, call in calls_of(flag) if not flag.stands_in(call)]
    ran = ({*rows[rows["status"] == "ok"][["routine", "backend"]].itertuples(index=False, name=None)} for rows in sides)
    a, b = ({name for name, call in calls if call in of} for of in ran)
    parts = {"on both sides": a & b, "in the baseline only": a - b, "in the candidate only": b - a}
    told = "; ".join(f"{where}: {', '.join(sorted(names))}" for where, names in parts.items() if names)
    return [f"flags measured {told}"] * bool(a != b or (a and found.has_gate))


def _of_defaults(found: Comparison) -> str:
    """That two releases of an engine are compared by other flags than its default, if no pair is of that; else empty."""
    sides = [libraries_of(side.rows["libraries"].unique()) for side in (found.baseline, found.candidate)]
    known = [one for one in releases().values() if all(any(name.startswith(f"{one.engine} ") for name in of) for of in sides)]
    engines = [one for one in known if [one.libraries[0] in of for of in sides].count(True) == 1]
    points, rows = found.points[found.points["comparable"]], found.candidate.rows
    pairs = {*points[["routine", "backend"]].itertuples(index=False, name=None)}
    used = [(one, flag, of) for one in engines for flag in one.flags for of, _, call in calls_of(flag) if call in pairs]
    majors = {int(of.partition(".")[0]) for of in rows["compute_capability"].dropna()}
    caches = points["kv_dtype"].dropna().unique()
    asked = ((one, Workload(cc, flag.layers[0], phase, kv)) for one, flag, phase in used for cc in majors for kv in caches)
    lacks = {flag.name for one, workload in asked if (flag := one.default(workload))} - {flag.name for _, flag, _ in used}
    told = f"the default, {', '.join(sorted(lacks))}, is not on both sides: this says nothing of a server that runs it; of others: "
    return told * bool(lacks)


def _of_cards(found: Comparison) -> list[str]:
    """Which two GPUs of one kind were compared, and what is known of their difference."""
    points = found.points[found.points["comparable"]]
    other = points[is_other_card(points)]
    sentences = []
    for (a, b), pairs in other.groupby(["device_uuid_a", "device_uuid_b"]):
        offset, error, source = known_difference(pairs.iloc[0], found.cards)
        sentences.append(
            f"{len(pairs)} pairs are of two GPUs, {a} and {b}: by {source} the second takes {math.expm1(offset):+.2%} "
            f"± {error:.2%} where a time follows the memory, which the gate takes off"
        )
    return sentences


def _summary(found: Comparison) -> Grid:
    counts = found.points["verdict"].value_counts()
    slower = ": red, or a suspect" if found.has_gate else ""
    kept = ((verdict, meaning) for verdict, meaning in MEANING.items() if verdict in counts)
    cells = [(verdict, str(counts[verdict]), meaning.format(same=100 * found.same, slower=slower)) for verdict, meaning in kept]
    title = f"what changed: {found.baseline.name} → {found.candidate.name}" + f". {NO_GATE.rstrip('.')}" * (not found.has_gate)
    return Grid(title, ("verdict", "points", "meaning"), tuple(cells))


def _differences(found: Comparison) -> Grid:
    sides = [side.rows[side.rows["status"] == "ok"] for side in (found.baseline, found.candidate)]
    return differences(("what", "baseline", "candidate"), SIDE_COLUMNS, sides)


def differences(header: tuple[str, ...], names: Sequence[str], sides: Sequence[pd.DataFrame]) -> Grid:
    """The values of columns that differ between two sides."""
    values = {name: [", ".join(sorted(rows[name].dropna().astype(str).unique())) or "–" for rows in sides] for name in names}
    cells = tuple((name, a, b) for name, (a, b) in values.items() if a != b)
    return Grid("what differs between the sides", header, cells)


def _groups(found: Comparison) -> Grid:
    gate = ("gate",) if found.has_gate else ()
    header = ("group", "points", "change", "95% interval", "verdict", *gate, *DECIDED)
    cells = [
        (
            f"{row['by']} {shown(str(row['value']))}".strip(),
            str(row["points"]),
            *_change(row),
            str(row["verdict"]),
            *(f"red, {row['adjusted']:+.2%}" if row["red"] else "" for _ in gate),
            *(str(row[verdict]) for verdict in DECIDED),
        )
        for row in found.groups.to_dict("records")
    ]
    return Grid(GROUPS.format(same=100 * found.same) + (OF_GATE if gate else ""), header, tuple(cells))


def _timed(what: str, rows: pd.DataFrame) -> Grid:
    names = _names(rows)
    header = ("backend", *names, "change", "95% interval", "baseline median_us", "candidate median_us", "note")
    cells = tuple(
        (*_point(row, names), *_change(row), *(f"{math.exp(row[f'log_us_{side}']):,.2f}" for side in "ab"), str(row["note"]))
        for row in rows.to_dict("records")
    )
    return Grid(f"{what}: {len(rows)} points", header, cells, keys=1 + len(names))


def _untimed(what: str, rows: pd.DataFrame) -> Grid:
    names = _names(rows)
    cells = [(str(row["verdict"]), *_point(row, names), str(row["note"])) for row in rows.to_dict("records")]
    return Grid(f"{what}: {len(rows)} points", ("verdict", "backend", *names, "why"), tuple(cells))


def _names(rows: pd.DataFrame) -> list[str]:
    values = {name: rows[name] for name in SHOWN_IF_VARYING if name in rows}
    told = (name for name, of in values.items() if of.nunique(dropna=False) > 1 or (name == "window" and of.notna().any()))
    return [*told, *ALWAYS_SHOWN]


def _point(row: dict[str, Any], names: Sequence[str]) -> list[str]:
    ran = [kernel for side in "ba" if isinstance(kernel := row.get(f"resolved_backend_{side}"), str)]
    values = ("–" if pd.isna(row[name]) else f"{row[name]:g}" if name == "window" else str(row[name]) for name in names)
    return [shown(str(row["backend"]), ran[0] if ran else None), *values]


def _change(row: dict[str, Any]) -> list[str]:
    return [f"{row['change']:+.2%}", f"{row['change_low']:+.2%} to {row['change_high']:+.2%}"]

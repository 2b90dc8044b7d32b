"""The tables of question=in_engine: isolated times against attention in the steps of a running engine (timing.context=engine)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import yaml

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.tables import MAX_SHOWN, formatted, percent
from orchestrator.analysis.sql import query
from orchestrator.config.engine import Workload, kernel_names, releases
from orchestrator.tables import Grid

NEEDS = (
    "rows of a running engine (+sweep=in_engine), and isolated rows of the same model, GPU and lengths beside them: "
    "'results.path=[ENGINE_DIR,ISOLATED_DIR]'"
)
SELECT = "SELECT device_name AS device, engine || ' ' || engine_version AS engine, "
ON_SCREEN = ("device", "engine", "compared", "median error", "within 5% or 2 µs", "flags in order", "in steps", "so", "to hold")
NEWEST_FIRST = "device_name, in_engine_figures.engine DESC, release DESC"
TELLS = {  # flags and points apart
    "flag": 'flag AS "flag|s", phase, kv_dtype AS cache',
    "point": "kv_dtype AS cache, s_qo - 1 AS drafts, batch_size AS batch, s_kv, layers",
    "newest": NEWEST_FIRST,
}


def create(data: Dataset, points: str) -> None:
    """The tables `engine_points` (the query `points`), `engine_runs` (calls by `conf/engine`) and `kernel_names` (in profiles)."""
    data.execute(f"CREATE TEMP TABLE engine_points AS {points}")
    asked = data.execute(query("asked_in_engines"))
    runs = [(*key, *line) for key in asked for line in _runs(key)]
    data.create_table(query("engine_runs"), runs)
    data.create_table("kernel_names(part VARCHAR, routine VARCHAR, kernel VARCHAR)", kernel_names() if runs else ())


def _runs(key: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """What `conf/engine` says that a flag runs; one line with a note if it names no call here."""
    engine, version, flag, major, layers, phase, kv_dtype, sinks = key
    workload = Workload(major, layers, phase, kv_dtype, sinks=sinks)
    release = next((one for one in releases().values() if (one.engine, one.release) == (engine, version)), None)
    found = None if release is None else release.flagged(flag, workload)
    if release is None or found is None:
        lacks = f"has no release {version} of {engine}" if release is None else f"says nothing of {flag} there"
        yield f"conf/engine {lacks}", None, None, None, None, None, None
        return
    known, calls = release.known(found, workload).known, found.calls.get(workload.phase, ())
    if not calls:
        yield "no backend here makes its call", known, None, None, None, None, None
    for turn, call in enumerate(calls):
        yield "", known, turn, *call, found.stands_in(call), found.rounds_q


def grids(data: Dataset) -> list[Grid]:
    """What holds, in figures; then flags, points, pairs of flags, what starts differ by, and what a step takes beside attention."""
    if not data.scalar("SELECT count(*) FROM engine_points"):
        return []
    tables = yaml.safe_load(files(__package__).joinpath("in_engine.yaml").read_text(encoding="utf-8"))
    found = {title: data.relation(SELECT + query.format(**TELLS) + f" LIMIT {MAX_SHOWN}") for title, query in tables.items()}
    return [formatted(title, of.columns, of.fetchall()) for title, of in found.items()]


def summary(data: Dataset) -> str | None:
    """The figures of each GPU and engine in a sentence."""
    ran = data.scalar("SELECT count(*) FROM engine_points")  # planning the rest takes a tenth of a screen
    found = (
        f"{r['engine']} {r['engine_version']} on {r['device_name']}: attention is {percent(r['share'])} of a step "
        f"at the median of {r['points']:,} points, and {_held(r)}"
        for r in (data.records(f"FROM in_engine_figures ORDER BY {NEWEST_FIRST}") if ran else ())
    )
    return "; ".join(found) or None


def _held(r: Record) -> str:
    """How near isolated times are, and of how many pairs of flags they tell the order, if they tell any apart."""
    if not r["compared"]:
        return "no isolated row is beside them: 'results.path=[ENGINE_DIR,ISOLATED_DIR]'"
    near = f"within {percent(r['median_error'])} of its isolated time at that of {r['compared']:,}"
    if not r["decided"]:
        return near
    pairs = f"{r['same_attention'] or 0:,} of {r['decided']:,} pairs of flags"
    return f"{near}; {pairs} that are predicted to differ by more than the error have the same sign"

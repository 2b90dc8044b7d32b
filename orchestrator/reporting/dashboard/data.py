"""What a page holds of a dataset: its rows with the columns that the page draws, the answers of questions, and its Parquet file.

The page filters and draws. Who is fastest, what is beyond noise and what a deployment's user types come from the same queries and
functions as the reports.
"""

from __future__ import annotations

import io
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from orchestrator.analysis import how_timed
from orchestrator.analysis.compare import best_of
from orchestrator.analysis.compare.pairs import LIST_COLUMNS
from orchestrator.analysis.compare.selection import Selection
from orchestrator.analysis.dataset import Dataset, again, open_dataset
from orchestrator.analysis.keys import RANKED_US, TIMING_KEYS
from orchestrator.analysis.names import libraries_of, shown
from orchestrator.analysis.questions import best, engine_default, one_backend
from orchestrator.analysis.questions.deployments import HERE, PLACE, Part, briefs, is_usual, parts, server_name
from orchestrator.analysis.questions.exactness import error, named
from orchestrator.analysis.rough import DECIDED, ROUGH
from orchestrator.analysis.sources import left_out
from orchestrator.analysis.sql import LISTS, query, quoted
from orchestrator.config.model import CUSTOM
from orchestrator.errors import UserError
from orchestrator.grouped import grouped
from orchestrator.storage import checksum
from orchestrator.storage.columns import COLUMNS
from orchestrator.storage.row import schema

OWN_COLUMNS: dict[str, str] = yaml.safe_load(files(__package__).joinpath("columns.yaml").read_text(encoding="utf-8"))
OWN_NUMBERS = frozenset({"ranked_us", "low_us", "high_us", "noise"})
LEVELS = {"problem": "ranked", "workload": "ranked_workloads"}  # the page's numbers, and the ranking of each
MAX_ROWS = 500_000  # what a browser filters while a person waits
LEFT_IN_PARQUET = frozenset(  # lists, and figures about figures: a page carries what it draws and what tells a row's story
    name for name, column in COLUMNS.items() if column.type in LISTS
) | {"group_id", "mean_us", "std_us", "within_block_rel", "between_blocks_rel", "lag1_autocorr", "inputs_s", "compile_s", "check_s"}
IS_ROUGH = f"coalesce(stop_reason = '{DECIDED}', false)"
LOW_US, HIGH_US = (  # a rough time has few samples, which say little about percentiles
    f"if({IS_ROUGH} AND ci95_rel < 1, median_us * (1 {sign} ci95_rel), {percentile})"
    for sign, percentile in (("-", "p05_us"), ("+", "p95_us"))
)
NOISE = f"""floor_at(noise_floor, ranked_us, own_us) / 2 + CASE WHEN context = 'step' AND in_step_low_us IS NOT NULL
    THEN (in_step_high_us - in_step_low_us) / 2 / in_step_us ELSE {IS_ROUGH}::INT * {ROUGH} END"""


def rows_and_header(data: Dataset, path: str | Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows of a page (beyond `MAX_ROWS` each point's newest), and what it says of them. Raises UserError for too many."""
    count, newest = (int(data.scalar(f"SELECT count(*) FROM {view}")) for view in ("rows", "current"))
    notes = []
    if count > MAX_ROWS:
        notes.append(f"{count - newest:,} older rows of points that ran again are left out: here is the newest of each point")
    if newest > MAX_ROWS:
        raise UserError(
            f"results.path={str(path)!r}: {newest:,} points, and a page holds {MAX_ROWS:,}; "
            "choose some: 'where={device_name: NVIDIA H200}', or by any other column"
        )
    if edges := left_out(str(path)):
        notes.append(
            f"left out: {', '.join(edges)}, whose workloads ask where the rules change; a path without a pattern shows them"
        )
    found = _rows(data, "current" if count > MAX_ROWS else "rows")
    table = found.assign(
        ran=_ran(found),
        again=[again(data, one) for one in found[["row", "point_id", "command"]].to_dict("records")],
        **{name: found[name].map(shown, na_action="ignore") for name in ("backend", "resolved_backend")},
        dtype="q " + found["q_dtype"] + ", kv " + found["kv_dtype"],
    )
    tables = {level: _ranking(data, view, found["row"]) for level, view in LEVELS.items()}
    said = {"notes": [*notes, *how_timed.sentences(data)], "facts": facts(data)}
    return table.drop(columns="row"), {**said, "deployments": deployments(data), "compared": compared(data), "tables": tables}


def _rows(data: Dataset, view: str) -> pd.DataFrame:
    """The columns of the page, and `row`, by which rankings name a row. Older rows have the numbers of their point's newest.

    A row that was never timed says how the others of its problem were, so that it is drawn with them. `mask` tells
    trees of one name apart, as in `problems`.
    """
    of_problem = {name: f"coalesce(rows.{name}, max(numbered.{name}) OVER of_point) AS {name}" for name in TIMING_KEYS}
    of_problem["own_us"] = "coalesce(numbered.own_us, rows.own_us) AS own_us"
    of_problem["mask"] = "coalesce(max(numbered.mask) OVER of_point, rows.mask) AS mask"
    names = ", ".join(of_problem.get(name, f'rows."{name}"') for name in COLUMNS if name not in LEFT_IN_PARQUET)
    levels = ", ".join(f"coalesce(max(numbered.{level}) OVER of_point, 0) AS {level}" for level in LEVELS)
    timing, values = ", ".join(TIMING_KEYS), {"measured": RANKED_US, "low": LOW_US, "high": HIGH_US, "noise": NOISE}
    return data.to_arrow(query("rows_of_page", view=view, names=names, levels=levels, timing=timing, **values)).to_pandas()


def _ran(table: pd.DataFrame) -> list[str]:
    """Who answered each row, in the words of the reports."""
    known = table[["backend", "resolved_backend"]].to_numpy()
    pairs = [(str(backend), kernel if isinstance(kernel, str) else backend) for backend, kernel in known]
    names = {(asked, ran): named(f"auto({ran})" if asked == "auto" != ran else asked, ran) for asked, ran in {*pairs}}
    return [names[pair] for pair in pairs]


def _ranking(data: Dataset, view: str, rows: pd.Series) -> pd.DataFrame:
    """A ranking in words: who is next, the lead, both errors; `row` is the winner's position among `rows`, the page's."""
    position = {row: number for number, row in enumerate(rows)}
    lines = []
    for record in data.records(f"FROM {view} ORDER BY row"):
        second = record["runner_up"]
        of_second = (None, None) if second is None else (shown(second), error(record["runner_up_rel_err"]))
        lines.append((position[record["row"]], best.ahead(record), error(record["rel_err"], record["err_ratio"]), *of_second))
    return pd.DataFrame(lines, columns=["row", "ahead", "error", "next", "next_error"])


def facts(data: Dataset) -> dict[str, list[str]]:
    """What was measured on what, with which versions, and when: of the rows that are `ok`, if any is."""
    columns = ("device_name", "model", "torch_version", "libraries", "driver", "orchestrator_version")
    lists = ", ".join(f"list_sort(list(DISTINCT {column}) FILTER ({column} IS NOT NULL))" for column in columns)
    *found, sustained, first, last = data.single_row(query("facts", lists=lists))
    gpus, models, torch, libraries, drivers, code = (values or [] for values in found)
    ran_with = [*dict.fromkeys([*(f"torch {version}" for version in torch), *libraries_of(libraries)])]
    ran_with += [f"{'some ' * (sustained < 1)}without pause"] if sustained else []
    measured = [" to ".join(dict.fromkeys((first, last)))] if first else []
    return {"GPU": gpus, "model": models, "with": ran_with, "driver": drivers, "measured": measured, "code": code}


def compared(data: Dataset) -> dict[str, dict[str, Any]]:
    """The first table of mode=compare for each two kinds of GPU, by both names with a space between."""
    if data.scalar("SELECT count(DISTINCT device_name) FROM current WHERE status = 'ok'") < 2:
        return {}
    names = ", ".join(quoted(name) for name in COLUMNS if name not in LIST_COLUMNS)
    rows = data.to_arrow(f"SELECT {names} FROM current WHERE status = 'ok' ORDER BY row").to_pandas()
    sides = [Selection(str(gpu), data.path, part) for gpu, part in rows.groupby("device_name")]
    first = {f"{a.name} {b.name}": best_of.grids(best_of.best_of(a, b))[:1] for a, b in combinations(sides, 2)}
    return {names: {"title": of.title, "header": of.header, "rows": of.cells} for names, grids in first.items() for of in grids}


def deployments(data: Dataset) -> list[dict[str, Any]]:
    """Each deployment, named models first: what to type for each engine, and its tables, by phase. `usual`: timed as servers."""
    by_place, close = grouped((part.place, part) for part in parts(data)), engine_default.close(data)
    ordered = sorted(by_place.items(), key=lambda one: one[0][PLACE.index("model")] == CUSTOM)
    return [_deployment(place, of_place, close) for place, of_place in ordered]


def _deployment(place: tuple[Any, ...], of_place: list[Part], close: engine_default.Close) -> dict[str, Any]:
    whole, told = dict(zip(PLACE, place, strict=True)), []
    for phase, of in grouped((part.phase, part) for part in of_place).items():
        grids = [grid for grid in (*one_backend.grids_of(of), engine_default.grid_of(of, close)) if grid.cells]
        tables = [{"title": one.title, "header": one.header[1:], "rows": [cells[1:] for cells in one.cells]} for one in grids]
        told.append({"name": phase, "brief": briefs(of, of_layers=True), "engines": [*map(_typed, of)], "tables": tables})
    title = of_place[0].title
    about = {"name": server_name(whole), "usual": is_usual(place), "left_out": of_place[0].left_out}
    return {"title": title, "place": whole, **about, "phases": told}


def _typed(part: Part) -> dict[str, Any]:
    """The answer of a part by the names of its cells, and what can be pasted."""
    choice = part.answer.choice
    copied = None if choice is None or part.who == HERE else " ".join(choice.typed) or None
    return {**dict(zip(one_backend.HEADER[1:], one_backend.line(part)[1:], strict=True)), "copy": copied}


def parquet(path: str | Path) -> bytes:
    """The whole dataset as one Parquet file, with the rows that are in journals alone."""
    return parquet_of(open_dataset(path))


def parquet_of(data: Dataset) -> bytes:
    """The rows of an open dataset as one Parquet file."""
    file, columns = io.BytesIO(), ", ".join(f'"{name}"' for name in COLUMNS)
    table = data.to_arrow(f"SELECT {columns} FROM rows ORDER BY row")
    checksum.write(table.cast(schema()), file)  # with what the columns mean, which SQL does not keep
    return file.getvalue()

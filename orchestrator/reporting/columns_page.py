"""What the columns of a row mean, from their dictionary: the page `docs/columns.md`, and the tables of question=columns."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from importlib.resources import files
from inspect import getdoc
from pathlib import Path

import yaml

from orchestrator.analysis.dataset import Dataset, open_dataset
from orchestrator.analysis.sources import MAX_VALUES, columns_of, few
from orchestrator.analysis.sql import LISTS, NUMBERS, Where, file_literal, quoted, text_of
from orchestrator.config.ranges import several
from orchestrator.errors import UserError, unknown
from orchestrator.storage.columns import COLUMNS, SECTIONS, Column
from orchestrator.tables import Grid, markdown

KEYS = ("section", "type", "unit")  # of a column, for where=
ABOUT = yaml.safe_load(files(__package__).joinpath("columns_page.yaml").read_text(encoding="utf-8"))


def page() -> str:
    """`docs/columns.md`."""
    parts: list[str] = [ABOUT["page"]]
    for section, grid in _grids().items():
        # As code: Markdown would take `list<double>` for HTML.
        cells = tuple((f"`{name}`", f"`{kind}`", *rest) for name, kind, *rest in grid.cells)
        parts += [f"## {section}\n", markdown([Grid(grid.title, grid.header, cells)], "|"), ""]
    return "\n".join(parts).rstrip() + "\n"


def grids(names: Sequence[str] = (), where: Where | None = None, path: str | None = None) -> list[Grid]:
    """A table for each section of columns; with `names` or `where` of the columns chosen by both, and of no others.

    `names` may be patterns such as `check_*`. `where` chooses by section, type or unit. With `path` a further column says which
    are not in that dataset, and which have no value in it. Raises UserError for what no column has, and if no rows are there.
    """
    kept = _chosen(names, where or {})
    there, found = {} if path is None else {"column": path, **columns_there(path, kept if names else ())}, list[Grid]()
    for section, grid in _grids().items():
        lines = [line for line in (grid.header, *grid.cells) if line[0] in ("column", *kept)]
        header, *cells = [(*line[:-1], there[line[0]], line[-1]) for line in lines] if there else lines
        found.append(Grid(f"{section}: {grid.title}", header, tuple(cells)))
    return [grid for grid in found if grid.cells]


def _chosen(names: Sequence[str], where: Where) -> list[str]:
    for name in names:
        if not fnmatch.filter(COLUMNS, name):
            raise UserError(unknown("columns", name, COLUMNS))
    for key, wanted in where.items():
        if key not in KEYS:
            raise UserError(unknown("where of question=columns", key, KEYS) + ", such as 'where={section: time}'")
        values = dict.fromkeys(str(getattr(column, key)) for column in COLUMNS.values())
        for value in several(wanted):
            if str(value) not in values:
                raise UserError(unknown(f"where={{{key}: ...}} of question=columns", str(value), filter(None, values)))
    named = {name for wanted in names or "*" for name in fnmatch.filter(COLUMNS, wanted)}
    fits = {key: [*map(str, several(wanted))] for key, wanted in where.items()}
    kept = [name for name in COLUMNS if name in named and all(str(getattr(COLUMNS[name], key)) in fits[key] for key in fits)]
    if not kept:
        raise UserError(f"question=columns: no column is both among columns=[{','.join(names)}] and in where={dict(where)}")
    return kept


def _grids() -> dict[str, Grid]:
    header = ("column", "type", "unit", "has a value", "meaning")
    lines = {section: tuple(_line(column) for column in COLUMNS.values() if column.section == section) for section in SECTIONS}
    return {section: Grid(" ".join((getdoc(part) or "").split()), header, lines[section]) for section, part in SECTIONS.items()}


def _line(column: Column) -> tuple[str, ...]:
    has_value = "if ok" if column.only_if_ok else "maybe" if column.nullable else "always"
    return (column.name, column.type, column.unit, has_value, column.meaning)


def columns_there(path: str | Path, asked: Sequence[str] = ()) -> dict[str, str]:
    """Of each column: not in the files (a default then), or empty; values of those `asked` for. UserError as `open_dataset`."""
    data = open_dataset(path)
    held = [  # rows that a journal holds, or an object store, have all columns
        {*columns_of(data.con, f"read_parquet({file_literal(one)})", one)} if isinstance(one, str) else {*one.column_names}
        for one in data.sources
    ]
    rows, *counts = data.single_row(f"SELECT count(*), {', '.join(f'count({quoted(name)})' for name in COLUMNS)} FROM rows")
    empty = {name for name, count in zip(COLUMNS, counts, strict=True) if not count}
    found = {}
    for name in COLUMNS:
        having = sum(name in columns for columns in held)
        values = _values(data, name) if name in asked and COLUMNS[name].type not in LISTS else ""
        some = (values, f"null in all {rows:,} rows" * (name in empty), f"in {having} of {len(held)} files" * (having < len(held)))
        found[name] = "; ".join(filter(None, some)) if having else "not in this dataset"
    return found


def _values(data: Dataset, name: str) -> str:
    """The values of a column, those of most rows first; of many numbers the least and the most."""
    column = quoted(name)
    counts = data.execute(f"SELECT {column}, count(*) FROM rows WHERE {column} IS NOT NULL GROUP BY ALL ORDER BY 2 DESC, 1")
    if len(counts) > MAX_VALUES and COLUMNS[name].type in NUMBERS:
        return f"{min(counts)[0]:,.6g} to {max(counts)[0]:,.6g}"
    return few([f"{text_of(value)} ({count:,} rows)" for value, count in counts])

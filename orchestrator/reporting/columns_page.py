"""What the columns of a row mean, from their dictionary: the page `docs/columns.md`, and the tables of question=columns. Pure."""

from __future__ import annotations

from inspect import getdoc

from orchestrator.storage.columns import COLUMNS, SECTIONS, Column
from orchestrator.tables import Grid, markdown

PAGE = """# The columns of a row

What does each column of a dataset mean, and in which unit is it?

A dataset has one row for each [point](glossary.md), on each kind of device and for each set of versions that it ran with.
`pandas.read_parquet("results/NAME")` reads it.
`python -m orchestrator mode=report question=columns` shows this page in a terminal.
The Parquet file contains it too: `pyarrow.parquet.read_schema(FILE).field("median_us").metadata`.
`make columns` writes this page from `orchestrator/storage/columns`.

- `status` is the result of the point.
  Only an `ok` row has times, because the time of a wrong answer means nothing.
- A column *may be null* if its value is unknown, or does not apply to the row.
- *ok rows only*: the column is null in every other row, and may be null in these too.
- A column that came after a file was written has its default in that file's rows.
  For an axis that is the value that was fixed before; any other column is null.
- Ratios and rates are fractions of 1, not percent.
"""


def page() -> str:
    """`docs/columns.md`."""
    parts = [PAGE]
    for section, grid in _grids().items():
        # As code: Markdown would take `list<double>` for HTML.
        cells = tuple((f"`{name}`", f"`{kind}`", *rest) for name, kind, *rest in grid.cells)
        parts += [f"## {section}\n", markdown([Grid(grid.title, grid.header, cells)]), ""]
    return "\n".join(parts).rstrip() + "\n"


def grids() -> list[Grid]:
    """A table for each section of columns."""
    return [Grid(f"{section}: {grid.title}", grid.header, grid.cells) for section, grid in _grids().items()]


def _grids() -> dict[str, Grid]:
    header = ("column", "type", "unit", "has a value", "meaning")
    return {
        section: Grid(
            " ".join((getdoc(part) or "").split()),
            header,
            tuple(
                (column.name, column.type, column.unit, _has_value(column), column.meaning)
                for column in COLUMNS.values()
                if column.section == section
            ),
        )
        for section, part in SECTIONS.items()
    }


def _has_value(column: Column) -> str:
    if column.only_if_ok:
        return "ok rows only"
    return "may be null" if column.nullable else "always"

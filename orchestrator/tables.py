"""Tables as text for a terminal, as Markdown and as an SVG picture, whatever is in them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.untrusted.text import for_csv, for_json, for_line, for_markdown, for_markdown_cell, for_terminal

SVG_COLUMNS = 150


@dataclass(frozen=True)
class Grid:
    """A table: a title, the names of its columns, and the text of its cells, row by row."""

    title: str
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]

    def first(self, lines: int) -> Grid:
        """The first lines, with a title that says so."""
        more = f"; the first {lines} of {len(self.cells)}" if len(self.cells) > lines else ""
        return Grid(self.title + more, self.header, self.cells[:lines])


def draw(console: Console, grids: Iterable[Grid]) -> None:
    """Prints tables to a console. Tables without rows are left out."""
    for grid in grids:
        if not grid.cells:
            continue
        wraps = console.is_terminal  # a terminal would cut inside a word; a file keeps a title in one line
        console.print(f"[bold]{escape(for_line(grid.title))}[/]", highlight=False, soft_wrap=not wraps)
        table = Table(header_style="bold")
        for name in grid.header:
            table.add_column(escape(for_terminal(name)), overflow="fold")
        for cells in grid.cells:
            table.add_row(*(escape(for_terminal(cell)) for cell in cells))
        console.print(table)


def csv_text(grids: Iterable[Grid]) -> str:
    """The tables as CSV: each below a line with its title, and an empty line between two. Tables without rows are left out."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for i, grid in enumerate(grid for grid in grids if grid.cells):
        file.write("\n" * (i > 0) + f"# {for_line(grid.title)}\n")
        writer.writerows([list(map(for_csv, line)) for line in (grid.header, *grid.cells)])
    return file.getvalue()


def json_text(grids: Iterable[Grid]) -> str:
    """The tables as a JSON list, each with its title, the names of its columns and its rows. Tables without rows are left out."""
    found = [{"title": grid.title, "columns": grid.header, "rows": grid.cells} for grid in grids if grid.cells]
    return for_json(json.dumps(found, ensure_ascii=False, indent=1))


def svg(grids: Iterable[Grid], title: str) -> str:
    """The same tables as an SVG picture of a terminal, which loads nothing over the network."""
    screen = Console(record=True, width=SVG_COLUMNS, file=io.StringIO(), force_terminal=True)
    draw(screen, grids)
    picture = screen.export_svg(title=for_line(title))
    return re.sub(r"@font-face\s*{[^}]*}", "", picture)  # rich asks a CDN for its font


def markdown(grids: Sequence[Grid], bar: str = " | ") -> str:
    """The same tables as Markdown, with `bar` between cells. Tables without rows are left out."""
    return "\n\n".join(_markdown(grid, bar) for grid in grids if grid.cells)


def _markdown(grid: Grid, bar: str) -> str:
    lines = [grid.header, tuple("---" for _ in grid.header), *grid.cells]
    body = "\n".join((bar + bar.join(map(for_markdown_cell, line)) + bar).strip() for line in lines)
    return f"**{for_markdown(grid.title)}**\n\n{body}"

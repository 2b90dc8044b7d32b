"""Tables as text for a terminal, as Markdown and as an SVG picture, whatever is in them."""

from __future__ import annotations

import csv
import io
import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.untrusted.text import for_csv, for_json, for_line, for_markdown, for_markdown_cell, for_terminal

SVG_COLUMNS = 150
FLAG = re.compile(r"(?<!\S)--?[a-z]\S*")  # that a person types: it stays in one line
NARROW = 8  # letters of a column


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
        cells = [tuple(map(for_terminal, line)) for line in grid.cells]
        flags = [
            max((len(word) for cell in column for word in FLAG.findall(cell)), default=0) for column in zip(*cells, strict=True)
        ]
        borders = 3 * len(flags) + 1
        if any(flags) and sum(max(width, NARROW) for width in flags) + borders > console.width:
            _draw_lines(console, grid.header, cells)
            continue
        whole = sum(max(map(len, column)) for column in zip(grid.header, *cells, strict=True)) + borders <= console.width
        table = Table(header_style="bold")
        longest = (max(len(word) for cell in column for word in ("", *cell.split())) for column in zip(*cells, strict=True))
        words = [max(flag, min(2 * NARROW, word)) for flag, word in zip(flags, longest, strict=True)]
        least = words if not whole and sum(words) + borders <= console.width else [None] * len(words)
        for name, flag, word in zip(grid.header, flags, least, strict=True):  # rich would cut a flag, or a word beside a long cell
            fixed = None if whole or not flag else flag
            table.add_column(escape(for_terminal(name)), overflow="fold", width=fixed, min_width=word)
        for line in cells:
            table.add_row(*map(escape, line))
        console.print(table)


def _draw_lines(console: Console, header: Sequence[str], cells: Iterable[Sequence[str]]) -> None:
    """A table that is too wide to leave its flags whole: a line for each cell, and a free line between two rows."""
    for number, line in enumerate(cells):
        told = [f"{name}: {cell}" for name, cell in zip(header, line, strict=True) if cell]
        wrapped = (
            textwrap.fill(one, console.width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
            for one in told
        )
        console.print("\n" * (number > 0) + "\n".join(map(escape, wrapped)), highlight=False, soft_wrap=True)


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
    found = []
    for grid in (one for one in grids if one.cells):
        lines = [grid.header, tuple("---" for _ in grid.header), *grid.cells]
        body = "\n".join((bar + bar.join(map(for_markdown_cell, line)) + bar).strip() for line in lines)
        found.append(f"**{for_markdown(grid.title)}**\n\n{body}")
    return "\n\n".join(found)

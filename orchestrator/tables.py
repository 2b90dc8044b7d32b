"""Tables as text for a terminal, as Markdown and as an SVG picture, whatever is in them."""

from __future__ import annotations

import csv
import io
import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.untrusted.text import for_csv, for_json, for_line, for_markdown, for_markdown_cell, for_terminal

SVG_COLUMNS = 150
FLAG = re.compile(r"(?<!\S)--?[a-z]\S*")  # that a person types: it stays in one line
NARROW = 8  # letters of a column
GAP = 2  # letters between two columns of a table without borders


@dataclass(frozen=True)
class Grid:
    """A table: a title, the names of its columns, and the text of its cells, row by row. `whole`: a screen shows all or none."""

    title: str
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    whole: bool = False

    def first(self, lines: int) -> Grid:
        """The first lines, with a title that says so."""
        more = f"; the first {lines} of {len(self.cells)}" if len(self.cells) > lines else ""
        return replace(self, title=self.title + more, cells=self.cells[:lines])

    def only(self, kept: Sequence[int]) -> Grid:
        """The columns at these places."""
        header, *cells = (tuple(line[place] for place in kept) for line in (self.header, *self.cells))
        return replace(self, header=header, cells=tuple(cells))

    def named(self, names: Sequence[str]) -> Grid:
        """The columns of these names, if it has all of them; else as it is."""
        return self.only([*map(self.header.index, names)]) if names and set(names) <= set(self.header) else self


def draw(console: Console, grids: Iterable[Grid]) -> None:
    """Prints tables to a console. Tables without rows are left out."""
    for grid in grids:
        if not grid.cells:
            continue
        wraps = console.is_terminal  # a terminal would cut inside a word; a file keeps a title in one line
        console.print(f"[bold]{escape(for_line(grid.title))}[/]", highlight=False, soft_wrap=not wraps)
        _draw_body(console, grid)


def lines_of(grid: Grid, width: int) -> list[str]:
    """The header and the rows of a table without borders, at most `width` columns wide."""
    file = io.StringIO()
    _draw_body(Console(file=file, width=width, color_system=None), grid, bare=True)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def fitted(grid: Grid, width: int) -> Grid:
    """The first columns of a table, as many as fit without a cut in a word; at least one."""
    sums = accumulate(word + GAP for word in _least_widths(grid.header, grid.cells, width)[1])
    return grid.only(range(max(1, sum(least <= width for least in sums))))


def _least_widths(header: Sequence[str], cells: Iterable[Sequence[str]], longest: int) -> tuple[list[int], list[int]]:
    """Of each column the longest flag, and what must fit: it, and words of up to `longest` letters."""
    columns = [[word for cell in column for word in ("", *cell.split())] for column in zip(header, *cells, strict=True)]
    flags = [max(len(word) * bool(FLAG.fullmatch(word)) for word in column) for column in columns]
    return flags, [max(flag, min(longest, max(map(len, column)))) for flag, column in zip(flags, columns, strict=True)]


def _draw_body(console: Console, grid: Grid, *, bare: bool = False) -> None:
    cells = [tuple(map(for_terminal, line)) for line in grid.cells]
    flags, words = _least_widths(grid.header, cells, console.width if bare else 2 * NARROW)
    borders = GAP * len(flags) if bare else 3 * len(flags) + 1
    if (bare or any(flags)) and sum(words if bare else (max(width, NARROW) for width in flags)) + borders > console.width:
        _draw_lines(console, grid.header, cells)
        return
    longest = [max(map(len, column)) for column in zip(grid.header, *cells, strict=True)]
    widths: Sequence[int | None] = [flag or None for flag in flags]  # rich would cut a flag, or a word beside a long cell
    if sum(words) + borders <= console.width:
        widths = _shared(words, longest, console.width - borders)
    table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, 1)) if bare else Table(header_style="bold")
    for name, width in zip(grid.header, widths, strict=True):
        table.add_column(escape(for_terminal(name)), overflow="fold", width=width)
    for line in cells:
        table.add_row(*map(escape, line))
    console.print(table)


def _shared(least: Sequence[int], most: Sequence[int], width: int) -> list[int]:
    """The widths of columns, at least and at most so many letters; what is left of all goes first to those that need little."""
    found, left = list(least), width - sum(least)
    for number, place in enumerate(sorted(range(len(least)), key=lambda place: most[place] - least[place])):
        given = min(most[place] - least[place], left // (len(least) - number))
        found[place], left = found[place] + given, left - given
    return found


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

"""Tables as text for a terminal, as Markdown and as an SVG picture, whatever is in them."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.untrusted.text import for_csv, for_json, for_line, for_markdown, for_markdown_cell, for_terminal

SVG_COLUMNS = 150
FLAG = re.compile(r"(?<!\S)--?[a-z]\S*")  # that a person types: it stays in one line
MEASURE = re.compile(r"(^|[ (])[-+~≈]*[\d,]+(\.\d+(?![\d.])|%|×)")  # a cell with 1.3 or -2%, not with 8,192 or 0.5.12
COUNT, EMPTY = re.compile(r"[\d,]*|–"), ("", "–")
DOT = " · "  # between the words of a title
NARROW = 8  # letters of a column
GAP = 2  # letters between two columns of a table without borders


@dataclass(frozen=True)
class Grid:
    """A table: a title, the names of its columns, and the text of its cells, row by row.

    `whole`: a screen shows all or none. `keys`: so many first columns say what a row is about.
    """

    title: str
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    whole: bool = False
    keys: int = 1

    def first(self, lines: int) -> Grid:
        """The first lines, with a title that says so."""
        more = f"; the first {lines} of {len(self.cells)}" if len(self.cells) > lines else ""
        return replace(self, title=self.title + more, cells=self.cells[:lines])

    def only(self, kept: Sequence[int]) -> Grid:
        """The columns at these places."""
        header, *cells = (tuple(line[place] for place in kept) for line in (self.header, *self.cells))
        return replace(self, header=header, cells=tuple(cells), keys=max(1, sum(place < self.keys for place in kept)))

    def named(self, names: Sequence[str]) -> Grid:
        """The columns of these names, if it has all of them; else as it is."""
        return self.only([*map(self.header.index, names)]) if names and set(names) <= set(self.header) else self


def common_once(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """The words of titles that all have in common, if these have several, and each title without them."""
    words = [name.split(DOT) for name in names]
    common = [word for word in words[0] if len(words[0]) > 1 and all(word in one for one in words)]
    return common, [DOT.join(word for word in one if word not in common) for one in words]


def draw(console: Console, grids: Iterable[Grid]) -> None:
    """Prints tables to a console. Tables without rows are left out."""
    for grid in grids:
        if grid.cells:
            # A terminal would cut inside a word; a file keeps a title in one line, unless its width is asked for.
            whole = not console.is_terminal and "COLUMNS" not in os.environ
            console.print(f"[bold]{escape(for_line(grid.title))}[/]", highlight=False, soft_wrap=whole)
            _draw_body(console, grid)


def lines_of(grid: Grid, width: int) -> list[str]:
    """The header and the rows of a table without borders, at most `width` columns wide."""
    file = io.StringIO()
    _draw_body(Console(file=file, width=width, color_system=None), grid, bare=True)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def fitted(grid: Grid, width: int, rows: int | None = None) -> Grid:
    """The columns that fit without a cut in a word of the first rows, weightiest first, at least one. The title names others."""
    least, kept = _least_widths(grid.header, grid.cells[:rows], width)[1], list[int]()
    for place in _by_weight(grid):
        if not kept or sum(least[one] + GAP for one in (*kept, place)) <= width:
            kept.append(place)
    hidden = ", ".join(name for place, name in enumerate(grid.header) if place not in kept)
    return replace(grid, title=f"{grid.title}{f'; columns with full=true: {hidden}' * bool(hidden)}").only(sorted(kept))


def _by_weight(grid: Grid) -> list[int]:
    """Places of columns: `grid.keys`, keys and measures from the left, what keys determine (counts first), what most rows lack."""
    columns, keys, weights = [*zip(*grid.cells, strict=True)], list[tuple[str, ...]](), dict[int, tuple[object, ...]]()
    for place, column in sorted(enumerate(columns), key=lambda of: len({*of[1]}) == len(of[1]) or all(map(COUNT.fullmatch, of[1]))):
        filled = sum(cell not in EMPTY for cell in column)
        measured = 2 * sum(bool(MEASURE.search(cell)) for cell in column) > filled
        told = not measured and len({*zip(*keys, strict=True)}) == len({*zip(*keys, column, strict=True)})
        keys += [column] * (not measured and not told)
        weights[place] = (place >= grid.keys, 2 * filled < len(column), told, -filled, place)
    return sorted(weights, key=weights.__getitem__)


def _least_widths(header: Sequence[str], cells: Iterable[Sequence[str]], longest: int) -> tuple[list[int], list[int]]:
    """Of each column the longest flag, and what must fit: it, and words of up to `longest` letters."""
    columns = [[word for cell in column for word in ("", *cell.split())] for column in zip(header, *cells, strict=True)]
    flags = [max(len(word) * bool(FLAG.fullmatch(word)) for word in column) for column in columns]
    return flags, [max(flag, min(longest, max(map(len, column)))) for flag, column in zip(flags, columns, strict=True)]


def _draw_body(console: Console, grid: Grid, *, bare: bool = False) -> None:
    cells = [tuple(map(for_terminal, line)) for line in grid.cells]
    flags, words = _least_widths(grid.header, cells, console.width if bare else 2 * NARROW)
    borders = GAP * len(flags) if bare else 3 * len(flags) + 1
    if sum(words if bare else _least_widths(grid.header, cells, NARROW)[1]) + borders > console.width:
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
    """A table that is too wide to leave flags and short words whole: a line for each cell, and a free line between two rows."""
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

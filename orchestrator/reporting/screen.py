"""Tables on a screen: as much of each as there is room for, without a cut in a word. Knows no dataset."""

from __future__ import annotations

import math
import textwrap
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from orchestrator.tables import DOT, Grid, common_once, fitted, lines_of
from orchestrator.untrusted.text import for_line

LINES, WIDTH, MAX_WIDTH = 40, 80, 120  # of a screen
OF_SERVER = 8  # flags of a server: two caches, decode and drafts, two engines; not cut if each cache fits a screen
OF_TWO, FEW, LACKS = 60, 5, 3  # lines of a comparison, of each of its tables, and values in its line of what a side lacks
LAST = 3  # lines with what is not shown of a plan
TO_RUN = "to run it on this machine, leave out mode=plan and device"
BEFORE_WARNING = 0.6  # of the room, for a table before a warning
GAP = "  "  # between two maps
NOTHING = ("", "–", "0")  # in cells


def comparison(
    console: Console, said: str, grids: Sequence[Grid], notes: Sequence[str], commands: Sequence[str], *, most: int = FEW
) -> None:
    """Prints what a comparison says, tables as far as `OF_TWO` lines of 80 columns have room, sentences, and commands to paste."""
    width = width_of(console)
    told = wrapped(said, width, "bold")
    end = [*(line for note in notes for line in wrapped(note, width)), *(Text(for_line(one)) for one in commands)]
    room = OF_TWO - len(told) - sum(max(1, math.ceil(len(line) / width)) for line in end)
    print_lines(console, [*told, *tables_in(grids, room, width, most)[0], *end])


def plan(console: Console, about: str, grids: Sequence[Grid], why_nothing: str) -> None:
    """Prints the tables of `plan_tables`: how many points run, where, and what they cost; others as far as `LINES` have room."""
    width = width_of(console)
    heads, counts, *others, cost = grids
    told = f"{about}; {counts.title.removeprefix('plan: ')}: {', '.join(f'{points} {verdict}' for verdict, points in counts.cells)}"
    costs = [line for what, value in cost.cells for line in wrapped(f"{what}: {value}", width)]
    begin, end = wrapped(told, width, "bold"), [*([Text(for_line(why_nothing), "bold")] if why_nothing else []), *costs]
    tables = [grid for grid in (heads, *others) if grid.cells]
    shown, left = tables_in(tables, LINES - len(begin) - len(end) - LAST, width)
    hidden = [f"{count} lines of {grid.title.partition(': ')[0]}" for grid, count in zip(tables, left, strict=True) if count]
    more = f"not shown, full=true: {', '.join(hidden)}; " * bool(hidden)
    print_lines(console, [*begin, *shown, *end, *wrapped(f"{more}{TO_RUN}", width)])


def columns(console: Console, grids: Sequence[Grid], first: Sequence[str], *, whole: bool) -> None:
    """Prints the tables of question=columns, those `first` first: in a line each, a star if it has no value; or `whole`."""
    lines, width = [line for grid in grids for line in grid.cells], width_of(console)
    for name, kind, unit, has, *there, meaning in sorted(lines, key=lambda line: [*first, line[0]].index(line[0])):
        short = f"{name}{'*' * any(there)}: {meaning.partition('. ')[0]}".rstrip(".")
        told = f"{name} ({', '.join(filter(None, (kind, unit, has, *there)))}): {meaning}"
        told = told if whole else textwrap.shorten(short, width, placeholder=" ...", break_on_hyphens=False)
        print_lines(console, wrapped(told, width))
    star = "*: not in this dataset, or null; " * any(any(line[4:-1]) for line in lines)
    more = f"{star}whole, with units: columns=[median_us, check_*], or 'where={{section: time}}' of"
    sections = ", ".join(grid.title.partition(":")[0] for grid in grids)
    print_lines(console, [] if whole else wrapped(f"{more} {sections}", width, "bold"))


def tables_in(grids: Sequence[Grid], room: int, width: int, most: int = LINES) -> tuple[list[Text], list[int]]:
    """As much of tables as fits into so many lines, at most `most` rows of each, and how many rows of each are left."""
    tables = [once if (once := _common_once(grid)).whole else fitted(once, width, most) for grid in grids if grid.cells]
    found, left = list[Text](), [len(grid.cells) for grid in tables]
    of_one = sum(len(grid.cells) for grid in tables if grid.whole) <= OF_SERVER
    for number, grid in enumerate(tables):
        warned = any(one.title.startswith("warning") for one in tables[number + 1 :])
        kept = LINES if grid.whole and (of_one or not number) else int(BEFORE_WARNING * room) if warned else room
        lines, count = _fitting(grid, kept, width, most)
        found, room = [*found, *lines], room - len(lines)
        left[number] -= count
    return found, left


def _fitting(grid: Grid, room: int, width: int, most: int) -> tuple[list[Text], int]:
    """A table's title, header and as many of its first rows, at most `most`, as `room` lines have room for, and how many."""

    def drawn(rows: int) -> list[Text]:
        part = grid.first(rows)
        return [*wrapped(part.title, width, "bold"), *map(Text, lines_of(part, width))]

    if grid.whole:
        return (whole, len(grid.cells)) if len(whole := drawn(len(grid.cells))) <= room else ([], 0)
    counts = range(1, min(len(grid.cells), room - 1, most) + 1)  # a header has a line, and each row
    count = bisect_right(counts, room, key=lambda rows: len(drawn(rows)))
    return (drawn(count), count) if count else ([], 0)


def _common_once(grid: Grid) -> Grid:
    """A table without what all of its rows have in common: words of a deployment's name, and whole columns, are in its title."""
    common, first = common_once(line[0] for line in grid.cells)
    cells = [(name, *line[1:]) for name, line in zip(first, grid.cells, strict=True)]
    values = [sorted(set(column)) for column in zip(*cells, strict=True)]
    kept = [place for place, of in enumerate(values) if len(of) > 1]
    if len(cells) == 1 or not kept:
        kept = [place for place, of in enumerate(values) if of != [""]]
    told = [f"{grid.header[place]} {of[0]}" for place, of in enumerate(values) if place not in kept and of[0] not in NOTHING]
    return replace(grid, title=DOT.join((grid.title, *common, *told)), cells=tuple(cells)).only(kept)


def width_of(console: Console) -> int:
    return min(console.width, MAX_WIDTH) if console.is_terminal else WIDTH


def print_lines(console: Console, lines: Sequence[Text]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def wrapped(words: str, width: int, style: str = "") -> list[Text]:
    wrapper = textwrap.TextWrapper(width, subsequent_indent=GAP, break_on_hyphens=False, break_long_words=False)  # paths are pasted
    return [Text(line, style) for line in wrapper.wrap(for_line(words))]

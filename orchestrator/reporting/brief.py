"""mode=report on one screen: the decision, a map of the fastest backends or tables of a question, their origin, what is next."""

from __future__ import annotations

import math
import string
import textwrap
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.deployments import HERE, PLACE, Part, briefs, is_usual, no_room_at, parts, server_name
from orchestrator.analysis.questions.exactness import named
from orchestrator.analysis.questions.one_backend import TITLE
from orchestrator.analysis.questions.tables import group_by, spread, varying_keys
from orchestrator.config.model import CUSTOM
from orchestrator.grouped import grouped
from orchestrator.reporting.dashboard.data import facts
from orchestrator.storage.row import BAD, STATUSES
from orchestrator.tables import Grid, fitted, lines_of
from orchestrator.untrusted.text import for_line

LINES, WIDTH, MAX_WIDTH = 40, 80, 120  # of a screen
OF_SERVER = 8  # flags of a server: two caches, decode and drafts, two engines; not cut if they fit a screen
OF_TWO, FEW = 60, 5  # lines of a comparison, and of each of its tables
DECISIONS = 5  # lines of what to type
MAX_BATCHES = 8  # of a map
CELLS, LABEL = (6, 5), 10  # letters of a cell of the map, narrower if more fit then, and before its first one
GAP = "  "  # between two maps
SAID = 5  # lines of what a question says in a sentence; the first table says it too if it needs more
BEFORE_WARNING = 0.6  # of the room, for a table before a warning
DOT = " · "  # between the words of a title
NOTHING = ("", "–", "0")  # in cells
COLOURS = ("blue", "yellow", "red", "green", "magenta", "cyan", "bright_blue", "bright_yellow", "bright_red", "bright_green")
# The letter of a backend is the same in every map; in this order they take the colours.
OF_LETTERS = (
    "f flash_attn_3, v flash_attn_3_vllm, s flash_attn_3_sglang, a fa2, t fa2_tc, i fa3 (FlashInfer), x trtllm-native(xqa), "
    "h trtllm-native(xqa_hopper_fp8), c cudnn, b flash_attn_4, m flash_mla, l flash_mla_vllm, e flash_mla_vllm(flash_mla_fp8), "
    "r triton_mla, y vllm_triton(triton_unified_2d), z sglang_triton(triton_decode_grouped), g gdn_decode, d gdn_chunk, "
    "w gdn_chunk_whole, u auto(fa2_tc), q auto(fa3)"
)
LETTERS = {of[2:]: of[0] for of in OF_LETTERS.split(", ")}
SIGNS, BLANK, NO_CELL = "capital: ahead by more than noise", "·", "· wrong or not measured"
WINNERS = """SELECT problems.*, won.backend, won.kernel, won.runner_up, won.above_noise
    FROM ranked_workloads AS won JOIN (SELECT row, problem FROM points) USING (row) JOIN problems USING (problem)
    WHERE getvariable('drafts') IS NULL OR s_qo = getvariable('drafts') + 1"""


def show(console: Console, data: Dataset, path: str, questions: Sequence[str], notes: Sequence[str] = ()) -> None:
    """Prints a map, at most `LINES` lines of 80 columns. `questions` are those that the dataset answers, `notes` are sentences."""
    width = _width(console)
    end = [*_wrapped(_source(data), width), *_wrapped(_next(path, questions), width)]
    found = [*_head(data, width), *(line for note in notes for line in _wrapped(note, width)), *_decisions(data, width)]
    cells, won, legend = list[Text](), list[Record](), list[Text]()
    for head, lines, of in _maps(data, width):
        more = _legend([*cells, *lines], [*won, *of], width)
        if len(found) + len(head) + len(lines) + len(more) + len(end) > LINES:
            break
        cells, won, legend = [*cells, *lines], [*won, *of], more
        found += [*head, *lines]
    _print(console, [*found, *legend, *end])


def answer(console: Console, data: Dataset, path: str, said: str, grids: Sequence[Grid]) -> None:
    """Prints what a question says of a dataset, and as much of its tables as `LINES` lines of 80 columns have room for."""
    width = _width(console)
    told, origin = _wrapped(said, width, "bold"), _wrapped(_source(data), width)
    found = [*_head(data, width), *(told if len(told) <= SAID else [])]
    most = _wrapped(_rest(path, [len(grid.cells) for grid in grids]), width)
    named_first = sorted(grids, key=lambda grid: f"{DOT}{CUSTOM}{DOT}" in grid.title)
    shown, left = _tables(named_first, LINES - len(found) - len(origin) - len(most), width)
    _print(console, [*found, *shown, *origin, *_wrapped(_rest(path, left), width)])


def comparison(console: Console, said: str, grids: Sequence[Grid], notes: Sequence[str], commands: Sequence[str]) -> None:
    """Prints what a comparison says, tables as far as `OF_TWO` lines of 80 columns have room, sentences, and commands to paste."""
    width = _width(console)
    told = _wrapped(said, width, "bold")
    end = [*(line for note in notes for line in _wrapped(note, width)), *(Text(for_line(one)) for one in commands)]
    room = OF_TWO - len(told) - sum(max(1, math.ceil(len(line) / width)) for line in end)
    _print(console, [*told, *_tables(grids, room, width, FEW)[0], *end])


def _tables(grids: Sequence[Grid], room: int, width: int, most: int = LINES) -> tuple[list[Text], list[int]]:
    """As much of tables as fits into so many lines, at most `most` rows of each, and how many rows of each are left."""
    tables = [fitted(_common_once(grid), width) for grid in grids if grid.cells]
    found, left = list[Text](), [len(grid.cells) for grid in tables]
    for number, grid in enumerate(tables):
        warned = any(one.title.startswith("warning") for one in tables[number + 1 :])
        lines, count = _fitting(grid, int(BEFORE_WARNING * room) if warned else room, width, most)
        found, room = [*found, *lines], room - len(lines)
        left[number] -= count
    return found, left


def columns(console: Console, grids: Sequence[Grid]) -> None:
    """Prints the names of columns, by section, from the tables of question=columns; a star stands behind those without a value."""
    marked = [[f"{name}{'*' * any(there)}" for name, _type, _unit, _has, *there, _meaning in grid.cells] for grid in grids]
    told = [" ".join([f"{grid.title.partition(':')[0]}:", *names]) for grid, names in zip(grids, marked, strict=True)]
    star = "*: not in this dataset, or null; " * any(name.endswith("*") for names in marked for name in names)
    ends = f"{star}their meaning: columns=[median_us, check_*], or full=true"
    _print(console, [line for words in (*told, ends) for line in _wrapped(words, _width(console))])


def _fitting(grid: Grid, room: int, width: int, most: int) -> tuple[list[Text], int]:
    """A table's title, header and as many of its first rows, at most `most`, as `room` lines have room for, and how many."""

    def drawn(rows: int) -> list[Text]:
        part = grid.first(rows)
        return [*_wrapped(part.title, width, "bold"), *map(Text, lines_of(part, width))]

    if grid.title.startswith(TITLE) and len(grid.cells) <= OF_SERVER and len(whole := drawn(len(grid.cells))) <= LINES:
        return whole, len(grid.cells)
    counts = range(1, min(len(grid.cells), room - 1, most) + 1)  # a header has a line, and each row
    count = bisect_right(counts, room, key=lambda rows: len(drawn(rows)))
    return (drawn(count), count) if count else ([], 0)


def _common_once(grid: Grid) -> Grid:
    """A table without what all of its rows have in common: words of a deployment's name, and whole columns, are in its title."""
    names = [line[0].split(DOT) for line in grid.cells]
    common = [word for word in names[0] if len(names[0]) > 1 and all(word in name for name in names)]
    first = (DOT.join(word for word in name if word not in common) for name in names)
    cells = [(name, *line[1:]) for name, line in zip(first, grid.cells, strict=True)]
    values = [sorted(set(column)) for column in zip(*cells, strict=True)]
    kept = [place for place, of in enumerate(values) if len(of) > 1]
    if len(cells) == 1 or not kept:
        kept = [place for place, of in enumerate(values) if of != [""]]
    told = [f"{grid.header[place]} {of[0]}" for place, of in enumerate(values) if place not in kept and of[0] not in NOTHING]
    return Grid(DOT.join((grid.title, *common, *told)), grid.header, tuple(cells)).only(kept)


def _rest(path: str, left: Sequence[int]) -> str:
    """What is not shown of tables with so many more rows, and how to see it."""
    tables = sum(rows > 0 for rows in left)
    hidden = f"not shown: {sum(left):,} lines of {tables} table{'s' * (tables > 1)}: full=true, or fewer with where={{...}}; "
    return f"{hidden * (tables > 0)}to see it: mode=dashboard results.path={path}"


def _width(console: Console) -> int:
    return min(console.width, MAX_WIDTH) if console.is_terminal else WIDTH


def _print(console: Console, lines: Sequence[Text]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def _wrapped(words: str, width: int, style: str = "") -> list[Text]:
    return [Text(line, style) for line in textwrap.wrap(for_line(words), width, subsequent_indent=GAP, break_on_hyphens=False)]


def _head(data: Dataset, width: int) -> list[Text]:
    """What was measured, and how many points have which status; wrong and failed ones in red."""
    known, counts = facts(data), dict(data.execute("SELECT status, count(*) FROM current GROUP BY status"))
    told = ", ".join(f"{counts[status]:,} {status}" for status in STATUSES if status in counts)
    found = _wrapped(" · ".join((*(", ".join(known[kind]) or f"no {kind}" for kind in ("model", "GPU")), told)), width, "bold")
    if bad := [status for status in BAD if status in counts]:
        large = data.scalar(f"SELECT count(*) FROM points JOIN workloads USING (problem) WHERE too_big AND status IN {(*bad, '')}")
        where = f"; {large:,} of these at KV caches larger than the GPU, which no answer counts" * bool(large)
        found += _wrapped(f"{' and '.join(bad)}: question=odd says why{where}", width, "red")
    too_small = dict.fromkeys(filter(None, (no_room_at(data, part.place) for part in parts(data))))
    return [*found, *(line for words in too_small for line in _wrapped(words, width, "red"))]


def _decisions(data: Dataset, width: int) -> list[Text]:
    """The best flag of each engine for the first deployments and phases."""
    every = sorted(parts(data), key=lambda part: (not is_usual(part.place), _of(part, "model") == CUSTOM))
    groups = grouped(((part.place, part.what), part) for part in every)
    names = [name for name in ("device_name", "model", "tp") if len({_of(part, name) for part in every}) > 1]
    typed = "what to type by a release's rules (default: none)" if any(part.who != HERE for part in every) else "backends, no flag"
    words = f"{typed}; mean over fastest (at worst)"
    found = [Text(words)] if groups else []
    for of in list(groups.values())[:DECISIONS]:
        place = dict(zip(PLACE, of[0].place, strict=True))
        server = [server_name(place)] * bool({"model", "tp"} & {*names}) + [place["device_name"]] * ("device_name" in names)
        about = ", ".join((*server, f"{place['kv_dtype']} cache", of[0].what))
        found += _wrapped(f"{GAP}{about}: {'; '.join(briefs(of, at_worst=True))}", width)
    return [*found, *[Text(f"{GAP}{len(groups) - DECISIONS} more: question=one_backend")] * (len(groups) > DECISIONS)]


def _of(part: Part, name: str) -> Any:
    return part.place[PLACE.index(name)]


def _maps(data: Dataset, width: int) -> Iterator[tuple[list[Text], list[Text], list[Record]]]:
    """A map for each deployment, with its head and records: the fastest of each workload, of the kind that has most of them."""
    won = data.records(WINNERS)
    letters = _letters(won)
    order = sorted(group_by(won, PLACE).items(), key=lambda of: (not is_usual(of[0]), of[0][PLACE.index("model")] == CUSTOM))
    for place, records in order:
        extra = varying_keys(records, (*PLACE, "routine", "q_dtype", "out_dtype", "batch_size", "s_qo", "s_kv"))
        values, of_one = max(group_by(records, extra).items(), key=lambda of: len(of[1]))
        here = dict(zip(PLACE, place, strict=True))
        others = [f"{key} {value}" for key, value in zip(extra, values, strict=True) if value is not None]
        about = ", ".join((server_name(here), str(here["device_name"]), f"{here['kv_dtype']} cache", *others))
        drawn, lines = _blocks(of_one, letters, width)
        more = f"; {drawn} of {len(records)} workloads, all with question=best" if drawn < len(records) else ""
        compared = any(one["runner_up"] for one in of_one)
        head = "fastest backend" if compared else "the only backend with a right answer (no comparison)"
        yield _wrapped(f"{head}, {about}{more}", width, "bold"), lines, of_one


def _letters(records: Sequence[Record]) -> dict[str, tuple[str, str]]:
    """The letter of each backend, the same in every report, and its colour; one that `LETTERS` lacks takes the next free letter."""
    names = {named(one["backend"], one["kernel"]) for one in records}
    free = iter(sorted({*string.ascii_lowercase} - {*LETTERS.values()}))
    order = [*LETTERS, *sorted(names - LETTERS.keys())]
    letters = {name: LETTERS.get(name) or next(free, "?") for name in order}
    return {name: (letters[name], COLOURS[number % len(COLOURS)]) for number, name in enumerate(order) if name in names}


def _blocks(records: Sequence[Record], letters: dict[str, tuple[str, str]], width: int) -> tuple[int, list[Text]]:
    """The map and its number of workloads: batches down, contexts across by length, in two blocks, evenly chosen if too many."""
    cells = {(one["batch_size"], one["s_qo"], one["s_kv"]): one for one in records}
    across = [*dict.fromkeys((s_qo, s_kv) for _, s_qo, s_kv in sorted(cells, key=lambda of: of[1:]))]
    wide = next((wide for wide in CELLS if LABEL + len(across) * wide <= width), CELLS[0])
    room = max(1, (width - LABEL) // wide)
    most = (across, 2 * room), (sorted({batch for batch, *_ in cells}), MAX_BATCHES)
    across, batches = ([of[at] for at in spread(len(of), count)] for of, count in most)
    room = math.ceil(len(across) / math.ceil(len(across) / room))  # blocks of one length
    found = []
    for start in range(0, len(across), room):
        columns = across[start : start + room]
        heads = (f"q {_short(s_qo)}" if n == 0 or columns[n - 1][0] != s_qo else "" for n, (s_qo, _) in enumerate(columns))
        found.append(Text("".join([" " * LABEL, *(f"{words:>{wide}}" for words in heads)])))
        found.append(Text("".join(["batch kv".ljust(LABEL), *(f"{_short(s_kv):>{wide}}" for _, s_kv in columns)])))
        for batch in batches:
            row = (_cell(cells.get((batch, *column)), letters, wide) for column in columns)
            found.append(Text.assemble(f"{batch:>5,}".ljust(LABEL), *row))
    return sum((batch, *column) in cells for batch in batches for column in across), found


def _cell(record: Record | None, letters: dict[str, tuple[str, str]], wide: int) -> Text:
    if record is None:
        return Text(f"{BLANK:>{wide}}")
    letter, colour = letters[named(record["backend"], record["kernel"])]
    return Text(f"{letter.upper() if record['above_noise'] else letter:>{wide}}", colour)


def _legend(maps: Sequence[Text], records: Sequence[Record], width: int) -> list[Text]:
    """What the letters and signs of all maps stand for."""
    words = [(f"{letter} {name}"[:width], colour) for name, (letter, colour) in _letters(records).items()]
    signs = [*[SIGNS] * any(one["runner_up"] for one in records), *[NO_CELL] * any(BLANK in line.plain for line in maps)]
    found = [Text()]
    for text, colour in (*words, *((sign, "") for sign in signs)):
        if found[-1] and len(found[-1]) + len(GAP) + len(text) > width:
            found.append(Text())
        found[-1] += Text(f"{GAP if found[-1] else ''}{text}", colour)
    return found


def _short(tokens: int) -> str:
    """`8k` of 8,192, `50k` of 50,000."""
    if tokens >= 1024 and tokens % 1024 == 0:
        return f"{tokens // 1024}k"
    return f"{tokens // 1000}k" if tokens >= 10_000 else f"{tokens}"


def _source(data: Dataset) -> str:
    known = facts(data)
    told = " ".join((*known["measured"], *[f"with {', '.join(known['with'])}"] * bool(known["with"])))
    return f"measured {told}" if told else ""


def _next(path: str, questions: Sequence[str]) -> str:
    shown = f"question={' | '.join(questions)}; " if questions else ""
    return f"at length: {shown}full=true for every table; where={{...}}; to see it: mode=dashboard results.path={path}"

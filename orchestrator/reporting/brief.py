"""mode=report on one screen: the decision, a map of the fastest backends or tables of a question, their origin, what is next."""

from __future__ import annotations

import math
import shlex
import string
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.cache_size import NO_ROOM, no_room
from orchestrator.analysis.questions.deployments import HERE, PLACE, Part, briefs, is_usual, parts, server_name
from orchestrator.analysis.questions.exactness import named
from orchestrator.analysis.questions.one_backend import HEADER, TITLE
from orchestrator.analysis.questions.tables import group_by, spread, varying_keys
from orchestrator.analysis.sources import few
from orchestrator.analysis.sql import query
from orchestrator.config.model import CUSTOM
from orchestrator.grouped import grouped
from orchestrator.reporting import servers
from orchestrator.reporting.dashboard.data import facts
from orchestrator.reporting.screen import FEW, GAP, LINES, print_lines, tables_in, width_of, wrapped
from orchestrator.storage.row import BAD, STATUSES
from orchestrator.tables import DOT, Grid

DECISIONS = 5  # lines of what to type
MAX_BATCHES = 8  # of a map
CELLS, LABEL = (6, 5), 10  # letters of a cell of the map, narrower if more fit then, and before its first one
SAID = 5  # lines of what a question says in a sentence; the first table says it too if it needs more
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


def show(
    console: Console, data: Dataset, path: str, questions: Sequence[str], notes: Sequence[str] = (), *, again: str = ""
) -> None:
    """Prints a map, at most `LINES` lines of 80 columns. `questions` are those that the dataset answers, `notes` are sentences.

    `again` is the command, if it found the datasets of `path` by a deployment.
    """
    width = width_of(console)
    asked = f"question={' | '.join(questions)}; " * bool(questions)
    whole = f"at length: {asked}full=true for every table; where={{...}}; {_seen(path, again)}"
    end = [*wrapped(_source(data, of_flags=True), width), *wrapped(whole, width)]
    found = [*_head(data, width), *(line for note in notes for line in wrapped(note, width))]
    found += _decisions(data, width, LINES - len(found) - len(end))
    cells, won, legend = list[Text](), list[Record](), list[Text]()
    for head, lines, of in _maps(data, width):
        more = _legend([*cells, *lines], [*won, *of], width)
        if len(found) + len(head) + len(lines) + len(more) + len(end) > LINES:
            break
        cells, won, legend = [*cells, *lines], [*won, *of], more
        found += [*head, *lines]
    print_lines(console, [*found, *legend, *end])


def answer(console: Console, data: Dataset, path: str, said: str, grids: Sequence[Grid], *, again: str = "") -> None:
    """Prints what a question says of a dataset, and as much of its tables as `LINES` lines of 80 columns have room for."""
    width = width_of(console)
    of_flags = any(grid.header[:3] == HEADER[:3] for grid in grids)
    told, origin = wrapped(said, width, "bold"), wrapped(_source(data, of_flags=of_flags), width)
    # No screen has room for the column of commands: that of the first point.
    firsts = [(grid.title, grid.cells[0][-1]) for grid in grids if grid.header[-1:] == ("again",) and grid.cells]
    origin += [line for title, one in firsts[:1] for line in wrapped(f"{title}, the first again: {one}", width)]
    found, shown_first = _head(data, width), [grid for grid in grids if grid.cells]
    decided = next((grid for grid in shown_first if grid.title.startswith(TITLE)), None)
    each = {} if decided is None else servers.words(data)
    if decided is not None:
        told = wrapped(decided.title, width)  # in place of a sentence about one server
        shown_first = [one for grid in shown_first for one in (servers.apart(grid, each) if grid is decided else [grid])]
    found += told if len(told) <= SAID else []
    shown_first.sort(key=lambda grid: f"{DOT}{CUSTOM}{DOT}" in grid.title)
    most = wrapped(_rest([len(grid.cells) for grid in grids], path, again, each.values()), width)
    shown, left = tables_in(shown_first, LINES - len(found) - len(origin) - len(most), width)
    hidden = [each[grid.title] for grid, lines in zip(shown_first, left, strict=True) if grid.whole and lines]
    print_lines(console, [*found, *shown, *origin, *wrapped(_rest(left, path, again, hidden), width)])


def _rest(left: Sequence[int], path: str, again: str, others: Iterable[str] = ()) -> str:
    """What is not shown of tables with so many more rows, and of servers with such words, and how to see it."""
    tables = sum(rows > 0 for rows in left)
    hidden = f"not shown: {sum(left):,} lines of {tables} table{'s' * (tables > 1)}: full=true, or fewer with where={{...}}; "
    more = servers.to_see(others)
    return f"{more}{'; ' * bool(more)}{hidden * (tables > 0)}{_seen(path, again)}"


def _seen(path: str, again: str) -> str:
    """How to see the datasets of a path; of more than anybody types, the command `again`, which found them."""
    if again and (many := path.count(",") + 1) > FEW:
        return f"these numbers again, of {many} datasets: {again}"
    return f"to see it: mode=dashboard {shlex.quote(f'results.path=[{path}]' if ',' in path else f'results.path={path}')}"


def _head(data: Dataset, width: int) -> list[Text]:
    """What was measured, how many points have which status, lengths if they fit the line; wrong and failed ones in red."""
    known, counts = facts(data), dict(data.execute("SELECT status, count(*) FROM current GROUP BY status"))
    told = ", ".join(f"{counts[status]:,} {status}" for status in STATUSES if status in counts)
    head = " · ".join((*(", ".join(known[kind]) or f"no {kind}" for kind in ("model", "GPU")), told))
    ends = data.single_row("SELECT min(batch_size), max(batch_size), min(s_kv), max(s_kv) FROM problems")
    batch, kv = ("–".join(dict.fromkeys(map(_short, pair))) if None not in pair else "" for pair in (ends[:2], ends[2:]))
    lengths = f" · batch {batch}, kv {kv}" * bool(batch and kv)
    found = wrapped(head + lengths * (len(head + lengths) <= width), width, "bold")
    if bad := [status for status in BAD if status in counts]:
        large = data.scalar(f"SELECT count(*) FROM points JOIN workloads USING (problem) WHERE too_big AND status IN {(*bad, '')}")
        where = f"; {large:,} at caches that do not fit" * bool(large)
        names = few([name for (name,) in data.execute(f"SELECT DISTINCT backend FROM bad WHERE status IN {(*bad, '')} ORDER BY 1")])
        found += wrapped(f"{' and '.join(bad)} ({names}): question=odd says why{where}", width, "red")
    places = [*dict.fromkeys(part.place[:3] for part in parts(data))]
    too_big = dict.fromkeys(filter(None, (no_room(data.draft.layers, *place) for place in places)))
    if places[1:]:  # each once, without its figures
        of_gpu = grouped((gpu, who) for who, _, gpu in (words.partition(":")[0].partition(NO_ROOM) for words in too_big))
        too_big = dict.fromkeys(f"{', '.join(models)}{NO_ROOM}{gpu}" for gpu, models in of_gpu.items())
    return [*found, *wrapped("; ".join(too_big), width, "red")]


def _decisions(data: Dataset, width: int, room: int) -> list[Text]:
    """The best flag of each engine: of one server for the first phases, else of whole servers as far as there is room."""
    every, each = servers.in_order(data), servers.words(data)
    names = [name for name in ("device_name", "model", "tp") if len({part.place[PLACE.index(name)] for part in every}) > 1]
    typed = "flag of each engine (default: taken by itself)" if any(part.who != HERE for part in every) else "backends, no flag"
    found = [Text(f"{typed}; time over fastest: mean (worst)")] if every else []
    drafts = {part.phase for part in every} == {"drafts"} and data.scalar("SELECT getvariable('drafts') IS NULL")
    of_servers = grouped((each[part.title] if names else "", part) for part in every)
    room -= len(wrapped(servers.to_see(of_servers), width)) if names else 0
    hidden = []
    for words, of in of_servers.items():
        told = _of_server(of, names, width)
        if not names or (len(found) == 1 and sum(map(len, told)) >= room):
            more = f"{GAP}{len(told) - DECISIONS} more: question=one_backend {words}".rstrip()
            told = [*told[:DECISIONS], *[wrapped(more, width)] * (len(told) > DECISIONS)]
        elif len(found) + sum(map(len, told)) > room:
            hidden.append(words)
            continue
        found += [line for lines in told for line in lines]
    lacks = sorted({label for part in every if not names and part.who != HERE for label in part.unmeasured})
    unmeasured = f"{GAP}flags not measured for some of these: {', '.join(lacks)}" * bool(lacks)
    no_decode = f"{GAP}decode: not among these rows; drafts=0 says where it is, and what measures it" * bool(drafts)
    return [*found, *(line for words in (unmeasured, no_decode, GAP + servers.to_see(hidden)) for line in wrapped(words, width))]


def _of_server(every: Sequence[Part], names: Sequence[str], width: int) -> list[list[Text]]:
    """The lines of each cache and phase of a server, with so much of its name; of kinds of layers if engines answer so."""
    found, said = [], {(part.place, what) for part in every if part.who != HERE for what in (part.phase, part.what)}
    for of in grouped(((part.place, part.what), part) for part in every).values():
        if {part.who for part in of} == {HERE} and (of[0].place, of[0].phase) in said and not of[0].of_plugins:
            continue
        place = dict(zip(PLACE, of[0].place, strict=True))
        server = [server_name(place)] * bool({"model", "tp"} & {*names}) + [place["device_name"]] * ("device_name" in names)
        about = ", ".join((*server, f"{place['kv_dtype']} cache", of[0].what))
        found.append(wrapped(f"{GAP}{about}: {'; '.join(briefs(of, at_worst=True))}", width))
    return found


def _maps(data: Dataset, width: int) -> Iterator[tuple[list[Text], list[Text], list[Record]]]:
    """A map for each deployment, with its head and records: the fastest of each workload, of the kind with most, and of kernels."""
    won = data.records(query("winners"))
    letters, of_any = _letters(won), " of any engine" * data.scalar("SELECT getvariable('engine') IS NOT NULL")
    order = sorted(group_by(won, PLACE).items(), key=lambda of: (not is_usual(of[0]), of[0][PLACE.index("model")] == CUSTOM))
    for place, records in order:
        extra = varying_keys(records, (*PLACE, "routine", "q_dtype", "out_dtype", "batch_size", "s_qo", "s_kv"))
        values, of_one = max(group_by(records, extra).items(), key=lambda of: (len(of[1]), sum(one["ranked"] for one in of[1])))
        here = dict(zip(PLACE, place, strict=True))
        others = [f"{key} {value}" for key, value in zip(extra, values, strict=True) if value is not None]
        about = ", ".join((server_name(here), str(here["device_name"]), f"{here['kv_dtype']} cache", *others))
        drawn, lines = _blocks(of_one, letters, width)
        more = f"; {drawn} of {len(records)} workloads, the others with question=best" if drawn < len(records) else ""
        compared = any(one["runner_up"] for one in of_one)
        head = f"fastest backend{of_any}" if compared else "the only backend with a right answer (no comparison)"
        yield wrapped(f"{head}, {about}{more}", width, "bold"), lines, of_one


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
    k = 1024 if tokens % 1024 == 0 else 1000 if tokens >= 10_000 else tokens + 1
    return f"{tokens // k}k" if tokens >= k else f"{tokens}"


def _source(data: Dataset, *, of_flags: bool) -> str:
    """When and with what it was measured; `of_flags`: and which flags in another build than their engine's."""
    known = facts(data)
    told = " ".join((*known["measured"], *[f"with {', '.join(known['with'])}"] * bool(known["with"])))
    return "; ".join(filter(None, (f"measured {told}" * bool(told), servers.in_other_builds(data) * of_flags)))

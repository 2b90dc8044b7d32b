"""mode=report without a question: one screen with what to type, a map of the fastest backends, their origin, the next commands."""

from __future__ import annotations

import math
import string
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.deployments import PLACE, Part, briefs, is_usual, no_room_at, parts, server_name
from orchestrator.analysis.questions.exactness import named
from orchestrator.analysis.questions.tables import group_by, spread, varying_keys
from orchestrator.config.model import CUSTOM
from orchestrator.grouped import grouped
from orchestrator.reporting.dashboard.data import facts
from orchestrator.storage.row import BAD, STATUSES
from orchestrator.untrusted.text import for_line

LINES, WIDTH, MAX_WIDTH = 40, 80, 120  # of a screen
DECISIONS = 5  # lines of what to type
MAX_BATCHES = 8  # of a map
CELLS, LABEL = (6, 5), 10  # letters of a cell of the map, narrower if more fit then, and before its first one
GAP = "  "  # between two maps
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
    """Prints it, at most `LINES` lines of 80 columns. `questions` are those that the dataset answers, `notes` are sentences."""
    width = min(console.width, MAX_WIDTH) if console.is_terminal else WIDTH
    end = [*_wrapped(_source(data), width), *_wrapped(_next(path, questions), width)]
    found = [*_head(data, width), *(line for note in notes for line in _wrapped(note, width)), *_decisions(data, width)]
    cells, won, legend = list[Text](), list[Record](), list[Text]()
    for head, lines, of in _maps(data, width):
        more = _legend([*cells, *lines], [*won, *of], width)
        if len(found) + len(head) + len(lines) + len(more) + len(end) > LINES:
            break
        cells, won, legend = [*cells, *lines], [*won, *of], more
        found += [*head, *lines]
    for line in (*found, *legend, *end):
        console.print(line, soft_wrap=True, highlight=False)


def _wrapped(words: str, width: int, style: str = "") -> list[Text]:
    return [Text(line, style) for line in textwrap.wrap(for_line(words), width, subsequent_indent=GAP, break_on_hyphens=False)]


def _head(data: Dataset, width: int) -> list[Text]:
    """What was measured, and how many points have which status; wrong and failed ones in red."""
    known, counts = facts(data), dict(data.execute("SELECT status, count(*) FROM current GROUP BY status"))
    told = ", ".join(f"{counts[status]:,} {status}" for status in STATUSES if status in counts)
    found = _wrapped(" · ".join((*(", ".join(known[kind]) or f"no {kind}" for kind in ("model", "GPU")), told)), width, "bold")
    if bad := [status for status in BAD if status in counts]:
        found += _wrapped(f"{' and '.join(bad)}: question=odd says why", width, "red")
    too_small = dict.fromkeys(filter(None, (no_room_at(data, part.place) for part in parts(data))))
    return [*found, *(line for words in too_small for line in _wrapped(words, width, "red"))]


def _decisions(data: Dataset, width: int) -> list[Text]:
    """The best flag of each engine for the first deployments and phases."""
    every = sorted(parts(data), key=lambda part: (not is_usual(part.place), _of(part, "model") == CUSTOM))
    groups = grouped(((part.place, part.what), part) for part in every)
    names = [name for name in ("device_name", "model", "tp") if len({_of(part, name) for part in every}) > 1]
    words = "what to type: nothing for a default; mean time over the fastest's (at worst)"
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
    return "; ".join(filter(None, (", ".join(known["with"]), *(f"measured {day}" for day in known["measured"]))))


def _next(path: str, questions: Sequence[str]) -> str:
    shown = f"question={' | '.join(questions)}; " if questions else ""
    return f"at length: {shown}full=true for every table; where={{...}}; to see it: mode=dashboard results.path={path}"

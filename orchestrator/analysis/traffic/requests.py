"""Requests of serving benchmarks and logs as traffic: JSON, JSON lines or CSV, in which each record has lengths under known names.

Mooncake and Bailian have `input_length`, `output_length`, `hash_ids`; `vllm bench serve --save-detailed` and SGLang's bench_serving
`input_lens`, `output_lens`; AIPerf and GenAI-Perf `input_sequence_length` with a value, or with percentiles; answers of OpenAI's
kind `usage`; Azure's traces `ContextTokens`, `GeneratedTokens`; BurstGPT `Request tokens`, `Response tokens`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

from orchestrator.analysis.traffic.mix import Mix, TrafficPoint, steps
from orchestrator.errors import UserError
from orchestrator.remainder import Remainder
from orchestrator.untrusted.door import any_json, from_json

Record = tuple[int, Mapping[str, Any]]  # with its line, or its number in a list
Shares = list[tuple[float, float]]  # lengths, each with its weight

MAX_TOKENS = 10**8
MAX_COUNT = 1e15  # of requests, and weights
MAX_DEPTH = 4  # of the lengths in a record
# Names of lengths, of which letters and digits count; the first that a record has.
PROMPTS = (
    *("inputlength", "inputlen", "inputlens", "inputsequencelength", "isl", "promptlen", "promptlength", "prompttokens"),
    *("numprompttokens", "inputtokens", "contexttokens", "requesttokens", "numprefilltokens"),
)
OUTPUTS = (
    *("outputlength", "outputlen", "outputlens", "outputsequencelength", "osl", "generatedtokens", "completiontokens"),
    *("outputtokens", "responsetokens", "generationtokens", "numgeneratedtokens", "numdecodetokens", "outputtokencount"),
)
PERCENTILE = re.compile(r"p(\d\d?)")
INDEPENDENT = "prompt and output lengths taken as independent, since {} do not pair them"


def is_csv(text: str) -> bool:
    """Whether a text is a CSV whose header has the name of a prompt's length, or s_kv."""
    return bool({_plain(name) for name in text.lstrip().split("\n", 1)[0].split(",")} & {*PROMPTS, "skv"})


def read(path: str, text: str, allowed: str) -> Mix:
    """The traffic of the requests in a text. Raises UserError that says what is `allowed` if it has none."""
    rest, reader = Remainder(path), _Reader()
    for number, record in _csv_records(text) if is_csv(text) else _json_records(rest, text):
        rest.collect(number, lambda record=record: reader.add(record))  # type: ignore[misc]
    if reader.prompts and not reader.decode:
        raise UserError(f"traffic={path}: no request has output tokens, so nothing is decoded; give one that does")
    rest.close(len(reader.decode), f"allowed: {allowed}")
    with_batch = sum(point.batch_size is not None for point in reader.decode)
    if 0 < with_batch < len(reader.decode):
        raise UserError(
            f"traffic={path}: {with_batch} of {len(reader.decode)} lines have a batch_size; allowed: all of them or none"
        )
    return Mix(tuple(reader.decode), tuple(reader.prompts), tuple(reader.notes(bool(with_batch))))


def _json_records(rest: Remainder, text: str) -> Iterator[Record]:
    """The objects of a JSON text, of a list in it, or of its lines."""
    try:
        whole = any_json(text)
    except ValueError:
        for number, line in enumerate(text.split("\n"), 1):  # JSON may hold what splitlines() takes for the end of a line
            if line.strip() and (record := rest.collect(number, lambda line=line: from_json(line))) is not None:  # type: ignore[misc]
                yield number, record
        return
    for number, record in enumerate(whole if isinstance(whole, list) else [whole], 1):
        if isinstance(record, dict):
            yield number, record
        else:
            rest.add(number, "no JSON object, {...}")


def _csv_records(text: str) -> Iterator[Record]:
    reader = csv.DictReader(io.StringIO(text.lstrip(), newline=""))
    for cells in reader:
        yield reader.line_num, {str(name): _of_cell(cell) for name, cell in cells.items()}


def _of_cell(cell: object) -> object:
    try:
        return float(str(cell))
    except ValueError:
        return cell


class _Reader:
    """The points of the records so far, and how many blocks of their prompts an earlier one had."""

    def __init__(self) -> None:
        self.decode: list[TrafficPoint] = []
        self.prompts: list[TrafficPoint] = []
        self.seen: set[str] = set()
        self.blocks = 0
        self.has_percentiles = False

    def add(self, record: Mapping[str, Any]) -> None:
        """Adds the requests of a record, or its decode step. Raises ValueError if it has neither."""
        if "s_kv" in record:
            batch = None if record.get("batch_size") in (None, "") else int(_number("batch_size", record["batch_size"], 1))
            self.decode.append(TrafficPoint(batch, int(_number("s_kv", record["s_kv"], 1)), _weight(record)))
            return
        given = record.get("hash_ids")
        hashes = [str(block) for block in given] if isinstance(given, list) else []
        for prompts, outputs in _lengths(record):
            self.has_percentiles |= len(prompts) * len(outputs) > 1
            self.prompts += [TrafficPoint(None, prompt, weight) for prompt, weight in prompts]
            pairs = ((p, o, of_p * of_o) for p, of_p in prompts for o, of_o in outputs)
            self.decode += [step for prompt, output, weight in pairs for step in steps(prompt, output, weight)]
        self.blocks += len(hashes)
        self.seen.update(hashes)

    def notes(self, has_batches: bool) -> Iterator[str]:
        """What was assumed."""
        if not has_batches:
            yield "no batch sizes, so a report counts all measured ones alike"
        if self.has_percentiles:
            yield INDEPENDENT.format("percentiles")
        if repeated := self.blocks - len(self.seen):
            share = f"{repeated:,} of {self.blocks:,} blocks of prompts (hash_ids) repeat earlier ones"
            yield f"{share}; a prefix cache would not compute them again, and prompts count whole here"


def _lengths(record: Mapping[str, Any]) -> list[tuple[Shares, Shares]]:
    """Prompt and output tokens of each request of a record. Raises ValueError if it has none."""
    for mapping in _mappings(record, MAX_DEPTH):
        names = {_plain(key): key for key in mapping}
        found = [next((names[name] for name in known if name in names), None) for known in (PROMPTS, OUTPUTS)]
        if None in found or None in (values := [mapping[key] for key in found if key is not None]):
            continue
        if "batch_size" in record:
            raise ValueError("batch_size goes with s_kv, and not with input_length, since a request is decoded in many batches")
        prompts, outputs = (value if isinstance(value, list) else [value] for value in values)
        if len(prompts) != len(outputs):
            raise ValueError(f"{found[0]} has {len(prompts)} lengths and {found[1]} has {len(outputs)}; allowed: as many of both")
        pairs = zip(prompts, outputs, strict=True)
        return [(_shares(str(found[0]), prompt, 1), _shares(str(found[1]), output, 0)) for prompt, output in pairs]
    hint = "; vllm bench serve writes lengths with --save-detailed" if "total_input_tokens" in record else ""
    raise ValueError(f"neither s_kv nor input_length with output_length, nor other names of them{hint}")


def _mappings(found: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    """A mapping and those in it, the outer ones first."""
    level = [found]
    for _ in range(depth):
        yield from level
        level = [value for mapping in level for value in mapping.values() if isinstance(value, dict)]


def _shares(name: str, value: object, least: int) -> Shares:
    """A length; or from percentiles, and from the least and the greatest, the middle between neighbours with the share there."""
    if not isinstance(value, dict):
        return [(_number(name, value, least), 1.0)]
    if "value" in value:
        return [(_number(name, value["value"], least), 1.0)]
    marks = {int(found[1]) / 100: value[key] for key in value if (found := PERCENTILE.fullmatch(str(key)))}
    marks |= {share: value[key] for key, share in (("min", 0), ("max", 1)) if key in value}
    edges = sorted((share, _number(name, mark, least, whole=False)) for share, mark in marks.items())
    if len(edges) < 2:
        raise ValueError(f"{name} has neither a value nor percentiles")
    return [((a + b) / 2, upto - start) for (start, a), (upto, b) in pairwise(edges)]


def _number(name: str, value: object, least: int, *, whole: bool = True) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= MAX_TOKENS
    if not is_number or (whole and int(value) != value):  # type: ignore[call-overload]
        raise ValueError(f"{name}={value!r:.80}: allowed: a {'whole ' if whole else ''}number from {least} to {MAX_TOKENS:,}")
    return value  # type: ignore[return-value]


def _weight(record: Mapping[str, Any]) -> float:
    value = record.get("weight", 1)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_COUNT:
        raise ValueError(f"weight={value!r}: allowed: a number above 0, up to {MAX_COUNT:g}")
    return float(value)


@lru_cache(maxsize=1000)  # a record has the names of all others
def _plain(name: object) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())

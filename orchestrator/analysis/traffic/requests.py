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
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

from orchestrator.analysis.traffic.mix import Mix, TrafficPoint, steps
from orchestrator.errors import UserError
from orchestrator.remainder import Remainder
from orchestrator.untrusted.door import any_json, as_object, from_json

Record = tuple[int, Mapping[str, Any]]  # with its line, or its number in a list
Shares = list[tuple[float, float]]  # lengths, each with its weight
Lengths = tuple[Mapping[str, Any], str, str]  # a mapping, and its keys of prompts and of outputs

MAX_TOKENS = 10**8
MAX_COUNT = 1e15  # of requests, and weights
MAX_DEPTH, MAX_NAMES = 4, 12  # of the lengths in a record; of what was passed over
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
        rest.collect(number, partial(reader.add, record))
    if reader.prompts and not reader.decode:
        raise UserError(f"traffic={path}: no request has output tokens, so nothing is decoded; give one that does")
    rest.close(len(reader.decode), f"allowed: {allowed}")
    with_batch = sum(point.batch_size is not None for point in reader.decode)
    if 0 < with_batch < len(reader.decode):
        lines = f"{with_batch} of {len(reader.decode)} lines"
        raise UserError(f"traffic={path}: {lines} have a batch_size; allowed: all of them or none")
    return Mix(tuple(reader.decode), tuple(reader.prompts), tuple(reader.notes(bool(with_batch))))


def _json_records(rest: Remainder, text: str) -> Iterator[Record]:
    """The objects of a JSON text, of a list in it, or of its lines."""
    try:
        whole = any_json(text)
    except ValueError:
        lines = enumerate(text.split("\n"), 1)  # JSON may hold what splitlines() takes for the end of a line
        return rest.each(((number, line) for number, line in lines if line.strip()), from_json)
    return rest.each(enumerate(whole if isinstance(whole, list) else [whole], 1), as_object)


def _csv_records(text: str) -> Iterator[Record]:
    reader = csv.DictReader(io.StringIO(text.lstrip(), newline=""), restkey="")
    for cells in reader:
        yield reader.line_num, {name: _of_cell(cell) for name, cell in cells.items()}


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
        self.seen: set[int | str] = set()
        self.blocks = 0
        self.has_percentiles = False
        self.passed: set[str] = set()

    def add(self, record: Mapping[str, Any]) -> None:
        """Adds the requests of a record, or its decode step. Raises ValueError if it has neither."""
        if "s_kv" in record:
            if not (weight := _number("weight", record.get("weight", 1), 0, MAX_COUNT, whole=False)):
                raise ValueError("weight=0: allowed: a number above 0")
            batch = None if record.get("batch_size") in (None, "") else int(_number("batch_size", record["batch_size"], 1))
            self.decode.append(TrafficPoint(batch, int(_number("s_kv", record["s_kv"], 1)), weight))
            return
        given = record.get("hash_ids")
        hashes = [block for block in given if isinstance(block, int | str)] if isinstance(given, list) else []
        _, found = self._found(record)
        if not found:
            hint = "; vllm bench serve writes lengths with --save-detailed" if "total_input_tokens" in record else ""
            raise ValueError(f"neither s_kv nor input_length with output_length, nor other names of them{hint}")
        if "batch_size" in record:
            raise ValueError("batch_size goes with s_kv, and not with input_length, since a request is decoded in many batches")
        for prompts, outputs in (pair for lengths in found for pair in _pairs(*lengths)):
            self.has_percentiles |= len(prompts) * len(outputs) > 1
            self.prompts += [TrafficPoint(None, prompt, weight) for prompt, weight in prompts]
            pairs = ((p, o, of_p * of_o) for p, of_p in prompts for o, of_o in outputs)
            self.decode += [step for prompt, output, weight in pairs for step in steps(prompt, output, weight)]
        self.blocks += len(hashes)
        self.seen.update(hashes)

    def _found(self, mapping: Mapping[str, Any], depth: int = MAX_DEPTH) -> tuple[bool, list[Lengths]]:
        """The lengths in a mapping, and whether they stand in lists.

        Lists go before single lengths, which may be their totals; outer before inner; and of siblings those named as the first.
        """
        found: dict[tuple[bool, bool, str], list[Lengths]] = {}  # by whether they are lists, and outer, and where
        if keys := _keys(tuple(key for key in mapping if mapping[key] is not None)):
            found[isinstance(mapping[keys[0]], list), True, keys[0]] = [(mapping, *keys)]
        for name, value in mapping.items() if depth > 1 else ():
            inner = [
                self._found(one, depth - 1) for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)
            ]
            if lengths := [one for _, several in inner for one in several]:
                found[isinstance(value, list) or any(listed for listed, _ in inner), False, name] = lengths
        if not found:
            return False, []
        best = max(key[:2] for key in found)
        named = next(lengths[0][1] for key, lengths in found.items() if key[:2] == best)
        taken = {key: lengths for key, lengths in found.items() if key[:2] == best and lengths[0][1] == named}
        self.passed |= {name for *_, name in found.keys() - taken.keys()}
        return best[0], [one for lengths in taken.values() for one in lengths]

    def notes(self, has_batches: bool) -> Iterator[str]:
        """What was assumed."""
        if not has_batches:
            yield "no batch sizes, so a report counts all measured ones alike"
        if self.has_percentiles:
            yield INDEPENDENT.format("percentiles")
        if repeated := self.blocks - len(self.seen):
            share = f"{repeated:,} of {self.blocks:,} blocks of prompts (hash_ids) repeat earlier ones"
            yield f"{share}; a prefix cache would not compute them again, and prompts count whole here"
        if self.passed:
            more = ", ..." if len(self.passed) > MAX_NAMES else ""
            yield f"beside the lengths that were taken, others were passed over: {', '.join(sorted(self.passed)[:MAX_NAMES])}{more}"


@lru_cache(maxsize=1000)  # a record has the names of all others
def _keys(given: tuple[str, ...]) -> tuple[str, str] | None:
    """Those of the keys that name the lengths of prompts and of outputs."""
    names = {_plain(key): key for key in given}
    prompt, output = (next((names[name] for name in known if name in names), None) for known in (PROMPTS, OUTPUTS))
    return None if prompt is None or output is None else (prompt, output)


def _pairs(mapping: Mapping[str, Any], prompt: str, output: str) -> list[tuple[Shares, Shares]]:
    """Prompt and output tokens of each request in this very mapping: one, or lists of them."""
    prompts, outputs = (value if isinstance(value, list) else [value] for value in (mapping[prompt], mapping[output]))
    if len(prompts) != len(outputs):
        raise ValueError(f"{prompt} has {len(prompts)} lengths and {output} has {len(outputs)}; allowed: as many of both")
    return [(_shares(prompt, p, 1), _shares(output, o, 0)) for p, o in zip(prompts, outputs, strict=True)]


def _shares(name: str, value: object, least: int) -> Shares:
    """A length; or from percentiles, and from the least and the greatest, the middle between neighbours with the share there."""
    if not isinstance(value, dict) or "value" in value:
        return [(_number(name, value["value"] if isinstance(value, dict) else value, least), 1.0)]
    marks = {int(found[1]) / 100: value[key] for key in value if (found := PERCENTILE.fullmatch(str(key)))}
    marks |= {share: value[key] for key, share in (("min", 0), ("max", 1)) if key in value}
    edges = sorted((share, _number(name, mark, least, whole=False)) for share, mark in marks.items())
    if len(edges) < 2:
        raise ValueError(f"{name} has neither a value nor percentiles")
    return [((a + b) / 2, upto - start) for (start, a), (upto, b) in pairwise(edges)]


def _number(name: str, value: object, least: int, most: float = MAX_TOKENS, *, whole: bool = True) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
    if not is_number or (whole and int(value) != value):  # type: ignore[call-overload]
        raise ValueError(f"{name}={value!r:.80}: allowed: a {'whole ' if whole else ''}number from {least} to {most:,.0f}")
    return value  # type: ignore[return-value]


def _plain(name: object) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())

"""Requests of serving benchmarks and logs as traffic: JSON, JSON lines or CSV, whose records have lengths under known names."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from importlib.resources import files
from itertools import pairwise
from typing import Any

import yaml

from orchestrator.analysis.traffic.mix import Mix, TrafficPoint, steps
from orchestrator.errors import UserError
from orchestrator.remainder import Remainder
from orchestrator.untrusted.door import any_json, as_object, from_json

Record = tuple[int, Mapping[str, Any]]  # with its line, or its number in a list
Shares = list[tuple[float, float]]  # lengths, each with its weight
Keys = tuple[str, ...]  # of a length, with those that stand beside it
Found = tuple[tuple[int, int, str], str, Callable[[], list[tuple[Shares, Shares]]]]  # how good, where, and the lengths

MAX_TOKENS = 10**8
MAX_COUNT = 1e15  # of requests, and weights
MAX_DEPTH = 4  # of the lengths in a record
PROMPTS, OUTPUTS, BESIDE, *STEP = yaml.safe_load(files(__package__).joinpath("names.yaml").read_text(encoding="utf-8")).values()
PERCENTILE = re.compile(r"p(\d\d?)")
INDEPENDENT = "prompt and output lengths taken as independent, since {} do not pair them"


def is_csv(text: str) -> bool:
    """Whether a text is a CSV, by its first line."""
    return not re.match(r"[#[]|.*[{]", text.lstrip()) and (len(columns := _table(text).fieldnames or ()) > 1 or columns == ["s_kv"])


def _table(text: str) -> csv.DictReader[str]:
    delimiter = max(",;\t", key=text.lstrip().split("\n", 1)[0].count)
    return csv.DictReader(io.StringIO(text.lstrip(), newline=""), restkey="", delimiter=delimiter)


def read(path: str, text: str, allowed: str) -> Mix:
    """The traffic of the requests in a text. Raises UserError that says what is `allowed` if it has none."""
    rest, reader = Remainder(path), _Reader()
    for number, record in _csv_records(path, text) if is_csv(text) else _json_records(rest, text):
        rest.collect(number, partial(reader.add, record))
    if reader.prompts and not reader.decode:
        raise UserError(f"traffic={path}: no request has output tokens, so nothing is decoded; give one that does")
    if reader.unread:
        rest.add(1, f"not read ({len(reader.unread)}): {', '.join(sorted(reader.unread)):.300}")
    rest.close(len(reader.decode), f"allowed: {allowed}")
    if not reader.decode:  # and nothing was left out: an empty list, or a header alone
        raise UserError(f"traffic={path}: it has no requests; allowed: {allowed}")
    with_batch = sum(point.batch_size is not None for point in reader.decode)
    if 0 < with_batch < len(reader.decode):
        raise UserError(f"traffic={path}: {with_batch} of {len(reader.decode)} lines have a batch_size; allowed: all or none")
    return Mix(tuple(reader.decode), tuple(reader.prompts), tuple(reader.notes(bool(with_batch))))


def _json_records(rest: Remainder, text: str) -> Iterator[Record]:
    """The objects of a JSON text, of a list in it, or of its lines."""
    try:
        whole = any_json(text)
    except ValueError:
        lines = enumerate(text.split("\n"), 1)  # JSON may hold what splitlines() takes for the end of a line
        return rest.each(((number, line) for number, line in lines if line.strip()), from_json)
    return rest.each(enumerate(whole if isinstance(whole, list) else [whole], 1), as_object)


def _csv_records(path: str, text: str) -> Iterator[Record]:
    reader = _table(text)
    columns = tuple(reader.fieldnames or ())
    if columns[0].lower() == "metric":  # a summary of GenAI-Perf or AIPerf, with a metric in each line
        lines = ((re.sub(r" *\(.*", "", str(line.pop(columns[0]))), line) for line in reader)
        yield 1, {name: {key: _of_cell(cell) for key, cell in line.items() if cell not in (None, "")} for name, line in lines}
        return
    if not _keys(columns, of_step=True)[0] and not all(_keys(columns)):
        allowed = "batch_size,s_kv,weight, or lengths such as prompt_tokens,output_tokens; docs/draft.md#your-own-traffic has more"
        raise UserError(f"traffic={path}: its columns are {', '.join(columns):.600}; allowed: {allowed}")
    for cells in reader:
        yield reader.line_num, {name: _of_cell(cell) for name, cell in cells.items()}


def _of_cell(cell: object) -> object:
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", str(cell))  # 1,100 is 1100
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return cell


class _Reader:
    """The points of the records so far, and how many blocks of their prompts an earlier one had."""

    def __init__(self) -> None:
        self.decode: list[TrafficPoint] = []
        self.prompts: list[TrafficPoint] = []
        self.seen: set[int | str] = set()
        self.blocks = self.empty = 0
        self.has_percentiles = False
        self.passed, self.unread = set[str](), set[str]()

    def add(self, record: Mapping[str, Any]) -> None:
        """Adds the requests of a record, or its decode step. Raises ValueError if it has neither."""
        found = [] if "s_kv" in record else list(_found(record))
        best = max((rank for rank, *_ in found), key=lambda rank: rank[:2], default=(0, 0, ""))
        is_one = best[:2] == (0, 0)  # request or step
        names = tuple(name for name, value in record.items() if is_one and name and not isinstance(value, dict | list))
        s_kv, batch, weighed = _keys(names, of_step=True)
        if not found and not s_kv:
            hint = "; vllm bench serve needs --save-detailed, SGLang --output-details" if "total_input_tokens" in record else ""
            raise ValueError(f"neither s_kv nor input_length with output_length, nor other names of them{hint}")
        if found and "batch_size" in record:
            raise ValueError("batch_size goes with s_kv, and not with input_length, since a request is decoded in many batches")
        if not (count := _number(weighed[0], record[weighed[0]], 0, MAX_COUNT, whole=False) if weighed else 1):
            raise ValueError(f"{weighed[0]}=0: allowed: a number above 0")
        if not found:
            size = int(_number(batch[0], record[batch[0]], 1)) if batch and record[batch[0]] not in (None, "") else None
            self.decode.append(TrafficPoint(size, int(_number(s_kv[0], record[s_kv[0]], 1)), count))
        for prompts, outputs in (pair for rank, _, lengths in found if rank == best for pair in lengths()):
            self.empty += not any(output for output, _ in outputs)
            self.has_percentiles |= len(prompts) * len(outputs) > 1
            self.prompts += [TrafficPoint(None, prompt, count * weight) for prompt, weight in prompts]
            pairs = ((p, o, count * of_p * of_o) for p, of_p in prompts for o, of_o in outputs)
            self.decode += [step for prompt, output, weight in pairs for step in steps(prompt, output, weight)]
        self.passed.update(where for rank, where, _ in found if rank != best)
        self.unread.update({*names}.difference(weighed, *(_keys(names) if found else [s_kv, batch])))
        if isinstance(given := record.get("hash_ids"), list):
            hashes = {block for block in given if isinstance(block, int | str)}
            self.blocks += len(hashes)
            self.seen |= hashes

    def notes(self, has_batches: bool) -> Iterator[str]:
        """What was assumed."""
        if not has_batches:
            yield "no batch sizes, so a report counts all measured ones alike; for one type where={batch_size: N}"
        if self.has_percentiles:
            yield INDEPENDENT.format("percentiles")
        if repeated := self.blocks - len(self.seen):
            share = f"{repeated:,} of {self.blocks:,} blocks of prompts (hash_ids) repeat earlier ones"
            yield f"{share}; a prefix cache would not compute them again, and prompts count whole here"
        if self.empty:
            yield f"requests without output tokens (perhaps they failed), which count as prompts alone: {self.empty:,}"
        if self.passed:
            yield f"lengths passed over beside those that were taken ({len(self.passed)}): {', '.join(sorted(self.passed)):.300}"


def _found(mapping: Mapping[str, Any], where: str = "", lists: int = 0, depth: int = 0) -> Iterator[Found]:
    """The lengths in a mapping. Best are those in most lists, since others may be their totals; then outer ones; then the first."""
    if all(keys := _keys(tuple(name for name in mapping if mapping[name] is not None))):
        yield (lists + isinstance(mapping[key := keys[0][0]], list), -depth, key), where + key, partial(_pairs, mapping, *keys)
    for name, value in mapping.items() if depth + 1 < MAX_DEPTH else ():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield from _found(one, f"{where}{name}.", lists + isinstance(value, list), depth + 1)


@lru_cache(maxsize=1000)  # a record has the names of all others
def _keys(given: Keys, *, of_step: bool = False) -> list[Keys]:
    """Those of prompts and of outputs, or of a step's context, batch size and weight, whole or after the last dot; the shortest."""
    words = ((word.lower(), key) for key in sorted(given, key=len, reverse=True) for word in (key.split(".")[-1], key))
    names = {re.sub("[^a-z0-9]", "", word) or "#": key for word, key in words}
    first = (next(filter(names.__contains__, known), "") for known in (STEP if of_step else (PROMPTS, OUTPUTS)))
    return [tuple(names[part] for part in (name, *BESIDE.get(name, ())) if part in names) for name in first]


def _pairs(mapping: Mapping[str, Any], prompt: Keys, output: Keys) -> list[tuple[Shares, Shares]]:
    """Prompt and output tokens of each request in this very mapping: one, or lists of them."""
    prompts, outputs = (_list(mapping, keys) for keys in (prompt, output))
    if len(prompts) != len(outputs):
        raise ValueError(f"{prompt[0]} has {len(prompts)} lengths and {output[0]} has {len(outputs)}; allowed: as many of both")
    return [(_shares(prompt[0], p, 1), _shares(output[0], o, 0)) for p, o in zip(prompts, outputs, strict=True)]


def _list(mapping: Mapping[str, Any], keys: Keys) -> list[Any]:
    value = mapping[keys[0]]
    if isinstance(value, list) and keys[0].lower().endswith("ids"):  # the tokens themselves, of one request
        return [len(value)]
    if len(keys) == 1 or isinstance(value, list | dict):
        return value if isinstance(value, list) else [value]
    return [sum(_number(key, mapping[key] or 0, 0) for key in keys)]


def _shares(name: str, value: object, least: int) -> Shares:
    """A length; or from percentiles, and from the least and the greatest, the middle between neighbours with the share there."""
    if not isinstance(value, dict) or "value" in value:
        return [(_number(name, value["value"] if isinstance(value, dict) else value, least), 1.0)]
    value = {**value, **(value.get("percentiles") or {})}
    marks = {int(found[1]) / 100: value[key] for key in value if (found := PERCENTILE.fullmatch(str(key)))}
    marks |= {share: value[key] for key, share in (("min", 0), ("max", 1), ("minimum", 0), ("maximum", 1)) if key in value}
    edges = sorted((share, _number(name, mark, least, whole=False)) for share, mark in marks.items())
    if len(edges) < 2:
        raise ValueError(f"{name} has neither a value nor percentiles")
    return [((a + b) / 2, upto - start) for (start, a), (upto, b) in pairwise(edges)]


def _number(name: str, value: object, least: int, most: float = MAX_TOKENS, *, whole: bool = True) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
    if not is_number or (whole and int(value) != value):  # type: ignore[call-overload]
        raise ValueError(f"{name}={value!r:.80}: allowed: a {'whole ' if whole else ''}number from {least} to {most:,.0f}")
    return value  # type: ignore[return-value]

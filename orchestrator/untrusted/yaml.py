"""Reads YAML that somebody else wrote: bounded in size, depth and aliases, and every error named by file and line.

The same rules hold for the project's configuration and for another benchmark's file: no tags, no key twice, no alias that leads to
itself. So what a file says is what a person reads in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import UserError
from orchestrator.untrusted.files import read_text

MAX_BYTES = 4 * 10**6
MAX_DEPTH = 30
MAX_VALUES = 100_000  # with each alias counted as all that it stands for
MAX_DIGITS = 18  # a whole number beyond fits no column
_DIGITS = re.compile(r"[-+]?[0-9][0-9_]*")
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map"))
_MERGE = "<<"
_C_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # eight times as fast, and its errors are in better words


class _TextDates(yaml.SafeLoader):  # type: ignore[misc]
    """YAML's safe loader, in which a date is the text that it looks like."""


_TextDates.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(text: str, name: str, max_values: int = MAX_VALUES) -> Any:
    """The data of a YAML text. Raises UserError, which begins with `name` and the line, for what `check` refuses."""
    return parse(text, name, max_values)[1]


def parse(text: str, name: str, max_values: int = MAX_VALUES) -> tuple[yaml.Node | None, Any]:
    """As `load`, with the tree of nodes, which know their lines."""
    check(text, name, max_values)
    try:
        return yaml.compose(text, Loader=_TextDates), yaml.load(text, Loader=_TextDates)
    except yaml.YAMLError as error:
        raise _no_yaml(error, name) from None
    except ValueError:
        raise UserError(f"{name}:1: a value looks like a number and is not one; put quotes around it") from None


def read(path: str | Path, key: str) -> tuple[yaml.Node | None, Any]:
    """As `parse`, of a file that a person has named by `key`."""
    return parse(read_text(path, key, MAX_BYTES), str(path))


def check(text: str, name: str, max_values: int = MAX_VALUES) -> None:
    """Raises UserError for a text that is no YAML, or that holds what this project does not take.

    It reads the text as a stream of events and builds nothing, so that no text is too much for it.
    """
    walk = _Walk(name, max_values)
    try:
        for event in yaml.parse(text, Loader=_C_LOADER):
            walk.step(event)
    except yaml.YAMLError as error:
        raise _no_yaml(error, name) from None


@dataclass
class _Open:
    """A mapping or a list that has not ended."""

    mapping: bool
    line: int
    anchor: str | None
    values: int = 1
    key: str | None = None  # of a mapping: the key whose value comes next
    keys: dict[str, int] = field(default_factory=dict)


class _Walk:
    """What was read so far."""

    def __init__(self, name: str, max_values: int) -> None:
        self.name, self.max_values = name, max_values
        self.open: list[_Open] = []
        self.sizes: dict[str, int] = {}  # of each anchor that has ended, with all aliases in it
        self.mappings: set[str] = set()
        self.documents = 0
        self.line = 1  # of the event that is being read

    def step(self, event: yaml.Event) -> None:
        self.line = event.start_mark.line + 1
        match event:
            case yaml.DocumentStartEvent():
                self.documents += 1
                if self.documents > 1:
                    raise self._error("a second document begins here; allowed: one in a file, so delete the ---")
            case yaml.ScalarEvent():
                self._scalar(event)
            case yaml.AliasEvent():
                self._alias(event.anchor)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._begin(event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                ended = self.open.pop()
                if ended.anchor is not None:
                    self.sizes[ended.anchor] = ended.values
                    if ended.mapping:
                        self.mappings.add(ended.anchor)
                self._count(ended.values)

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        self._require_plain_tag(event.tag)
        if not event.style and _DIGITS.fullmatch(event.value) and sum(map(str.isdigit, event.value)) > MAX_DIGITS:
            raise self._error(f"a whole number of {len(event.value)} digits; allowed: up to {MAX_DIGITS}")
        inside = self.open[-1] if self.open else None
        if inside is not None and inside.mapping and inside.key is None:
            self._key(inside, event.value)
            return
        if inside is not None and inside.key == _MERGE:
            raise self._error(f"{_MERGE}: it merges a mapping, and this is none")
        if event.anchor is not None:
            self.sizes[event.anchor] = 1
        self._count(1)

    def _key(self, inside: _Open, key: str) -> None:
        if key in inside.keys:
            raise self._error(f"the key {key!r} is in line {inside.keys[key]} too; delete one of them")
        inside.keys[key] = self.line
        inside.key = key

    def _alias(self, anchor: str) -> None:
        if any(one.anchor == anchor for one in self.open):
            raise self._error(f"*{anchor} is inside of &{anchor} itself, so it has no end")
        if anchor not in self.sizes:
            raise self._error(f"*{anchor}: there is no &{anchor} before it")
        if self.open and self.open[-1].key == _MERGE and anchor not in self.mappings:
            raise self._error(f"{_MERGE}: it merges a mapping, and *{anchor} is none")
        self._count(self.sizes[anchor])

    def _begin(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        self._require_plain_tag(event.tag)
        mapping = isinstance(event, yaml.MappingStartEvent)
        inside = self.open[-1] if self.open else None
        if inside is not None and inside.mapping and inside.key is None:
            raise self._error("a list or a mapping is in the place of a key; a key is a word")
        if inside is not None and inside.key == _MERGE and not mapping:
            raise self._error(f"{_MERGE}: it merges one mapping, and this is a list")
        if len(self.open) >= MAX_DEPTH:
            raise self._error(f"lists and mappings more than {MAX_DEPTH} deep")
        self.open.append(_Open(mapping, self.line, event.anchor))

    def _count(self, values: int) -> None:
        """Adds the values of what has just ended to what it stands in."""
        if not self.open:
            return
        inside = self.open[-1]
        inside.values += values
        inside.key = None
        if inside.values > self.max_values:
            raise self._error(f"more than {self.max_values:,} values, each alias counted as what it stands for")

    def _require_plain_tag(self, tag: str | None) -> None:
        if tag is not None and tag not in _PLAIN_TAGS:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise self._error(f"the tag {shown}; allowed: plain words, numbers, lists and mappings, without tags")

    def _error(self, words: str) -> UserError:
        return UserError(f"{self.name}:{self.line}: {words}")


def _no_yaml(error: yaml.YAMLError, name: str) -> UserError:
    """What a parser says, with the line, and in words of people for what they meet most."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    said = str(getattr(error, "problem", None) or "")
    if "cannot start any token" in said:
        words = "a tab or another sign that no value begins with; indent with spaces, and put quotes around such a value"
    elif "control characters" in said or isinstance(error, yaml.reader.ReaderError):
        words = "a control character; delete it"
    elif "mapping values are not allowed" in said:
        words = "a colon in a wrong place; put quotes around a value with a colon, and align the keys of a mapping"
    elif "alias" in said or "anchor" in said:
        words = "an alias or an anchor without a name that is known"
    else:
        words = "a bracket, a quote, a colon or the indentation is wrong here or in the lines before"
    return UserError(f"{name}:{line}: not YAML from column {column} on: {words}")

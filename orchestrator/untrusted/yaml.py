"""Reads YAML that somebody else wrote: bounded in size, depth and aliases, and every error named by file and line.

The same rules hold for a person's own configuration and for another benchmark's file: no tags, no key twice, no alias that leads
to itself. So what a file says is what a person reads in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import UserError
from orchestrator.untrusted.files import read_text

MAX_BYTES = 4 * 10**6
MAX_DEPTH = 30
MAX_VALUES = 100_000  # with each alias counted as all that it stands for
MAX_DIGITS = 18  # a whole number beyond fits no column
_NO_TAG = "allowed: plain words, numbers, lists and mappings"
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map"))
_MERGE = f"{_TAG}merge"
_C_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # eight times as fast, and its errors are in better words


class _TextDates(_C_LOADER):  # type: ignore[misc, valid-type]
    """YAML's safe loader, in which a date is the text that it looks like."""


_TextDates.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(text: str, name: str, max_values: int = MAX_VALUES) -> Any:
    """The data of a YAML text. Raises UserError, which begins with `name` and the line, for what this project does not take."""
    return parse(text, name, max_values)[1]


def parse(text: str, name: str, max_values: int = MAX_VALUES) -> tuple[yaml.Node | None, Any]:
    """As `load`, with the tree of nodes, which know their lines."""
    try:
        _require_shallow(text, name, max_values)
        node = yaml.compose(text, Loader=_TextDates)
        if node is not None:
            _Walk(name, max_values).size(node)
        return node, yaml.load(text, Loader=_TextDates)
    except UserError:
        raise
    except yaml.YAMLError as error:
        raise _no_yaml(error, name) from None
    except Exception:  # of whatever class: the parser's own functions make a value of a word that is of another kind than it looks
        raise UserError(f"{name}:1: a value looks like a number and is not one; put quotes around it") from None


def read(path: str | Path, key: str) -> tuple[yaml.Node | None, Any]:
    """As `parse`, of a file that a person has named by `key`."""
    return parse(read_text(path, key, MAX_BYTES), str(path))


def _require_shallow(text: str, name: str, max_values: int) -> None:
    """Reads the text as a stream of events, which builds nothing. Raises UserError for what is too deep or too much to build."""
    depth = values = documents = 0
    for event in yaml.parse(text, Loader=_C_LOADER):
        line = event.start_mark.line + 1
        if tag := getattr(event, "tag", None):
            raise UserError(f"{name}:{line}: the tag {tag.replace(_TAG, '!!')}; {_NO_TAG}")
        documents += isinstance(event, yaml.DocumentStartEvent)
        values += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if documents > 1:
            raise UserError(f"{name}:{line}: a second document begins here; allowed: one in a file, so delete the ---")
        if depth > MAX_DEPTH:
            raise UserError(f"{name}:{line}: lists and mappings more than {MAX_DEPTH} deep")
        if values > 2 * max_values:
            raise _too_many(name, line, max_values)


class _Walk:
    """Counts the values below a node, each alias as what it stands for, and refuses what a person would not read in the text."""

    def __init__(self, name: str, max_values: int) -> None:
        self.name, self.max_values = name, max_values
        self.sizes: dict[yaml.Node, int] = {}  # 0 while the node is open

    def size(self, node: yaml.Node) -> int:
        if node in self.sizes:
            if not self.sizes[node]:
                raise self._error(node, "a value is inside of itself by an alias, so it has no end")
            return self.sizes[node]
        self.sizes[node] = 0
        if node.tag not in _PLAIN_TAGS:
            raise self._error(node, f"the tag {node.tag.replace(_TAG, '!!')}; {_NO_TAG}")
        if node.tag.endswith(":int") and (digits := sum(map(str.isalnum, node.value))) > MAX_DIGITS:
            raise self._error(node, f"a whole number of {digits} digits; allowed: up to {MAX_DIGITS}")
        if isinstance(node, yaml.MappingNode):
            self._require_keys(node)
        inside = [part for _, part in node.value] if isinstance(node, yaml.MappingNode) else node.value
        found = 1 + (0 if isinstance(node, yaml.ScalarNode) else sum(map(self.size, inside)))
        if found > self.max_values:
            raise _too_many(self.name, node.start_mark.line + 1, self.max_values)
        self.sizes[node] = found
        return found

    def _require_keys(self, node: yaml.MappingNode) -> None:
        lines: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "a list or a mapping is in the place of a key; a key is a word")
            if key.value in lines:
                raise self._error(key, f"the key {key.value!r} is in line {lines[key.value]} too; delete one of them")
            if key.tag == _MERGE and not isinstance(value, yaml.MappingNode):
                raise self._error(key, f"{key.value}: it merges a mapping, and this is none")
            lines[key.value] = key.start_mark.line + 1

    def _error(self, node: yaml.Node, words: str) -> UserError:
        return UserError(f"{self.name}:{node.start_mark.line + 1}: {words}")


def _too_many(name: str, line: int, max_values: int) -> UserError:
    return UserError(f"{name}:{line}: more than {max_values:,} values, each alias counted as what it stands for")


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

"""A YAML file with the line of every key and item, so that errors name the line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from orchestrator.errors import UserError
from orchestrator.remainder import Remainder
from orchestrator.untrusted import yaml as untrusted_yaml


@dataclass
class YamlFile:
    """The file as plain data, and the line of each place in it. A place is written `key.key[0]`."""

    rest: Remainder
    data: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)

    def line(self, place: str) -> int:
        """The line of a place; 1 if it is not in the file."""
        return self.lines.get(place, 1)

    def leave_out(self, place: str, message: str, name: str = "") -> None:
        """Leaves out what is at a place. With a `name` the message is of many places."""
        self.rest.add(self.line(place), message if name else f"{place}: {message}", name)

    def mapping(self, key: str) -> dict[str, Any]:
        """The mapping under a key; empty if the key is absent, or is no mapping, which is left out."""
        found = self.data.get(key) or {}
        if isinstance(found, dict):
            return found
        self.leave_out(key, f"{found!r}: allowed: a mapping")
        return {}

    def items(self, key: str) -> list[tuple[str, Any]]:
        """The items of the list under a key, each with its place; a single value counts as a list of one."""
        found = self.data.get(key)
        if not isinstance(found, list):
            return [] if found is None else [(key, found)]
        return [(f"{key}[{i}]", item) for i, item in enumerate(found)]


def load(path: str, kind: str, keys: str) -> YamlFile:
    """Reads a file of a `kind` that has some `keys`. Raises UserError for what `plain_yaml` refuses, and if it is no mapping."""
    try:
        node, data = untrusted_yaml.read(path, "import")
    except UserError as error:
        raise UserError(f"{error}; give {kind}") from None
    if node is None or not isinstance(data, dict):
        raise UserError(f"{path}:1: no mapping; give {kind}, with {keys}")
    file = YamlFile(Remainder(path), data)
    _add_lines(node, "", file.lines)
    return file


def _add_lines(node: yaml.Node, place: str, lines: dict[str, int]) -> None:
    parts: list[tuple[str, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        parts = [(f"{place}.{key.value}".lstrip("."), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        parts = [(f"{place}[{i}]", item, item) for i, item in enumerate(node.value)]
    for name, mark, value in parts:
        lines[name] = mark.start_mark.line + 1
        _add_lines(value, name, lines)

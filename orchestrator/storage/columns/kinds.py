"""The description of a column: its type, unit and meaning, and its value in older rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ColumnType = Literal["string", "int64", "double", "bool", "list<double>", "list<int32>", "timestamp"]
Status = Literal["ok", "unsupported", "skipped", "mismatch", "failed", "timeout", "oom"]


@dataclass(frozen=True)
class FromColumn:
    """A newer column's value in an older row: what `values` has for that of `column`, or `prefix` and that value itself."""

    column: str
    values: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the dataset. `nullable`: a row may have no value in it. `columns.yaml` explains the rest."""

    name: str
    type: ColumnType
    meaning: str
    section: str
    nullable: bool
    unit: str = ""
    only_if_ok: bool = False
    default: object = None
    renamed: Mapping[str, str] = field(default_factory=dict)  # values of older rows, by which they are called today

    def default_in(self, row: Mapping[str, Any]) -> Any:
        """What a row that is older than the column holds in it."""
        if not isinstance(self.default, FromColumn):
            return self.default
        value = row.get(self.default.column)
        return value and self.default.values.get(value, self.default.prefix + value)

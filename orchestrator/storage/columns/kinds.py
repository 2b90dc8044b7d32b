"""The description of a column: its type, unit and meaning, and its value in older rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

ColumnType = Literal["string", "int64", "double", "bool", "list<double>", "list<int32>", "timestamp"]
Status = Literal["ok", "unsupported", "skipped", "mismatch", "failed", "timeout", "oom"]


@dataclass(frozen=True)
class FromColumn:
    """The value of a newer column in an older row: the value of `column`, or another one that `values` gives for it.

    `prefix` stands before a value that `values` does not have.
    """

    column: str
    values: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""


@dataclass(frozen=True)
class About:
    """The meaning of a column. `default` is its value in rows that are older than the column."""

    meaning: str
    unit: str = ""
    default: object = None
    renamed: Mapping[str, str] = field(default_factory=dict)  # values of older rows, by which they are called today
    timestamp: bool = False  # text in ISO 8601 until it reaches Parquet
    only_if_ok: ClassVar[bool] = False


class IfOk(About):
    """The meaning of a column that is null unless the status is `ok`, since the time of a wrong answer means nothing."""

    only_if_ok = True


@dataclass(frozen=True)
class Column:
    """A column of the dataset. `nullable`: a row may have no value in it."""

    name: str
    type: ColumnType
    unit: str
    meaning: str
    section: str
    nullable: bool
    only_if_ok: bool
    default: object
    renamed: Mapping[str, str]

    def default_in(self, row: Mapping[str, Any]) -> Any:
        """What a row that is older than the column holds in it."""
        if not isinstance(self.default, FromColumn):
            return self.default
        value = row.get(self.default.column)
        return value and self.default.values.get(value, self.default.prefix + value)

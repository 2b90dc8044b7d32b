"""The row and its dictionary: every column with its type, unit and meaning. Everything else that knows columns is derived from it.

`Row` is what mypy checks. `COLUMNS` holds the same columns at run time, with what `columns.yaml` says of them, in the order of the
dataset. The Parquet schema, the SQL types, `docs/columns.md` and the dashboard's tooltips come from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints, is_typeddict

import yaml

from kernels.problem import Problem
from kernels.timing.config import RENAMED_L2
from orchestrator.storage.columns import sections
from orchestrator.storage.columns.sections import Status

__all__ = ["CALLED", "COLUMNS", "RESULT_COLUMNS", "SECTIONS", "Column", "ColumnType", "FromColumn", "Row", "Status"]

ColumnType = Literal["string", "int64", "double", "bool", "list<double>", "list<int32>", "timestamp"]
CALLED: dict[ColumnType, tuple[str, str]] = {  # in SQL, and in messages
    "string": ("VARCHAR", "text"), "int64": ("BIGINT", "whole number"), "double": ("DOUBLE", "number"),
    "bool": ("BOOLEAN", "true or false"), "list<double>": ("DOUBLE[]", "list of numbers"),
    "list<int32>": ("INTEGER[]", "list of whole numbers"),
    "timestamp": ("TIMESTAMP WITH TIME ZONE", "time with its zone, from 1970 to 2261"),
}  # fmt: skip


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
        of = self.default.column
        value = row[of] if of in row else COLUMNS[of].default_in(row)
        return value and self.default.values.get(value, self.default.prefix + value)


class Row(
    sections.Identity,
    sections.ProblemColumns,
    sections.TimeColumns,
    sections.EnergyColumns,
    sections.HostColumns,
    sections.EngineColumns,
    sections.RateColumns,
    sections.CheckColumns,
    sections.CostColumns,
    sections.ProvenanceColumns,
    total=False,
):
    """A row, or the part of it that is known so far. `row.finish` completes it: then every column is there."""


SECTIONS = {one.__name__.removesuffix("Columns").lower(): one for one in vars(sections).values() if is_typeddict(one)}
TYPES: dict[object, ColumnType] = {
    str: "string", Status: "string", int: "int64", float: "double", bool: "bool", list[float]: "list<double>",
    list[int]: "list<int32>", list[int | None]: "list<int32>",
}  # fmt: skip
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
ABOUT: dict[str, dict[str, Any]] = yaml.load(files(__name__).joinpath("columns.yaml").read_text(encoding="utf-8"), LOADER)
RENAMED = {"l2": RENAMED_L2}


def _column(name: str, value: Any, section: str) -> Column:
    about = dict(ABOUT[name])
    choices = get_args(value) if NoneType in get_args(value) else (value,)
    (kind,) = (choice for choice in choices if choice is not NoneType)
    if isinstance(about.get("default"), dict):
        about["default"] = FromColumn(**about["default"])
    if name in Problem.model_fields and not Problem.model_fields[name].is_required():
        about["default"] = Problem.model_fields[name].default  # an older problem was what the default says
    of_type: ColumnType = "timestamp" if about.pop("timestamp", False) else TYPES[kind]
    told = {"only_if_ok": about.pop("if_ok", False), "renamed": RENAMED.get(name, {}), **about}
    return Column(name=name, type=of_type, section=section, nullable=len(choices) > 1, **told)


COLUMNS: dict[str, Column] = {
    name: _column(name, value, section) for section, part in SECTIONS.items() for name, value in get_type_hints(part).items()
}

RESULT_COLUMNS = tuple(column.name for column in COLUMNS.values() if column.only_if_ok)

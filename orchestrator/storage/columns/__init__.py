"""The row and its dictionary: every column with its type, unit and meaning. Everything else that knows columns is derived from it.

`Row` is what mypy checks. `COLUMNS` holds the same columns at run time, with what `columns.yaml` says of them, in the order of the
dataset. The Parquet schema, the SQL types, `docs/columns.md` and the dashboard's tooltips come from it.
"""

from __future__ import annotations

from importlib.resources import files
from types import NoneType
from typing import Any, get_args, get_type_hints, is_typeddict

import yaml

from kernels.problem import Problem
from kernels.timing.config import RENAMED_L2
from orchestrator.storage.columns import sections
from orchestrator.storage.columns.kinds import Column, ColumnType, FromColumn, Status

__all__ = ["COLUMNS", "RESULT_COLUMNS", "SECTIONS", "Column", "ColumnType", "FromColumn", "Row", "Status"]


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
    str: "string",
    Status: "string",
    int: "int64",
    float: "double",
    bool: "bool",
    list[float]: "list<double>",
    list[int]: "list<int32>",
    list[int | None]: "list<int32>",
}


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

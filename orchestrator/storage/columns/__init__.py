"""The row and its dictionary: every column with its type, unit and meaning. Everything else that knows columns is derived from it.

`Row` is what mypy checks. `COLUMNS` holds the same columns at run time, in the order of the dataset. The Parquet schema, the SQL
types, `docs/columns.md` and the dashboard's tooltips come from it.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args, get_type_hints

from kernels.problem import Problem
from orchestrator.storage.columns.kinds import Column, ColumnType, FromColumn, Status
from orchestrator.storage.columns.points import CheckColumns, CostColumns, Identity, ProblemColumns, ProvenanceColumns, RateColumns
from orchestrator.storage.columns.times import EnergyColumns, EngineColumns, HostColumns, TimeColumns

__all__ = ["COLUMNS", "RESULT_COLUMNS", "SECTIONS", "Column", "ColumnType", "FromColumn", "Row", "Status"]


class Row(
    Identity,
    ProblemColumns,
    TimeColumns,
    EnergyColumns,
    HostColumns,
    EngineColumns,
    RateColumns,
    CheckColumns,
    CostColumns,
    ProvenanceColumns,
    total=False,
):
    """A row, or the part of it that is known so far. `row.finish` completes it: then every column is there."""


SECTIONS: dict[str, Any] = {
    "identity": Identity,
    "problem": ProblemColumns,
    "time": TimeColumns,
    "energy": EnergyColumns,
    "host": HostColumns,
    "engine": EngineColumns,
    "rate": RateColumns,
    "check": CheckColumns,
    "cost": CostColumns,
    "provenance": ProvenanceColumns,
}
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


def _column(name: str, annotated: Any, section: str) -> Column:
    value, about = get_args(annotated)
    choices = get_args(value) if NoneType in get_args(value) else (value,)
    (kind,) = (choice for choice in choices if choice is not NoneType)
    default = about.default
    if name in Problem.model_fields and not Problem.model_fields[name].is_required():
        default = Problem.model_fields[name].default  # an older problem was what the default says
    return Column(
        name,
        "timestamp" if about.timestamp else TYPES[kind],
        about.unit,
        about.meaning,
        section,
        len(choices) > 1,
        about.only_if_ok,
        default,
        about.renamed,
    )


COLUMNS: dict[str, Column] = {
    name: _column(name, annotated, section)
    for section, part in SECTIONS.items()
    for name, annotated in get_type_hints(part, include_extras=True).items()
}

RESULT_COLUMNS = tuple(column.name for column in COLUMNS.values() if column.only_if_ok)

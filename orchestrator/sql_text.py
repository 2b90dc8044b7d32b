"""A row's columns as DuckDB is told of them: their types, today's columns of an older file, a condition on values. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping

from kernels.problem import Problem
from orchestrator.errors import UserError, unknown
from orchestrator.row import COLUMNS, OLD_ICACHE

Where = Mapping[str, object]  # a column's value, or several in a tuple, by its name
TYPES = {
    "string": "VARCHAR",
    "int64": "BIGINT",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "list": "DOUBLE[]",
    "integers": "INTEGER[]",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
}


def todays_columns(known: Mapping[str, str]) -> str:
    """A SELECT list of today's columns: a row from before an axis or a column existed stands at its default, or has null.

    `known` are the types of columns there are. One of the right type stands as it is, so that DuckDB finds its extremes in the
    file's statistics, which it does not see through a cast.
    """
    defaults = {name: field.default for name, field in Problem.model_fields.items() if not field.is_required()}
    selected = []
    older = {name: literal(default) for name, default in defaults.items()}
    if "l2" in known:
        whens = " ".join(f"WHEN {literal(l2)} THEN {literal(icache)}" for l2, icache in OLD_ICACHE.items())
        older["icache"] = f"(CASE l2 {whens} ELSE l2 END)"
    for name, kind in COLUMNS.items():
        value = quoted(name) if name in known else older.get(name, "NULL")
        selected.append(quoted(name) if known.get(name) == TYPES[kind] else f"{value}::{TYPES[kind]} AS {quoted(name)}")
    return ", ".join(selected)


def condition(where: Where) -> str:
    """SQL over words, in which DuckDB and a person write a number or a truth alike. Raises UserError for an unknown column."""
    single = [name for name, kind in COLUMNS.items() if kind not in ("list", "integers")]
    parts = ["true"]
    for column, wanted in where.items():
        if column not in single:
            raise UserError(unknown("where", column, single))
        values = wanted if isinstance(wanted, tuple) else (wanted,)
        words = (literal(str(value).lower() if isinstance(value, bool) else str(value)) for value in values)
        parts.append(f"CAST({quoted(column)} AS VARCHAR) IN ({', '.join(words) or 'NULL'})")
    return " AND ".join(parts)


def quoted(name: str) -> str:
    return f'"{name}"'


def literal(value: object) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, bool | int | float) else "'" + str(value).replace("'", "''") + "'"

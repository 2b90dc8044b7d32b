"""A row's columns in SQL: their types, today's columns of an older file, a condition on values. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from orchestrator.config.model import CUSTOM, LENT
from orchestrator.config.ranges import Bounds, several
from orchestrator.config.weights import WEIGHT, WeightRules
from orchestrator.errors import SHORT_NAMES, UserError, unknown
from orchestrator.storage.columns import CALLED, COLUMNS, Column, ColumnType, FromColumn

Where = Mapping[str, object]  # a column's value (None: rows without one), or several in a tuple, by its name
LISTS: tuple[ColumnType, ...] = ("list<double>", "list<int32>")
NUMBERS: tuple[ColumnType, ...] = ("int64", "double")
NUMBER = re.compile(r"[-+]?\d*\.?\d*(e[-+]?\d+)?")
COMPUTED = (  # columns of question=best that no row has
    *("kernel", "runner_up", "margin", "runner_up_rel_err", "err_ratio", "rough", "runner_up_rough", "reference_us"),
    *("reference_backend", "noise_floor", "above_noise"),
)


def query(name: str, **values: str | float) -> str:
    """A query of queries.yaml by its name, with these values in the places of their names."""
    return _queries()[name].format(**values)


@cache
def _queries() -> dict[str, str]:
    found: dict[str, str] = yaml.safe_load(files(__package__).joinpath("queries.yaml").read_text(encoding="utf-8"))
    return found


class OfEngines(tuple[Any, ...]):
    """Values of a column that rows of a running engine alone must have: those beside them stay."""


class LentRows(dict[str, Any]):
    """Values of rows that answer for a model with the same heads; `columns` is SQL: its name, and whose rows they are, and `tp`."""

    def __init__(self, model: str, tp: int, values: Where) -> None:
        super().__init__(values)
        self.lender = "true"  # SQL: whether a row is of the one model that answers on its GPU over its cache
        whose = f"{literal(model + LENT)} || coalesce(model, '{CUSTOM}') || ', same heads)'"
        self.columns = f"if(model IS NOT DISTINCT FROM {literal(model)}, model, {whose}) AS model, {tp}::BIGINT AS tp"


def todays_columns(known: Mapping[str, str]) -> str:
    """A SELECT list of today's columns. A column that is not in the file has its default.

    `known` has the SQL type of each column of the file. A column of the right type is selected without a cast: DuckDB finds its
    minimum and maximum in the file's statistics, which it cannot use through a cast.
    """
    selected = []
    for name, column in COLUMNS.items():
        value, kind = _case(name, column.renamed, quoted(name)) if name in known else default(column, known), sql_type(name)
        as_it_is = known.get(name) == kind and not column.renamed
        selected.append(quoted(name) if as_it_is else f"{value}::{kind} AS {quoted(name)}")
    return ", ".join(selected)


def _case(column: str, values: Mapping[str, object], otherwise: str) -> str:
    """A column of an older file, with some values in the place of others. `storage/parquet.py` does the same for pyarrow."""
    whens = " ".join(f"WHEN {literal(value)} THEN {literal(other)}" for value, other in values.items())
    return f"(CASE {quoted(column)} {whens} ELSE {otherwise} END)" if whens else f"({otherwise})"


def default(column: Column, known: Mapping[str, str]) -> str:
    """What a row of an older file holds in a column that came later. `storage/parquet.py` says the same for pyarrow."""
    default = column.default
    if not isinstance(default, FromColumn):
        return literal(default)
    if default.column not in known:
        return literal(column.default_in({}))
    return _case(default.column, default.values, f"{literal(default.prefix)} || {quoted(default.column)}")


def condition(where: Where) -> str:
    """The condition in SQL, by values as text, as DuckDB and people write them. Raises UserError for an unknown column."""
    require_columns(where)
    parts = [(among(column, several(wanted)), isinstance(wanted, OfEngines)) for column, wanted in where.items()]
    return " AND ".join(["true", *(f"({part} OR context IS DISTINCT FROM 'engine')" if beside else part for part, beside in parts)])


def among(column: str, values: Sequence[object]) -> str:
    """The condition in SQL that a column has one of these values, of which some may be ranges. Raises UserError for a text."""
    words = [_as_text(value) for value in values if not isinstance(value, Bounds | None)]
    listed = ", ".join(literal(COLUMNS[column].renamed.get(word, word)) for word in words) or "NULL"
    parts, of_numbers = [f"CAST({quoted(column)} AS VARCHAR) IN ({listed})"], COLUMNS[column].type in NUMBERS
    parts += [f"{quoted(column)} IS NULL"] * (None in values)
    for one in values:
        if isinstance(one, str) and of_numbers and not NUMBER.fullmatch(one):
            allowed = "allowed for columns of numbers: a number, [several], or a range with from, to or both"
            raise UserError(f"where.{column}={one}: {allowed}; type 'where={{{column}: {{from: 2048, to: 20000}}}}'")
        hint = f"did you mean '{SHORT_NAMES[column]}'?" if column in SHORT_NAMES else "type a value, or [several]"
        if not of_numbers and isinstance(one, Bounds | int if column in SHORT_NAMES else Bounds):
            raise UserError(f"where.{column}={one!r}: allowed for columns of numbers; {hint}")
        if isinstance(one, Bounds):
            ends = [f"{quoted(column)} {sign} {end}" for sign, end in ((">=", one.low), ("<=", one.high)) if end is not None]
            parts.append(f"({' AND '.join(ends)})")
    return f"({' OR '.join(parts)})"


def require_columns(names: Iterable[str]) -> None:
    """Raises UserError for names in `where` that are no columns of single values; it says which of them a report computes."""
    single = [name for name, column in COLUMNS.items() if column.type not in LISTS]
    told = "where: '{0}' is in no row, as a report computes it; type mode=report question=best columns=[{0}]"
    if wrong := [told.format(one) if one in COMPUTED else unknown("where", one, single) for one in names if one not in single]:
        raise UserError("\n".join(wrong))


def weight_sql(weights: WeightRules) -> str:
    """The weight of a problem in SQL: the sum of the weights of the entries whose keys it has; 1 if there are no entries."""
    parts = []
    for entry in weights:
        same = (f"CAST({quoted(key)} AS VARCHAR) = {literal(_as_text(value))}" for key, value in entry.items() if key != WEIGHT)
        parts.append(f"if({' AND '.join(['true', *same])}, {float(entry[WEIGHT])}, 0)")
    return " + ".join(parts) or "1.0"


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def sql_type(name: str) -> str:
    return CALLED[COLUMNS[name].type][0]


def quoted(name: str) -> str:
    return f'"{name}"'


def file_literal(path: str) -> str:
    """A file for DuckDB as it is, which would take *, ? and [ in its path for a pattern."""
    return literal(re.sub(r"[*?[]", r"[\g<0>]", path))


def literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(literal, value))}]"
    return str(value) if isinstance(value, bool | int | float) else "'" + str(value).replace("'", "''") + "'"


def text_of(value: object, nothing: str = "") -> str:
    """A value of a row as text; `nothing` for one that is missing."""
    if value is None or value != value:  # noqa: PLR0124  # NaN, as pandas reads null
        return nothing
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)

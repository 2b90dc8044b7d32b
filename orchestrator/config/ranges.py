"""Ranges: `{from: 1, to: 128, factor: 2}` is its numbers, ends included; without step or factor, all numbers between its ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from kernels.problem.dtypes import ALIASES, DTYPES
from orchestrator.config.base import Scalar
from orchestrator.errors import as_typed, unknown

KEYS = frozenset({"from", "to", "step", "factor"})
MAX_VALUES = 10_000
STEPPED = "allowed: {from: 4096, to: 60000, step: 4096} or {from: 1024, to: 131072, factor: 2}"
BOUNDED = "allowed: {from: 4096, to: 60000}, either of them alone, or with a step or a factor"

Number = int | float


@dataclass(frozen=True)
class Bounds:
    """All numbers from `low` to `high`, both included; None is no bound."""

    low: Number | None = None
    high: Number | None = None

    def __contains__(self, value: object) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (self.low is None or self.low <= value) and (self.high is None or value <= self.high)  # type: ignore[operator]

    def __repr__(self) -> str:
        ends = {"from": self.low, "to": self.high}
        return as_typed({key: value for key, value in ends.items() if value is not None})

    def __str__(self) -> str:
        return " ".join(f"{word} {value}" for word, value in (("from", self.low), ("to", self.high)) if value is not None)


class Allowed(tuple[Any, ...]):
    """Values of a filter, of which some may be ranges: `in` asks all of them."""

    def __contains__(self, value: object) -> bool:
        return super().__contains__(value) or any(isinstance(one, Bounds) and value in one for one in self)


def is_range(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and value.keys() <= KEYS


def numbers(name: str, values: Iterable[Any]) -> Iterator[Any]:
    """The values of an axis, in which a range is its numbers. Raises ValueError for one without a step or a factor."""
    for value in values:
        yield from _numbers(name, value) if is_range(value) else (value,)


def filters(name: str, values: Iterable[Any]) -> Iterator[Any]:
    """The values of a filter, in which a range is its numbers or, without a step or a factor, a `Bounds`. Raises ValueError."""
    for value in values:
        if not is_range(value) or {"step", "factor"} & value.keys():
            yield from numbers(name, [value])
        elif not all(map(_is_number, value.values())) or value.get("from", -math.inf) > value.get("to", math.inf):
            raise ValueError(f"{name}={as_typed(value)}: {BOUNDED}")
        else:
            yield Bounds(value.get("from"), value.get("to"))


def several(value: object) -> tuple[Any, ...]:
    """The values of a key of a filter, also if it has one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _filter(given: Any) -> object:
    """Columns, each with one value (null: none), several, or a range. None selects every row."""
    wrong = ValueError(
        f"where={as_typed(given)}: allowed: columns with a value, several or a range, such as "
        "{s_qo: [1, 4], kv_dtype: bf16, s_kv: {from: 4096, to: 60000}}"
    )
    if not isinstance(given, dict | None):
        raise wrong
    found = {}
    for key, value in (given or {}).items():
        values = tuple(filters(f"where.{key}", several(value)))
        if not values or not all(isinstance(one, Scalar | Bounds | None) for one in values):
            raise wrong
        if key.endswith("dtype"):
            values = tuple(ALIASES.get(str(one), one) for one in values)
            if others := {str(one) for one in values if one is not None}.difference(DTYPES):
                raise ValueError(unknown(f"where.{key}", others.pop(), DTYPES))
        found[key] = values if len(values) > 1 or isinstance(value, list | tuple) else values[0]
    return found


Value = Scalar | Bounds | None  # None: rows without a value
Filter = Annotated[dict[str, Value | tuple[Value, ...]], BeforeValidator(_filter)]


def _numbers(name: str, given: Mapping[str, Any]) -> list[Number]:
    """The numbers of a range. Multiplied, whole ends give whole numbers."""
    shown, how = f"{name}={as_typed(given)}", given.keys() - {"from", "to"}
    if len(given) != 3 or len(how) != 1 or not all(map(_is_number, given.values())) or given["from"] > given["to"]:
        raise ValueError(f"{shown}: {STEPPED}")
    first, last, (key,) = given["from"], given["to"], how
    by = given[key]
    if by <= 0 or (key == "factor" and (by <= 1 or first <= 0)):
        raise ValueError(f"{shown}: a step is greater than 0, and a factor greater than 1 from a number above 0; {STEPPED}")
    count = (last - first) / by if key == "step" else math.log(last / first) / math.log(by)
    if count >= MAX_VALUES:
        raise ValueError(f"{shown}: more than {MAX_VALUES:,} values; take a larger {key}")
    every = range(math.floor(count + 1e-9) + 1)  # 0.1 + 2 * 0.1 is more than 0.3
    if key == "step":
        return [first + i * by for i in every]
    whole = isinstance(first, int) and isinstance(last, int)
    return list(dict.fromkeys(round(first * by**i) if whole else first * by**i for i in every))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

"""Ranges of numbers, as a sweep or a filter names them: `{from: 4096, to: 60000, step: 4096}`, `{from: 1, to: 128, factor: 2}`.

With a step or a factor a range stands for its numbers, both ends included, and without one for all numbers between its ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from orchestrator.config.base import Scalar
from orchestrator.errors import as_typed

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
        if not is_range(value):
            yield value
            continue
        if not {"from", "to"} <= value.keys() or len(value) != 3:
            raise ValueError(f"{name}={as_typed(value)}: {STEPPED}")
        yield from _numbers(name, **{f"{key}_": number for key, number in value.items()})


def filters(name: str, values: Iterable[Any]) -> Iterator[Any]:
    """The values of a filter, in which a range is its numbers or, without a step or a factor, a `Bounds`. Raises ValueError."""
    for value in values:
        if not is_range(value):
            yield value
        elif {"step", "factor"} & value.keys():
            yield from numbers(name, [value])
        elif not all(map(_is_number, value.values())) or value.get("from", -math.inf) > value.get("to", math.inf):
            raise ValueError(f"{name}={as_typed(value)}: {BOUNDED}")
        else:
            yield Bounds(value.get("from"), value.get("to"))


def several(value: object) -> tuple[Any, ...]:
    """The values of a key of a filter, also if it has one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _filter(given: Any) -> object:
    """Columns, each with one value, several, or a range. None selects every row."""
    columns = {} if given is None else given
    parts = (
        {key: tuple(filters(f"where.{key}", several(value))) for key, value in columns.items()}
        if isinstance(columns, dict)
        else None
    )
    if (
        parts is None
        or not all(parts.values())
        or not all(isinstance(part, Scalar | Bounds) for values in parts.values() for part in values)
    ):
        raise ValueError(
            f"where={as_typed(given)}: allowed: columns with a value, several or a range, such as "
            "{s_qo: [1, 4], kv_dtype: bf16, s_kv: {from: 4096, to: 60000}}"
        )
    return {
        key: values if len(values) != 1 or isinstance(columns[key], list | tuple) else values[0] for key, values in parts.items()
    }


Value = Scalar | Bounds
Filter = Annotated[dict[str, Value | tuple[Value, ...]], BeforeValidator(_filter)]


def _numbers(name: str, from_: Number, to_: Number, step_: Number | None = None, factor_: Number | None = None) -> list[Number]:
    """The numbers of a range. Multiplied, whole ends give whole numbers."""
    given = {"from": from_, "to": to_, **({"factor": factor_} if step_ is None else {"step": step_})}
    shown = f"{name}={as_typed(given)}"
    if not all(map(_is_number, given.values())) or from_ > to_:
        raise ValueError(f"{shown}: {STEPPED}")
    if (step_ is not None and step_ <= 0) or (factor_ is not None and (factor_ <= 1 or from_ <= 0)):
        raise ValueError(f"{shown}: a step is greater than 0, and a factor greater than 1 from a number above 0; {STEPPED}")
    whole = isinstance(from_, int) and isinstance(to_, int)
    count = (to_ - from_) / step_ if step_ is not None else math.log(to_ / from_) / math.log(factor_ or 1)
    if count >= MAX_VALUES:
        raise ValueError(f"{shown}: more than {MAX_VALUES:,} values; take a larger {'factor' if step_ is None else 'step'}")
    every = range(math.floor(count + 1e-9) + 1)  # 0.1 + 2 * 0.1 is more than 0.3
    if step_ is not None:
        return [from_ + i * step_ for i in every]
    return list(dict.fromkeys(round(from_ * factor_**i) if whole else from_ * factor_**i for i in every))  # type: ignore[operator]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

"""The base of what is read from YAML and typed words: immutable, without unknown keys, and true is no number."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class Data(BaseModel):
    """Raises pydantic's ValidationError for an unknown key, and for true or false in the place of a number."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and _takes_only_numbers(cls, info.field_name or ""):
            raise PydanticCustomError("float_type", "a number")
        return value


@cache
def _takes_only_numbers(model: type[BaseModel], name: str) -> bool:
    kinds = _kinds(model.model_fields[name].annotation)
    return bool(kinds & {int, float}) and bool not in kinds


def _kinds(annotation: Any) -> set[type]:
    """The plain types in an annotation."""
    if not get_args(annotation):
        return {annotation} if isinstance(annotation, type) else set()
    return set().union(*map(_kinds, get_args(annotation)))

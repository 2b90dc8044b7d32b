"""The base of all configuration: immutable, and unknown keys are errors."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

Scalar = bool | int | float | str


class Frozen(BaseModel):
    """An immutable model without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

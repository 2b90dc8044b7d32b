"""What all configuration is: closed, and never changed."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

Scalar = bool | int | float | str


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

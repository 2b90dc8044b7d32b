"""The limit on the error of an answer that a report ranks."""

from __future__ import annotations

from pydantic import PositiveFloat

from orchestrator.config.base import Frozen


class Best(Frozen):
    """`max_rel_err` is the largest relative error that a ranked answer may have; None ranks every answer that passed its check.

    Answers that were not checked are then left out too.
    """

    max_rel_err: PositiveFloat | None = None

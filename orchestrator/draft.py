"""What the best draft length depends on beside what is measured."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, NonNegativeFloat, PositiveInt, model_validator

from orchestrator.frozen import Frozen


def _chances(given: Any) -> float | tuple[float, ...]:
    """One chance, or one for each position of a draft."""
    several = isinstance(given, list | tuple)
    chances = tuple(given) if several else (given,)
    if not chances or not all(isinstance(c, int | float) and not isinstance(c, bool) and 0 <= c <= 1 for c in chances):
        raise ValueError(
            f"draft.acceptance={given!r}: allowed: a chance from 0 to 1, or one for each position such as [0.9,0.8,0.7]"
        )
    return chances if several else chances[0]


class Draft(Frozen):
    """What the best draft length depends on beside attention; times in microseconds.

    `acceptance` is the chance that a drafted token is accepted: one value, or one for each position given that all before it
    were accepted. `layers` of attention and `rest_us` (everything else of a target step) make the time of a step, to which a
    draft adds `start_us` once and `cost_us` for each of its tokens. Without any of them the answer is about attention alone.
    """

    acceptance: Annotated[float | tuple[float, ...], BeforeValidator(_chances)] = 0.8
    layers: PositiveInt | None = None
    rest_us: NonNegativeFloat = 0
    start_us: NonNegativeFloat = 0
    cost_us: NonNegativeFloat = 0

    @model_validator(mode="after")
    def _whole_steps(self) -> Self:
        """What a step costs beside attention means nothing next to a single layer of it."""
        if self.layers is None and (given := [key for key in ("rest_us", "start_us", "cost_us") if getattr(self, key)]):
            raise ValueError(
                f"draft.layers: needed beside draft.{given[0]}, since a row times one layer of attention; "
                f"type draft.layers=80 for Llama-3.1-70B, 32 for 8B, 61 for DeepSeek-V3"
            )
        return self

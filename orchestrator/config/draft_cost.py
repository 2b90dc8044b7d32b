"""What the best draft length depends on besides the measured time of attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveInt, model_validator

from orchestrator.config.base import Frozen, own_table
from orchestrator.errors import unknown

FOLDER, THINKING = "golden_al_distribution", "_thinking"  # which ends the name of a curve with thinking on


@dataclass(frozen=True)
class Curve:
    """`tokens[k - 1]` is what a step with k drafted tokens yields, the target's own one included."""

    what: str
    source: str
    tokens: tuple[float, ...]

    def expected(self, s_qo: int) -> float | None:
        """The tokens of a step over `s_qo` = k + 1 query tokens; None if k was not measured."""
        if s_qo == 1:
            return 1.0
        return self.tokens[s_qo - 2] if s_qo - 1 <= len(self.tokens) else None


CURVES = {
    f"{name}{THINKING * (how == 'thinking')}": Curve(
        f"{model['what']}, thinking {'on' if how == 'thinking' else 'off'}", f"{FOLDER}/{model['file']}", tuple(model[how])
    )
    for name, model in own_table("acceptance").items()
    for how in ("thinking", "plain")
    if how in model
}

MAX_LAYERS = 100_000  # far more than any model has
COSTS = ("rest_us", "start_us", "cost_us")  # of a whole step
Microseconds = Annotated[NonNegativeFloat, Field(allow_inf_nan=False)]


def _probabilities(given: Any) -> float | tuple[float, ...] | str:
    """A probability, or one for each position of a draft, or the name of a measured curve."""
    if isinstance(given, str):
        if given not in CURVES:
            raise ValueError(unknown("draft.acceptance", given, CURVES) + "; or a probability, or one for each position")
        return given
    several = isinstance(given, list | tuple)
    found = tuple(given) if several else (given,)
    if not found or not all(isinstance(p, int | float) and not isinstance(p, bool) and 0 <= p <= 1 for p in found):
        raise ValueError(f"draft.acceptance={given!r}: allowed: from 0 to 1, or one for each position such as [0.9,0.8,0.7]")
    return found if several else found[0]


class Draft(Frozen):
    """The costs of drafting and of the target model's step, in microseconds.

    `acceptance` is the probability that a drafted token is accepted: one value, or one for each position, given that all tokens
    before it were accepted; or the name of a measured curve (`conf/acceptance.yaml`). The time of a step is `layers` times
    attention plus `rest_us` for the rest of the target model, all its layers together; a draft adds `start_us` once and `cost_us`
    for each of its tokens. `rest` takes the rest of the model from measurement: `preset`, or a dataset of timing.context=step or
    engine. `layers` are then the model's own, unless given. Without the rest no step is whole.
    """

    acceptance: Annotated[float | tuple[float, ...] | str, BeforeValidator(_probabilities)] = 0.8
    layers: Annotated[PositiveInt, Field(le=MAX_LAYERS)] | None = None
    rest: str | None = None
    rest_us: Microseconds = 0
    start_us: Microseconds = 0
    cost_us: Microseconds = 0

    @property
    def whole_steps(self) -> bool:
        """Whether the answer is about steps of a model, and not about its attention alone."""
        return self.rest is not None or self.rest_us > 0

    @model_validator(mode="after")
    def _whole_steps(self) -> Self:
        """Costs of a whole step need the number of layers: a row times one layer."""
        if self.rest is not None and self.rest_us:
            raise ValueError(f"draft.rest_us={self.rest_us:g}: draft.rest={self.rest} measures it; leave one of them out")
        given = [key for key in COSTS if getattr(self, key)]
        if given and self.layers is None and self.rest is None:
            words = "since a row times one layer of attention; type model=NAME, or draft.layers=80 with its own number"
            raise ValueError(f"draft.layers: needed with draft.{given[0]}, {words}")
        return self

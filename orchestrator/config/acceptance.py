"""Measured acceptance by name: the tokens that a step yields for each number of drafted tokens. AL = 1 + accepted / drafts."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.base import own_table

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

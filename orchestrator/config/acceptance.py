"""Measured acceptance by name: the tokens that a step yields for each number of drafted tokens.

InferenceX's golden acceptance lengths: github.com/SemiAnalysisAI/InferenceX, folder `golden_al_distribution`, read in November
2026. AL = 1 + accepted / drafts, SPEED-Bench coding, temperature 1.0, up to 4,096 output tokens, measured on B300 with vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

MINIMAX, DSPARK = "golden_al_distribution/minimaxm3_eagle3.yaml", "golden_al_distribution/dsv4_dspark_probabilistic.yaml"


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


@cache
def curves() -> dict[str, Curve]:
    """Every curve by its name."""
    return {
        "minimax_m3_eagle3_thinking": Curve(
            "MiniMax-M3 with EAGLE-3, thinking on", MINIMAX, (1.78, 2.38, 2.83, 3.11, 3.35, 3.45, 3.53, 3.74)
        ),
        "minimax_m3_eagle3": Curve(
            "MiniMax-M3 with EAGLE-3, thinking off", MINIMAX, (1.84, 2.52, 2.93, 3.41, 3.59, 3.57, 3.85, 4.06)
        ),
        "deepseek_v4_pro_dspark_thinking": Curve(
            "DeepSeek-V4-Pro with DSpark, thinking on", DSPARK, (1.86, 2.55, 3.08, 3.43, 3.74, 3.82, 3.86, 3.75)
        ),
        "deepseek_v4_pro_dspark": Curve(
            "DeepSeek-V4-Pro with DSpark, thinking off", DSPARK, (1.93, 2.76, 3.47, 4.10, 4.52, 4.87, 4.94, 4.94)
        ),
    }

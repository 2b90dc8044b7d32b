"""Measured acceptance by name: the tokens that a step yields for each number of drafted tokens.

InferenceX's golden acceptance lengths: github.com/SemiAnalysisAI/InferenceX, folder `golden_al_distribution`, as of August 2026
(commit 843c6254; `dsv4_*_probabilistic.yaml` are of other commits). AL = 1 + accepted / drafts, SPEED-Bench coding, each model's
own sampling settings, up to 4,096 output tokens, measured on B300 with vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def _measured(
    name: str, what: str, file: str, thinking: tuple[float, ...], plain: tuple[float, ...] | None = None
) -> dict[str, Curve]:
    """The curves of a model with a drafter, by name, for 1 to 8 drafted tokens: with thinking on, and with it off if measured."""
    source = f"{FOLDER}/{file}"
    found = {name + THINKING: Curve(f"{what}, thinking on", source, thinking)}
    return found if plain is None else {**found, name: Curve(f"{what}, thinking off", source, plain)}


CURVES = {
    **_measured(
        "minimax_m3_eagle3",
        "MiniMax-M3 with EAGLE-3",
        "minimaxm3_eagle3.yaml",
        (1.78, 2.38, 2.83, 3.11, 3.35, 3.45, 3.53, 3.74),
        (1.84, 2.52, 2.93, 3.41, 3.59, 3.57, 3.85, 4.06),
    ),
    **_measured(
        "minimax_m3_eagle3_gqa",
        "MiniMax-M3 with EAGLE-3 (GQA)",
        "minimaxm3_eagle3_gqa.yaml",
        (1.79, 2.39, 2.78, 3.02, 3.21, 3.30, 3.52, 3.51),
        (1.83, 2.46, 2.97, 3.29, 3.72, 3.76, 3.75, 3.93),
    ),
    **_measured(
        "deepseek_v4_pro_mtp",
        "DeepSeek-V4-Pro with MTP",
        "dsv4_mtp.yaml",
        (1.79, 2.27, 2.49, 2.54, 2.55, 2.55, 2.54, 2.58),
        (1.92, 2.61, 2.97, 3.00, 3.10, 3.16, 3.00, 3.11),
    ),
    **_measured(
        "deepseek_v4_pro_dspark",
        "DeepSeek-V4-Pro with DSpark",
        "dsv4_dspark_probabilistic.yaml",
        (1.86, 2.55, 3.08, 3.43, 3.74, 3.82, 3.86, 3.75),
        (1.93, 2.76, 3.47, 4.10, 4.52, 4.87, 4.94, 4.94),
    ),
    **_measured(
        "deepseek_v4_pro_0813_dspark",
        "DeepSeek-V4-Pro-0813 with DSpark",
        "dsv4_0813_dspark_probabilistic.yaml",
        (1.84, 2.51, 3.01, 3.36, 3.61, 3.77, 3.73, 3.47),
        (1.94, 2.81, 3.58, 4.17, 4.74, 5.12, 5.24, 4.95),
    ),
    **_measured("glm_5_2_mtp", "GLM-5.2 with MTP", "glm5.2_mtp.yaml", (1.84, 2.50, 2.99, 3.33, 3.61, 3.78, 3.91, 4.06)),
    **_measured(
        "kimi_k2_5_eagle3",
        "Kimi-K2.5 with EAGLE-3",
        "kimik2.5_eagle3.yaml",
        (1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77),
        (1.80, 2.33, 2.75, 3.06, 3.25, 3.43, 3.46, 3.51),
    ),
    **_measured("kimi_k3_dspark", "Kimi-K3 with DSpark", "kimik3_dspark.yaml", (1.84, 2.45, 2.87, 3.22, 3.44, 3.54, 3.78, 3.88)),
    **_measured(
        "kimi_k3_dspark_block",
        "Kimi-K3 with DSpark, drawn drafts and block verification",
        "kimik3_dspark_probabilistic_sample_method_block_rejection_sample_method.yaml",
        (1.85, 2.51, 3.00, 3.36, 3.62, 3.75, 3.84, 4.00),
    ),
    **_measured(
        "qwen3_5_397b_mtp",
        "Qwen3.5-397B-A17B with MTP",
        "qwen3.5_mtp.yaml",
        (1.93, 2.73, 3.39, 3.97, 4.41, 4.80, 5.04, 5.21),
        (1.92, 2.70, 3.33, 3.83, 4.20, 4.48, 4.73, 4.71),
    ),
}

"""Support rules that forbid what a GPU computes correctly."""

from __future__ import annotations

# A pattern of the reason in a row, and why the rule stays (docs/support.md).
KNOWN_STRICT = {
    r"^.*\(fa2 on .* needs: fp16 or bf16 output\)": "fa2 writes FP8 outputs without a scale: over long contexts they underflow",
}

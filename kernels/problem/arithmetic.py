"""How a kernel says that it computes: what of it decides how far off a right answer may be, and how its outputs are read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

NATURAL: dict[str, float] = {"e": 1.0, "2": math.log(2)}  # what makes a natural logarithm of one in this base


@dataclass(frozen=True)
class Arithmetic:
    """The fields of a `Runner` that the check depends on. `kernels/contract/runner.py` says what each means."""

    compute_dtype: str
    caller_scale: float = 1.0
    accumulator_dtype: str = "fp32"
    lse_base: str = "e"
    rounded_merges: int = 0

    @property
    def rounding(self) -> Arithmetic:
        """What it rounds on its way, alone: kernels that differ in how their outputs are read are granted the same."""
        return replace(self, caller_scale=1.0, lse_base="e")

"""How a kernel says that it computes: what of it decides how far off a right answer may be, and how its outputs are read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Arithmetic:
    """The fields of a `Runner` that the check depends on. `kernels/contract/runner.py` says what each means."""

    compute_dtype: str
    caller_scale: float = 1.0
    accumulator_dtype: str = "fp32"
    lse_base: str = "e"
    rounded_merges: int = 0

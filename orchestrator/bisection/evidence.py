"""Evidence from one measurement of a release beside the good one: a pair for each point. Reads rows only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.analysis.noise import NoiseFloors


@dataclass(frozen=True)
class ReleaseResult:
    """A point in one release."""

    status: str
    median_us: float | None = None
    resolved_backend: str | None = None
    reason: str = ""


@dataclass(frozen=True)
class PointPair:
    """A point in the good release and in another one, measured in turns. `log_ratio` is log(other / good), `se` its error."""

    point: str  # its keys in words, the same in every measurement
    good: ReleaseResult
    other: ReleaseResult
    log_ratio: float | None = None  # None without a time on both sides
    se: float = 0.0
    keys: Mapping[str, Any] = field(default_factory=dict, compare=False)


Round = tuple[PointPair, ...]  # one interleaved measurement of two releases

SHAPE = (
    "routine", "backend", "model", "batch_size", "s_qo", "s_kv", "q_dtype", "kv_dtype", "mask", "page_size", "window", "kv_layout",
)  # fmt: skip


def pairs_of(good: pd.DataFrame, other: pd.DataFrame, floors: NoiseFloors, same: float) -> Round:
    """A pair for each point that has a row in the good release. The error has the noise floor (docs/timing.md)."""
    from orchestrator.analysis.compare.pairs import POINT_COLUMNS, pair
    from orchestrator.analysis.compare.verdicts import judge

    paired = pair(good, other)
    judged = judge(paired, floors, same).reindex(paired.index)
    keys = [name for name in POINT_COLUMNS if name != "env"]
    differing = [name for name in keys if paired[name].map(str).nunique() > 1]
    named = [*(name for name in SHAPE if name in differing), *(name for name in differing if name not in SHAPE)]
    found = []
    for (_, row), (_, verdict) in zip(paired.iterrows(), judged.iterrows(), strict=True):
        if not isinstance(row["status_a"], str):
            continue  # of the other release alone
        point = " ".join(f"{name}={row[name]}" for name in named or SHAPE[:8])
        comparable = verdict["comparable"] == True  # noqa: E712 - it may be NaN
        log_ratio, se = (float(verdict["log_ratio"]), float(verdict["se"])) if comparable else (None, 0.0)
        found.append(PointPair(point, _side(row, "a"), _side(row, "b"), log_ratio, se, {name: row[name] for name in keys}))
    return tuple(found)


def _side(row: pd.Series, side: str) -> ReleaseResult:
    def text(name: str) -> str | None:
        value = row.get(f"{name}_{side}")
        return value if isinstance(value, str) else None

    log_us = row.get(f"log_us_{side}")
    median = math.exp(log_us) if isinstance(log_us, float) and math.isfinite(log_us) else None
    return ReleaseResult(text("status") or "missing", median, text("resolved_backend"), text("reason") or "")

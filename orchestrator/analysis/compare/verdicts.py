"""Faster, slower, same or undecided: a verdict for each pair and for each group of pairs. Reads no files, prints nothing.

The log of the ratio of two medians is taken as normal around the log of the true change. Its variance has three parts: the samples
of both sides (`spread`), the noise floor (`noise`), and clocks and GPUs that differ. docs/timing.md derives and tests each part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.compare.notes import notes
from orchestrator.analysis.compare.pairs import (
    ceiling_difference,
    is_interleaved,
    is_ok,
    is_repeated,
    is_rough,
    is_throttled,
    is_timed_alike,
    verdict_without_times,
)
from orchestrator.analysis.noise import BETWEEN_RUNS, THROTTLED_CLOCK, UNKNOWN_CLOCK, NoiseFloors

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    Floats = np.ndarray[Any, np.dtype[np.float64]]

MAX_FALSE_CHANGES = 0.03  # share of the points called slower or faster that may be neither
MAX_FALSE_SAME = 0.05  # share of the points called the same that may not be
DECIDED = ("slower", "faster", "same", "undecided")  # verdicts on points that have times on both sides
NORMAL = NormalDist()
Z95 = NORMAL.inv_cdf(0.975)
# Of a rough time, beyond its own samples: of 1,682 committed rows that were raced again none was off by more than 2.3 times as much
# (benchmarks/racing_gate.py).
ROUGH_SE = 0.01


def judge(pairs: pd.DataFrame, floors: NoiseFloors, same: float) -> pd.DataFrame:
    """Pairs with a verdict and the other columns that `compare/__init__.py` lists.

    `same`: the change is certainly within +-`same`. `slower` and `faster`: it is not certainly within, and certainly not 0.
    `undecided`: neither. Pairs without a time on both sides are judged by their statuses, and left out if neither side has one.
    """
    import numpy as np

    se, common_variance = _uncertainty(pairs, floors)
    log_ratio = pairs["log_us_b"] - pairs["log_us_a"]
    timed = is_ok(pairs, "a") & is_ok(pairs, "b")
    comparable = timed & is_timed_alike(pairs) & np.isfinite(se)
    verdict = np.full(len(pairs), "undecided", dtype=object)
    verdict[comparable] = decide(log_ratio.to_numpy()[comparable], se[comparable], same)
    verdict[~timed] = [verdict_without_times(row) for _, row in pairs[~timed].iterrows()]
    judged = pairs.assign(
        verdict=verdict,
        comparable=comparable,
        counted=comparable & ~is_repeated(pairs, comparable),
        log_ratio=log_ratio,
        se=se,
        common_variance=common_variance,
        change=np.expm1(log_ratio),
        interleaved=is_interleaved(pairs),
        throttled_a=is_throttled(pairs, "a"),
        throttled_b=is_throttled(pairs, "b"),
    )
    judged = judged.assign(**_interval(judged))[verdict != ""]
    return judged.assign(note=notes(judged))


def _interval(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """The 95% interval of each change by itself."""
    import numpy as np

    low, high = (rows["log_ratio"] + z * rows["se"] for z in (-Z95, Z95))
    return {"change_low": np.expm1(low), "change_high": np.expm1(high)}


def _uncertainty(pairs: pd.DataFrame, floors: NoiseFloors) -> tuple[Floats, Floats]:
    """The standard error of each log ratio, and the part of its variance that a whole group of pairs may have in common.

    Each side's device contributes half of the floor of interleaved measurements. In common are `rel` of the floors, and what
    clocks and ceilings leave open: a GPU that is one percent slower is so for every point.
    """
    import numpy as np

    time = np.exp((pairs["log_us_a"] + pairs["log_us_b"]).to_numpy() / 2)
    total = (pairs["log_se_a"] ** 2 + pairs["log_se_b"] ** 2).to_numpy()
    common = np.zeros(len(pairs))
    for side in "ab":
        us, rel = floors.parts(pairs[f"device_name_{side}"])
        rough = np.where(is_rough(pairs, side), ROUGH_SE**2, 0.0)
        total, common = total + ((us / time) ** 2 + rel**2) / 2 + rough, common + rel**2 / 2
    separate, devices = ~is_interleaved(pairs), clock_uncertainty(pairs) ** 2 + ceiling_difference(pairs) ** 2
    total += np.where(separate, BETWEEN_RUNS.variance(time) + devices, 0.0)
    common += np.where(separate, BETWEEN_RUNS.rel**2 + devices, 0.0)
    return np.sqrt(total), common


def clock_uncertainty(pairs: pd.DataFrame) -> Floats:
    """How much of a change the clocks may explain, as a log ratio, beyond what the floor between runs holds for normal clocks.

    If a side was throttled, this is the log ratio of both clocks: a kernel's time follows it fully, partly or not at all. If a
    side has no clocks of its samples, it is what the clock may have been.
    """
    import numpy as np

    throttled = is_throttled(pairs, "a") | is_throttled(pairs, "b")
    ratio = np.log(pairs["mhz_b"] / pairs["mhz_a"]).abs().to_numpy()
    unknown = np.isnan(ratio)
    return np.select([unknown & throttled, unknown, throttled], [THROTTLED_CLOCK, UNKNOWN_CLOCK, ratio], 0.0)


def decide(log_ratio: Floats, se: Floats, same: float) -> list[str]:
    """A verdict for each log ratio with its standard error, corrected for the number of tests.

    There are two families of tests, each with the Benjamini-Hochberg procedure: that the change is 0 (two-sided), and that it is
    beyond +-`same` (two one-sided tests, Schuirmann 1987; bounds at +-log(1 + same)).
    """
    import numpy as np

    changed = adjusted([2 * NORMAL.cdf(-abs(z)) for z in log_ratio / se]) <= MAX_FALSE_CHANGES
    beyond = (np.abs(log_ratio) - math.log1p(same)) / se
    within = adjusted([NORMAL.cdf(z) for z in beyond]) <= MAX_FALSE_SAME
    named = np.where(changed, np.where(log_ratio > 0, "slower", "faster"), "undecided")
    return [str(verdict) for verdict in np.where(within, "same", named)]


def adjusted(p_values: Sequence[float]) -> Floats:
    """p-values adjusted after Benjamini and Hochberg (1995): the lowest false discovery rate at which each is rejected."""
    import numpy as np

    p = np.asarray(p_values, dtype=float)
    descending = np.argsort(-p)
    ranks = np.arange(len(p), 0, -1)
    found = np.empty(len(p))
    found[descending] = np.minimum(1.0, np.minimum.accumulate(p[descending] * len(p) / ranks))
    return found


def judge_groups(judged: pd.DataFrame, by: Sequence[str], same: float) -> pd.DataFrame:
    """A line for all comparable pairs that count, and one for each value of each column in `by`: the mean change and its verdict.

    A group's change is the mean of its log ratios. Of their variance, the common part stays and the rest averages out.
    """
    import numpy as np
    import pandas as pd

    needed = [*by, "log_ratio", "se", "common_variance", "verdict"]  # alone, since each grouping copies the frame
    comparable = judged.loc[judged["counted"], needed]
    parts = [(name, value, part) for name in by for value, part in comparable.groupby(name, dropna=False, sort=True)]
    found = pd.DataFrame([_group(name, value, part) for name, value, part in [("all", "", comparable), *parts] if len(part)])
    if found.empty:
        return found
    verdicts = decide(found["log_ratio"].to_numpy(), found["se"].to_numpy(), same)
    return found.assign(verdict=verdicts, change=np.expm1(found["log_ratio"]), **_interval(found))


def _group(name: str, value: object, part: pd.DataFrame) -> dict[str, object]:
    averaged = (part["se"] ** 2 - part["common_variance"]).sum() / len(part) ** 2
    counts = part["verdict"].value_counts()
    return {
        "by": name,
        "value": value,
        "points": len(part),
        "log_ratio": part["log_ratio"].mean(),
        "se": math.sqrt(averaged + part["common_variance"].mean()),
        **{verdict: int(counts.get(verdict, 0)) for verdict in DECIDED},
    }

"""A verdict for each pair and for each group of pairs, and what to know of a pair beside it.

The log of the ratio of two medians is taken as normal around the log of the true change. Its variance has three parts: the samples
of both sides, the noise floor (both in `noise`), and clocks and GPUs that differ. docs/timing.md derives and tests each part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.compare.pairs import (
    TIMING_SETTINGS,
    Floats,
    is_interleaved,
    is_repeated,
    is_rough,
    is_throttled,
    is_timed_alike,
    memory_difference,
    verdict_without_times,
)
from orchestrator.analysis.names import shown
from orchestrator.analysis.noise import BETWEEN_RUNS, THROTTLED_CLOCK, UNKNOWN_CLOCK, NoiseFloors

MAX_FALSE_CHANGES = 0.03  # share of the points called slower or faster that may be neither
MAX_FALSE_SAME = 0.05  # share of the points called the same that may not be
DECIDED = ("slower", "faster", "same", "undecided")  # verdicts on points that have times on both sides
NORMAL = NormalDist()
Z95 = NORMAL.inv_cdf(0.975)
# Of a rough time, beyond its own samples: of 1,682 committed rows that were raced again the worst was off by 2.3%
# (docs/architecture.md).
ROUGH_SE = 0.01


def judge(pairs: pd.DataFrame, floors: NoiseFloors, same: float) -> pd.DataFrame:
    """Pairs with a verdict and the other columns that `compare/__init__.py` lists.

    `same`: the change is certainly within +-`same`. `slower` and `faster`: it is not certainly within, and certainly not 0.
    `undecided`: neither. Pairs without a time on both sides are judged by their statuses, and left out if neither side has one.
    """
    se, common_variance = _uncertainty(pairs, floors)
    log_ratio = pairs["log_us_b"] - pairs["log_us_a"]
    timed = np.asarray((pairs[["status_a", "status_b"]] == "ok").all(axis=1), dtype=bool)
    comparable = timed & is_timed_alike(pairs) & np.isfinite(se)
    verdict = np.full(len(pairs), "undecided", dtype=object)
    verdict[comparable] = decide(log_ratio.to_numpy()[comparable], se[comparable], same)
    statuses = ["status_a", "status_b", "device_name_a", "device_name_b"]
    verdict[~timed] = [verdict_without_times(*row) for row in pairs.loc[~timed, statuses].itertuples(index=False)]
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
    low, high = (rows["log_ratio"] + z * rows["se"] for z in (-Z95, Z95))
    return {"change_low": np.expm1(low), "change_high": np.expm1(high)}


def _uncertainty(pairs: pd.DataFrame, floors: NoiseFloors) -> tuple[Floats, Floats]:
    """The standard error of each log ratio, and the variance that a group may have in common: a GPU is slower for every point."""
    time = np.exp((pairs["log_us_a"] + pairs["log_us_b"]).to_numpy() / 2)
    total, common = own_variance(pairs, floors, time)
    separate, devices = ~is_interleaved(pairs), clock_uncertainty(pairs) ** 2 + memory_difference(pairs) ** 2
    total += np.where(separate, BETWEEN_RUNS.variance(time) + devices, 0.0)
    common += np.where(separate, BETWEEN_RUNS.rel**2 + devices, 0.0)
    return np.sqrt(total), common


def own_variance(pairs: pd.DataFrame, floors: NoiseFloors, time: Floats) -> tuple[Floats, Floats]:
    """Variance of log ratios measured interleaved (half a floor from each side), and its part `rel`; `time` in µs."""
    total, common = (pairs["log_se_a"] ** 2 + pairs["log_se_b"] ** 2).to_numpy(), np.zeros(len(pairs))
    for side in "ab":
        us, rel = floors.parts(pairs[f"device_name_{side}"])
        total = total + ((us / time) ** 2 + rel**2) / 2 + np.where(is_rough(pairs, side), ROUGH_SE**2, 0.0)
        common += rel**2 / 2
    return total, common


def clock_uncertainty(pairs: pd.DataFrame) -> Floats:
    """How much of a change the clocks may explain, as a log ratio, beyond what the floor between runs holds for normal clocks.

    If a side was throttled, this is the log ratio of both clocks: a kernel's time follows it fully, partly or not at all. If a
    side has no clocks of its samples, it is what the clock may have been.
    """
    throttled = is_throttled(pairs, "a") | is_throttled(pairs, "b")
    ratio = np.log(pairs["mhz_b"] / pairs["mhz_a"]).abs().to_numpy()
    unknown = np.isnan(ratio)
    return np.select([unknown & throttled, unknown, throttled], [THROTTLED_CLOCK, UNKNOWN_CLOCK, ratio], 0.0)


def decide(log_ratio: Floats, se: Floats, same: float) -> list[str]:
    """A verdict for each log ratio with its standard error, corrected for the number of tests.

    There are two families of tests, each with the Benjamini-Hochberg procedure: that the change is 0 (two-sided), and that it is
    beyond +-`same` (two one-sided tests, Schuirmann 1987; bounds at +-log(1 + same)).
    """
    changed = adjusted([2 * NORMAL.cdf(-abs(z)) for z in log_ratio / se]) <= MAX_FALSE_CHANGES
    beyond = (np.abs(log_ratio) - math.log1p(same)) / se
    within = adjusted([NORMAL.cdf(z) for z in beyond]) <= MAX_FALSE_SAME
    named = np.where(changed, np.where(log_ratio > 0, "slower", "faster"), "undecided")
    return [str(verdict) for verdict in np.where(within, "same", named)]


def adjusted(p_values: Sequence[float]) -> Floats:
    """p-values adjusted after Benjamini and Hochberg (1995): the lowest false discovery rate at which each is rejected."""
    p = np.asarray(p_values, dtype=float)
    descending = np.argsort(-p)
    ranks = np.arange(len(p), 0, -1)
    found = np.empty(len(p))
    found[descending] = np.minimum(1.0, np.minimum.accumulate(p[descending] * len(p) / ranks))
    return found


def judge_groups(judged: pd.DataFrame, by: Sequence[str], same: float) -> pd.DataFrame:
    """A line for all pairs that count, and for each value of `by`: the mean change, whose common variance does not average out."""
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


MIN_CLOCK_DIFFERENCE = 0.01  # smaller differences of the SM clocks are not noted
SIDES = (("a", "the baseline"), ("b", "the candidate"))
# The columns that notes quote, of 250.
OF_ONE_SIDE = ("throttled", "throttle_reasons", "bimodal", "stop_reason")
_OF_ROW = ("status", "reason", *TIMING_SETTINGS, *OF_ONE_SIDE, "log_se", "mhz", "resolved_backend", "measured_as")
QUOTED_COLUMNS = [*(f"{name}_{side}" for name in _OF_ROW for side, _ in SIDES), "comparable", "counted"]


def notes(judged: pd.DataFrame) -> list[str]:
    """A note on each pair of a frame that `judge` has filled in: why it is not comparable, or else what to know of its change."""
    quoted = judged[QUOTED_COLUMNS].itertuples(index=False)
    return [_why_not_comparable(one) or "; ".join(_caveats(one)) for one in quoted]


def _why_not_comparable(one: Any) -> str:
    if one.status_a == "ok" != one.status_b:
        return f"{one.status_b}: {one.reason_b}" if isinstance(one.status_b, str) else "no row in the candidate"
    if one.status_b == "ok" != one.status_a:
        return f"was {one.status_a}: {one.reason_a}" if isinstance(one.status_a, str) else "no row in the baseline"
    settings = ((name, *(str(getattr(one, f"{name}_{side}")) for side, _ in SIDES)) for name in TIMING_SETTINGS)
    if unlike := [f"{name} {a} and {b}" for name, a, b in settings if a != b]:
        return f"measured differently: {', '.join(unlike)}"
    return "no samples stored" if math.isnan(one.log_se_a) or math.isnan(one.log_se_b) else ""


def _caveats(one: Any) -> Iterator[str]:
    for side, where in SIDES:
        throttled, reasons, bimodal, stop = (getattr(one, f"{name}_{side}") for name in OF_ONE_SIDE)
        if throttled:
            yield f"throttled in {where} ({reasons})"
        if bimodal == True:  # noqa: E712 - it may be NaN. Its median is that of either mode, and the change may be that to the other
            yield f"two modes in {where}'s samples"
        if stop == "decided":
            yield f"rough in {where} (timing.precision=decide)"
    if abs(one.mhz_b / one.mhz_a - 1) > MIN_CLOCK_DIFFERENCE:
        yield f"clock {one.mhz_a:.0f} and {one.mhz_b:.0f} MHz"
    if one.comparable and not one.counted:
        source = next(name for name in (one.measured_as_a, one.measured_as_b) if isinstance(name, str))
        yield f"samples of {shown(source)}, whose call is the same"
    kernels = one.resolved_backend_a, one.resolved_backend_b
    if all(isinstance(kernel, str) for kernel in kernels) and kernels[0] != kernels[1]:
        yield f"ran {shown(kernels[1])}, was {shown(kernels[0])}"

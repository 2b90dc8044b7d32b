"""Faster, slower, same or undecided: a verdict for each pair and for each group of pairs. Knows no files and draws nothing.

The log of the ratio of two medians is normal around the log of the change, with the variance of the samples of both
(`spread`), of the noise floor (`noise_floor`) and of clocks and GPUs that differed. docs/compare.md derives and tests each part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from orchestrator.compare.noise_floor import BETWEEN_RUNS, HELD_DOWN_CLOCK, UNNOTED_CLOCK, Floors
from orchestrator.compare.pairs import ceilings_apart, in_turns, is_held_down, is_remarkable, remark, timed_alike, without_times

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    Floats = np.ndarray[Any, np.dtype[np.float64]]

FALSE_RATE = 0.03  # of the points called slower or faster, how many may be neither
FALSE_SAME = 0.05  # of those called the same
DECIDED = ("slower", "faster", "same", "undecided")
NORMAL = NormalDist()
Z95 = NORMAL.inv_cdf(0.975)


def judge(pairs: pd.DataFrame, floors: Floors, same: float) -> pd.DataFrame:
    """Pairs with `verdict`, `why`, `change` (time of the candidate over that of the baseline, less 1) and its 95% interval.

    The same: surely within +-`same`. Slower, faster: surely not 0, and not surely within. Else undecided. Pairs that neither
    side has a time for are left out.
    """
    import numpy as np

    se, common = _uncertainty(pairs, floors)
    log_ratio = pairs["log_us_b"] - pairs["log_us_a"]
    told = timed_alike(pairs) & np.isfinite(se)
    verdict = np.full(len(pairs), "undecided", dtype=object)
    verdict[told] = decide(log_ratio.to_numpy()[told], se[told], same)
    untimed = ((pairs["status_a"] != "ok") | (pairs["status_b"] != "ok")).to_numpy(dtype=bool)
    verdict[untimed] = [without_times(row) for _, row in pairs[untimed].iterrows()]
    judged = pairs.assign(
        verdict=verdict, told=told, log_ratio=log_ratio, se=se, common=common, change=np.expm1(log_ratio), in_turns=in_turns(pairs)
    )
    judged = judged.assign(**_interval(judged), **{f"held_{side}": is_held_down(pairs, side) for side in "ab"})
    judged = judged[judged["verdict"] != ""]
    remarks = {index: remark(row) for index, row in judged[is_remarkable(judged)].iterrows()}
    return judged.assign(why=[remarks.get(index, "") for index in judged.index])


def _interval(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Of the change, at 95%, each for itself."""
    import numpy as np

    low, high = (rows["log_ratio"] + z * rows["se"] for z in (-Z95, Z95))
    return {"low": np.expm1(low), "high": np.expm1(high)}


def _uncertainty(pairs: pd.DataFrame, floors: Floors) -> tuple[Floats, Floats]:
    """Standard error of each log ratio, and the part of its variance that a whole group of pairs may have in common.

    Half of the floor in turns comes from each side's device. In common are `rel` of the floors and what clocks and ceilings
    leave open: a GPU that runs a percent slower does so for every point.
    """
    import numpy as np

    time = np.exp((pairs["log_us_a"] + pairs["log_us_b"]).to_numpy() / 2)
    total = (pairs["log_se_a"] ** 2 + pairs["log_se_b"] ** 2).to_numpy()
    common = np.zeros(len(pairs))
    for side in "ab":
        us, rel = floors.of(pairs[f"device_name_{side}"])
        total, common = total + ((us / time) ** 2 + rel**2) / 2, common + rel**2 / 2
    apart, devices = ~in_turns(pairs), _clock(pairs) ** 2 + ceilings_apart(pairs) ** 2
    total += np.where(apart, BETWEEN_RUNS.variance(time) + devices, 0.0)
    common += np.where(apart, BETWEEN_RUNS.rel**2 + devices, 0.0)
    return np.sqrt(total), common


def _clock(pairs: pd.DataFrame) -> Floats:
    """By how much the clocks of a pair may explain its change, beyond what the floor between runs holds of clocks left alone.

    Where a side's clock was held down, the log of their ratio, of which a kernel takes between nothing and all; where a side
    noted no clocks, what it may have been.
    """
    import numpy as np

    held = is_held_down(pairs, "a") | is_held_down(pairs, "b")
    ratio = np.log(pairs["mhz_b"] / pairs["mhz_a"]).abs().to_numpy()
    unnoted = np.isnan(ratio)
    return np.select([unnoted & held, unnoted, held], [HELD_DOWN_CLOCK, UNNOTED_CLOCK, ratio], 0.0)


def decide(log_ratio: Floats, se: Floats, same: float) -> list[str]:
    """A verdict for each log ratio with its standard error, all of them corrected for one another.

    Two families of tests, each with the Benjamini-Hochberg procedure: that the change is 0 (two-sided), and that it is beyond
    +-`same` (two one-sided tests, Schuirmann 1987; bounds at +-log(1 + same)).
    """
    import numpy as np

    changed = adjusted([2 * NORMAL.cdf(-abs(z)) for z in log_ratio / se]) <= FALSE_RATE
    beyond = (np.abs(log_ratio) - math.log1p(same)) / se
    within = adjusted([NORMAL.cdf(z) for z in beyond]) <= FALSE_SAME
    named = np.where(changed, np.where(log_ratio > 0, "slower", "faster"), "undecided")
    return [str(verdict) for verdict in np.where(within, "same", named)]


def adjusted(p_values: Sequence[float]) -> Floats:
    """p-values as Benjamini and Hochberg (1995) adjust them: the least false discovery rate at which each is rejected."""
    import numpy as np

    p = np.asarray(p_values, dtype=float)
    descending = np.argsort(-p)
    ranks = np.arange(len(p), 0, -1)
    found = np.empty(len(p))
    found[descending] = np.minimum(1.0, np.minimum.accumulate(p[descending] * len(p) / ranks))
    return found


def groups(judged: pd.DataFrame, by: Sequence[str], same: float) -> pd.DataFrame:
    """A row for all pairs, and one for each value of each column in `by`: their mean change, its verdict, how many have which.

    A group's change is the mean of its log ratios. Of their variance what they may have in common stays; the rest averages out.
    """
    import numpy as np
    import pandas as pd

    told = judged.loc[judged["told"], [*by, "log_ratio", "se", "common", "verdict"]]  # each grouping copies what it is given
    parts = [(name, value, part) for name in by for value, part in told.groupby(name, dropna=False, sort=True)]
    found = pd.DataFrame([_group(name, value, part) for name, value, part in [("all", "", told), *parts] if len(part)])
    if found.empty:
        return found
    verdicts = decide(found["log_ratio"].to_numpy(), found["se"].to_numpy(), same)
    return found.assign(verdict=verdicts, change=np.expm1(found["log_ratio"]), **_interval(found))


def _group(name: str, value: object, part: pd.DataFrame) -> dict[str, object]:
    own = (part["se"] ** 2 - part["common"]).sum() / len(part) ** 2
    counts = part["verdict"].value_counts()
    return {
        "by": name,
        "value": value,
        "points": len(part),
        "log_ratio": part["log_ratio"].mean(),
        "se": math.sqrt(own + part["common"].mean()),
        **{verdict: int(counts.get(verdict, 0)) for verdict in DECIDED},
    }
